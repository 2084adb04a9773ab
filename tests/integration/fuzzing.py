"""Requests made from the served OpenAPI document by schemathesis, and what must hold of every answer.

Half of an operation's requests are schemathesis's own list of edge cases, half are random: valid by the document and
not, in turn. The same number gives the same requests. As a program, `python -m tests.integration.fuzzing --requests N`,
against a server of its own with a tiny model.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.checkpoints import make_checkpoint
from tests.support.servers import SHORT_ANSWERS, Server, serving

# No answer takes a tenth of it, even on a machine that does something else as well.
TIME_LIMIT_S = 30.0

_CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance]
_EVENTS = "text/event-stream"


@dataclass
class Findings:
    """What a run has seen."""

    statuses: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))  # by operation
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0

    @property
    def num_requests(self) -> int:
        return sum(counter.total() for counter in self.statuses.values())

    def __str__(self) -> str:
        lines = [f"{self.num_requests} requests, the slowest {self.slowest_s:.2f} s"]
        for name, counter in self.statuses.items():
            counts = ", ".join(f"{count} x {status}" for status, count in sorted(counter.items()))
            lines.append(f"{name}: {counts}")
        return "\n".join([*lines, f"{len(self.failures)} failures", *self.failures])


def fuzz(url: str, num_requests: int) -> Findings:
    """Ask a running server. Bodies share the requests; an operation without one gets its few edge cases."""
    document = schemathesis.openapi.from_url(f"{url}/api-doc/openapi.json", timeout=TIME_LIMIT_S)
    operations = [_readable(found) for found in document.get_all_operations()]
    asking = _Asking(url, document.raw_schema)
    with_body = [operation for operation in operations if operation.body]
    for operation in operations:
        if operation not in with_body:
            asking.ask_all(_edge_cases(document, operation, 20))
    for place, operation in enumerate(with_body):
        share = max(2, (num_requests - asking.findings.num_requests) // (len(with_body) - place))
        edge_cases = list(_edge_cases(document, operation, share // 2))
        asking.ask_all(edge_cases)
        _ask_at_random(asking, operation, share - len(edge_cases))
    return asking.findings


def _readable(found: Any) -> Any:
    assert isinstance(found, Ok), f"the document cannot be read: {found}"
    return found.ok()


def _edge_cases(document: Any, operation: Any, limit: int) -> Iterable[Any]:
    """As many as the limit, from everywhere in the list: the body's fields come one after the other."""
    config = document.config.generation_for(operation=operation)
    found = list(
        document.iter_coverage_cases(operation, generation_modes=list(GenerationMode), generation_config=config)
    )
    step = max(1.0, len(found) / limit)
    return [found[int(place * step)] for place in range(min(limit, len(found)))]


def _ask_at_random(asking: _Asking, operation: Any, count: int) -> None:
    for mode, share in ((GenerationMode.POSITIVE, count - count // 2), (GenerationMode.NEGATIVE, count // 2)):

        @settings(
            max_examples=share,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            asking.ask(case)

        if share > 0:
            ask()


class _Asking:
    def __init__(self, url: str, document: dict[str, Any]) -> None:
        self.findings = Findings()
        self._url = url
        self._document = document
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy of the machine is not for 127.0.0.1
        self._validators: dict[str, jsonschema.Draft202012Validator] = {}

    def ask_all(self, cases: Iterable[Any]) -> None:
        for case in cases:
            self.ask(case)

    def ask(self, case: Any) -> None:
        """Send one request and note what is wrong with its answer."""
        began_s = time.monotonic()
        name = case.operation.label
        try:
            response = case.call(self._url, session=self._session, timeout=TIME_LIMIT_S)
        except requests.RequestException as error:
            self._fail(case, f"no answer: {error}")
            return
        took_s = time.monotonic() - began_s
        self.findings.statuses[name][response.status_code] += 1
        self.findings.slowest_s = max(self.findings.slowest_s, took_s)
        if took_s > TIME_LIMIT_S:
            self._fail(case, f"an answer after {took_s:.1f} s")
        has_events = response.headers.get("content-type", [""])[0].startswith(_EVENTS)
        try:
            case.validate_response(response, checks=_CHECKS if has_events else [*_CHECKS, response_schema_conformance])
        except FailureGroup as failures:
            self._fail(case, str(failures))
        try:
            if has_events:
                self._check_events(case.operation, response.content)
            elif response.status_code >= 400 and case.method != "HEAD":
                assert response.json().keys() == {"error", "error_type"}
        except (AssertionError, ValueError, jsonschema.ValidationError) as error:
            self._fail(case, f"{response.content[:1000]!r}: {error}")

    def _check_events(self, operation: Any, content: bytes) -> None:
        """Every event is the object that the document names, and an error is none of them."""
        if operation.label not in self._validators:
            shown = self._document["paths"][operation.path][operation.method]["responses"]["200"]["content"]
            schema = {**shown[_EVENTS]["schema"], "components": self._document["components"]}
            self._validators[operation.label] = jsonschema.Draft202012Validator(schema)
        events = content.decode().removesuffix("\n\n").split("\n\n")
        for event in events:
            assert event.startswith("data: "), event
            if event != "data: [DONE]" or event is not events[-1]:
                self._validators[operation.label].validate(json.loads(event.removeprefix("data: ")))

    def _fail(self, case: Any, what: str) -> None:
        self.findings.failures.append(f"{case.operation.label}: {what}\n  {case.as_curl_command()[:2000]}")


@contextmanager
def tiny_server(folder: Path) -> Iterator[Server]:
    with serving("--model-id", str(make_checkpoint(folder, seed=11)), *SHORT_ANSWERS) as server:
        yield server


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask a server whatever its OpenAPI document allows, and more.")
    parser.add_argument("--requests", type=int, default=5000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, tiny_server(Path(folder) / "model") as server:
        findings = fuzz(server.url, arguments.requests)
        if "Traceback" in server.log:
            findings.failures.append(f"a traceback in the server's log:\n{server.log}")
    print(findings)
    return 1 if findings.failures else 0


if __name__ == "__main__":
    sys.exit(main())
