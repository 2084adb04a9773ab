"""The clients under test, and calls to them: each runs in its own environment, as one process that answers calls.

Another client is a line in CLIENTS, a script beside the others with the four operations `generate`, `stream` and their
`_async` twins, and a line in `tests.support.client_envs` if it needs an environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from tests.support.client_envs import client_python

SCRIPTS = Path(__file__).parent / "scripts"

Way = Literal["sync", "async"]
WAYS: tuple[Way, ...] = ("sync", "async")


@dataclass(frozen=True)
class Client:
    """What differs between clients.

    Attributes:
        environment: its name in ENVIRONMENTS.
        greedy: parameters that make it ask for greedy text.
        shows_stop: whether the text that its user gets ends with the stop string that was found.
        errors: the classes of what it raises, by what went wrong.
    """

    environment: str
    script: str
    shows_stop: bool
    errors: Mapping[str, str]
    greedy: Mapping[str, Any] = field(default_factory=dict)


_TEXT_GENERATION_ERRORS = {
    "validation": "text_generation.errors.ValidationError",
    "overloaded": "text_generation.errors.OverloadedError",
    "not_found": "text_generation.errors.NotFoundError",
}

CLIENTS: Mapping[str, Client] = {
    "text-generation": Client(
        environment="text-generation",
        script="text_generation_script.py",
        shows_stop=True,
        errors=_TEXT_GENERATION_ERRORS,
    ),
    # It always sends its own temperature, top_p and typical_p, hence samples; and it cuts the text before a stop.
    "langchain-community": Client(
        environment="text-generation",
        script="langchain_community_script.py",
        shows_stop=False,
        errors=_TEXT_GENERATION_ERRORS,
        greedy={"top_k": 1},
    ),
}


class ClientError(Exception):
    """The client raised `kind`, the class with its module."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class ClientProcess:
    """A script of ours that runs in the client's environment."""

    def __init__(self, client: Client, log: IO[bytes]) -> None:
        """`log`: where the client's standard error goes."""
        self._log = log
        self._process = subprocess.Popen(
            [str(client_python(client.environment)), str(SCRIPTS / client.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            # A proxy of the machine is not for the server under test.
            env={**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        )

    def call(self, operation: str, **arguments: Any) -> Any:
        """Raises ClientError for what the client raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"operation": operation, "arguments": arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise AssertionError(f"the client ended in {operation}:\n{self._log.read().decode(errors='replace')}")
        reply = json.loads(line)
        if "error" in reply:
            raise ClientError(reply["error"], reply["message"])
        return reply["result"]

    def close(self) -> None:
        self._process.communicate()  # the end of its input is its end


@contextmanager
def running(client: Client) -> Iterator[ClientProcess]:
    with tempfile.TemporaryFile() as log:
        process = ClientProcess(client, log)
        try:
            yield process
        finally:
            process.close()


@dataclass(frozen=True)
class Caller:
    """A client used in one way. Asks for greedy text unless `parameters` say otherwise."""

    client: Client
    way: Way
    process: ClientProcess

    def generate(self, url: str, prompt: str, **parameters: Any) -> str:
        text: str = self._call("generate", url, prompt, parameters)["text"]
        return text

    def stream(self, url: str, prompt: str, **parameters: Any) -> list[str]:
        """The pieces of text that a user would print. `read=n` hangs up after n of them."""
        pieces: list[str] = self._call("stream", url, prompt, parameters)["pieces"]
        return pieces

    def details(self, url: str, prompt: str, **parameters: Any) -> dict[str, Any]:
        """Of a client that shows them."""
        details: dict[str, Any] = self._call("generate", url, prompt, parameters)["details"]
        return details

    def events(self, url: str, prompt: str, **parameters: Any) -> list[dict[str, Any]]:
        """Of a client that shows them."""
        events: list[dict[str, Any]] = self._call("stream", url, prompt, parameters)["events"]
        return events

    def _call(self, operation: str, url: str, prompt: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        name = operation if self.way == "sync" else f"{operation}_async"
        result: dict[str, Any] = self.process.call(name, url=url, prompt=prompt, **{**self.client.greedy, **parameters})
        return result
