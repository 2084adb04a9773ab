"""The clients under test, and calls to them: each runs in its own environment, as one process that answers calls.

Another client is a line in CLIENTS, a script beside the others, and a line in `tests.support.client_envs` if it needs
an environment of its own. A script has the operations `generate` and `stream` if the client speaks the native routes,
`chat` and `chat_stream` if it speaks OpenAI's, and the `_async` twin of each.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from tests.clients.expected import Messages
from tests.support.checkpoints import SPECIAL_TOKENS
from tests.support.client_envs import client_python

SCRIPTS = Path(__file__).parent / "scripts"

Way = Literal["sync", "async"]
WAYS: tuple[Way, ...] = ("sync", "async")


@dataclass(frozen=True)
class Client:
    """What differs between clients.

    Attributes:
        environment: its name in ENVIRONMENTS.
        errors: the classes of what it raises by what went wrong, if it speaks the native routes. What differs between
            ways has a line of its own, with the way in its name.
        chat_errors: the same for OpenAI's routes.
        greedy: parameters that make it ask for greedy text.
        detailed: parameters that make it ask for details.
        shows_stop: whether the text that its user gets ends with the stop string that was found.
        shows_special: whether what it streams has the text of special tokens.
        streams_chat: in which ways it can stream a chat.
        drops_last: in which ways it drops what the last event of a streamed chat says.
        misses_errors: in which ways it does not see that a streamed chat was refused.
    """

    environment: str
    script: str
    errors: Mapping[str, str] = field(default_factory=dict)
    chat_errors: Mapping[str, str] = field(default_factory=dict)
    greedy: Mapping[str, Any] = field(default_factory=dict)
    detailed: Mapping[str, Any] = field(default_factory=dict)
    shows_stop: bool = True
    shows_special: bool = False
    streams_chat: Sequence[Way] = WAYS
    drops_last: Sequence[Way] = ()
    misses_errors: Sequence[Way] = ()


_TEXT_GENERATION_ERRORS = {
    "validation": "text_generation.errors.ValidationError",
    "overloaded": "text_generation.errors.OverloadedError",
    "not found": "text_generation.errors.NotFoundError",
    "unauthorized": "text_generation.errors.UnknownError",
    "lost shard": "text_generation.errors.GenerationError",
    "lost shard in a stream": "text_generation.errors.GenerationError",
}
_HUB_ERRORS = {
    "validation": "huggingface_hub.errors.ValidationError",
    "overloaded": "huggingface_hub.errors.OverloadedError",
    "not found": "huggingface_hub.errors.UnknownError",
    "unauthorized": "huggingface_hub.errors.UnknownError",
    "lost shard": "huggingface_hub.errors.GenerationError",
    "lost shard in a stream": "huggingface_hub.errors.GenerationError",
}
_HUB_CHAT_ERRORS = {
    "validation": "huggingface_hub.errors.HfHubHTTPError",
    "overloaded": "huggingface_hub.errors.HfHubHTTPError",
    "not found": "huggingface_hub.errors.HfHubHTTPError",
    "unauthorized": "huggingface_hub.errors.HfHubHTTPError",
    "lost shard": "huggingface_hub.errors.HfHubHTTPError",
    "lost shard in a stream": "huggingface_hub.errors.GenerationError",
    "validation in a stream": "huggingface_hub.errors.ValidationError",
}
# The old one is built on requests, its asynchronous twin on aiohttp.
_OLD_HUB_CHAT_ERRORS = {
    **_HUB_CHAT_ERRORS,
    **{
        f"{what}, async": "aiohttp.client_exceptions.ClientResponseError"
        for what in ("validation", "overloaded", "not found", "unauthorized", "lost shard")
    },
}
_OPENAI_ERRORS = {
    "validation": "openai.UnprocessableEntityError",
    "overloaded": "openai.RateLimitError",
    "not found": "openai.NotFoundError",
    "unauthorized": "openai.AuthenticationError",
    "lost shard": "openai.APIStatusError",
    "lost shard in a stream": "openai.APIError",
    "validation in a stream": "openai.APIError",
}
_TGI_ERRORS = {
    "validation": "tgi.errors.ValidationError",
    "overloaded": "tgi.errors.OverloadedError",
    "not found": "tgi.errors.NotFoundError",
    "unauthorized": "tgi.errors.UnknownError",
    "lost shard": "tgi.errors.GenerationError",
    "lost shard in a stream": "tgi.errors.GenerationError",
    "validation in a stream": "tgi.errors.ValidationError",
}

CLIENTS: Mapping[str, Client] = {
    "text-generation": Client("hub-0.36", "text_generation_script.py", errors=_TEXT_GENERATION_ERRORS),
    # The two of langchain always send their own temperature, top_p and typical_p, hence sample; and they cut the text
    # before a stop.
    "langchain-community": Client(
        "hub-0.36",
        "langchain_community_script.py",
        errors=_TEXT_GENERATION_ERRORS,
        greedy={"top_k": 1},
        shows_stop=False,
    ),
    "langchain-huggingface": Client(
        "hub-0.36",
        "langchain_huggingface_script.py",
        errors=_HUB_ERRORS,
        chat_errors=_OLD_HUB_CHAT_ERRORS,
        greedy={"top_k": 1},
        shows_stop=False,
        shows_special=True,
    ),
    "huggingface_hub 0.36": Client(
        "hub-0.36",
        "huggingface_hub_script.py",
        errors=_HUB_ERRORS,
        chat_errors=_OLD_HUB_CHAT_ERRORS,
        detailed={"details": True},
        shows_special=True,
    ),
    "huggingface_hub 2": Client(
        "hub-2",
        "huggingface_hub_script.py",
        errors=_HUB_ERRORS,
        chat_errors=_HUB_CHAT_ERRORS,
        detailed={"details": True},
        shows_special=True,
    ),
    # It always sends its own temperature, hence samples.
    "llama-index-huggingface-api": Client(
        "hub-2",
        "llama_index_api_script.py",
        errors=_HUB_ERRORS,
        chat_errors=_HUB_CHAT_ERRORS,
        greedy={"top_k": 1},
        shows_special=True,
        drops_last=("async",),
    ),
    # Its synchronous stream takes the `[DONE]` of OpenAI's routes for JSON. The other reads events whatever the status.
    "llama-index-tgi": Client(
        "hub-0.36",
        "llama_index_tgi_script.py",
        chat_errors=_TGI_ERRORS,
        streams_chat=("async",),
        misses_errors=("async",),
    ),
    "openai": Client("hub-2", "openai_script.py", chat_errors=_OPENAI_ERRORS),
}
TEXT_CLIENTS = [name for name, client in CLIENTS.items() if client.errors]
CHAT_CLIENTS = [name for name, client in CLIENTS.items() if client.chat_errors]
DETAILED_CLIENTS = ["text-generation", *(name for name, client in CLIENTS.items() if client.detailed)]
CHAT_DETAILED_CLIENTS = ["huggingface_hub 0.36", "huggingface_hub 2", "openai"]


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
            env=_environ(),
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


def _environ() -> dict[str, str]:
    """The machine's proxy and its user's token are not for the server under test; compiled modules must be kept."""
    kept = {name: value for name, value in os.environ.items() if name not in {"HF_TOKEN", "PYTHONDONTWRITEBYTECODE"}}
    return {**kept, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}


@contextmanager
def running(client: Client) -> Iterator[ClientProcess]:
    with tempfile.TemporaryFile() as log:
        process = ClientProcess(client, log)
        try:
            yield process
        finally:
            process.close()


@dataclass(frozen=True)
class _Use(ABC):
    """A client used in one way."""

    client: Client
    way: Way
    process: ClientProcess

    @property
    @abstractmethod
    def errors(self) -> Mapping[str, str]:
        """The classes of what it raises, by what went wrong."""

    def error(self, what: str) -> str:
        """The class for what went wrong."""
        return self.errors.get(f"{what}, {self.way}") or self.errors[what]

    def ask(self, operation: str, url: str, **arguments: Any) -> dict[str, Any]:
        """What the client's script makes of an answer. Raises ClientError for what the client raised."""
        result: dict[str, Any] = self.process.call(named(operation, self.way), url=url, **arguments)
        return result


class Caller(_Use):
    """A client of the native routes. Asks for greedy text unless `parameters` say otherwise."""

    @property
    def errors(self) -> Mapping[str, str]:
        return self.client.errors

    def generate(self, url: str, prompt: str, **parameters: Any) -> str:
        return str(self._answer("generate", url, prompt, parameters)["text"])

    def stream(self, url: str, prompt: str, **parameters: Any) -> list[str]:
        """The pieces of text that a user would print. `read=n` hangs up after n of them."""
        return list(self._answer("stream", url, prompt, parameters)["pieces"])

    def streamed_text(self, url: str, prompt: str, **parameters: Any) -> str:
        """The pieces in one, without the special tokens that some clients let through."""
        pieces = self.stream(url, prompt, **parameters)
        if self.client.shows_special:
            return "".join(piece for piece in pieces if piece not in SPECIAL_TOKENS)
        return "".join(pieces)

    def details(self, url: str, prompt: str, **parameters: Any) -> dict[str, Any]:
        """Of a client that shows them."""
        return dict(self._answer("generate", url, prompt, {**self.client.detailed, **parameters})["details"])

    def events(self, url: str, prompt: str, **parameters: Any) -> list[dict[str, Any]]:
        """Of a client that shows them."""
        return list(self._answer("stream", url, prompt, {**self.client.detailed, **parameters})["events"])

    def _answer(self, operation: str, url: str, prompt: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        return self.ask(operation, url, prompt=prompt, **{**self.client.greedy, **parameters})


class ChatCaller(_Use):
    """A client of OpenAI's chat route. Asks for greedy text unless `fields` say otherwise."""

    @property
    def errors(self) -> Mapping[str, str]:
        return self.client.chat_errors

    def chat(self, url: str, messages: Messages, **fields: Any) -> str:
        return str(self._answer("chat", url, messages, fields)["text"])

    def stream(self, url: str, messages: Messages, **fields: Any) -> list[str]:
        """The pieces of text that a user would print. `read=n` hangs up after n of them."""
        return list(self._answer("chat_stream", url, messages, fields)["pieces"])

    def answer(self, url: str, messages: Messages, **fields: Any) -> dict[str, Any]:
        """The whole answer, of a client that shows it."""
        return dict(self._answer("chat", url, messages, fields)["answer"])

    def chunks(self, url: str, messages: Messages, **fields: Any) -> list[dict[str, Any]]:
        """The events of a stream, of a client that shows them."""
        return list(self._answer("chat_stream", url, messages, fields)["chunks"])

    @property
    def can_stream(self) -> bool:
        return self.way in self.client.streams_chat

    @property
    def sees_refused_streams(self) -> bool:
        """Whether it raises something when a stream is refused by a status."""
        return self.can_stream and self.way not in self.client.misses_errors

    @property
    def drops_last(self) -> bool:
        return self.way in self.client.drops_last

    def seen(self, message: str, status: int) -> str:
        """What a user sees of the server's message: all of it, or its status if the client hides the rest."""
        return f"{status}, message=" if self.error("validation").startswith("aiohttp.") else message

    def _answer(self, operation: str, url: str, messages: Messages, fields: Mapping[str, Any]) -> dict[str, Any]:
        return self.ask(operation, url, messages=messages, **{"temperature": 0, **fields})


def named(operation: str, way: Way) -> str:
    """An operation's name in a client's script."""
    return operation if way == "sync" else f"{operation}_async"
