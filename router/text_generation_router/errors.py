"""What can go wrong with a client's request, in TGI's words. Knows statuses and messages, not HTTP.

Each class is one row of the contract's table of errors; `failure` is its label in `tgi_request_failure`.
"""

from __future__ import annotations

from typing import ClassVar


class RequestError(Exception):
    """A request that ends without its answer. str() of it is the `error` that the client reads."""

    status: ClassVar[int]
    error_type: ClassVar[str]
    failure: ClassVar[str]


class InvalidRequest(RequestError):
    """A parameter, or the prompt, breaks a rule or a limit."""

    status, error_type, failure = 422, "validation", "validation"

    def __init__(self, message: str) -> None:
        super().__init__(f"Input validation error: {message}")


class BodyNotJson(RequestError):
    status, error_type, failure = 400, "validation", "validation"

    def __init__(self, reason: str, line: int, column: int) -> None:
        super().__init__(f"Failed to parse the request body as JSON: {reason} at line {line} column {column}")


class BodyMismatch(RequestError):
    """JSON, but not the shape that the route takes."""

    status, error_type, failure = 422, "validation", "validation"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Failed to deserialize the JSON body into the target type: {reason}")


class BodyTooLarge(RequestError):
    status, error_type, failure = 413, "validation", "validation"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"Failed to buffer the request body: length limit exceeded ({limit_bytes} bytes, see --payload-limit)"
        )


class Overloaded(RequestError):
    status, error_type, failure = 429, "overloaded", "overloaded"

    def __init__(self) -> None:
        super().__init__("Model is overloaded")


class ShuttingDown(RequestError):
    status, error_type, failure = 503, "overloaded", "overloaded"

    def __init__(self) -> None:
        super().__init__("Server is shutting down")


class QueueTimeout(RequestError):
    """Nothing of the request has run, so that it may be sent again, here or elsewhere."""

    status, error_type, failure = 429, "overloaded", "queue_timeout"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"Model is overloaded: not started within {limit_s:g} s, see --queue-timeout-s")


class RequestTimeout(RequestError):
    status, error_type, failure = 504, "timeout", "timeout"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"Request timed out: not finished within {limit_s:g} s, see --request-timeout-s")


class Unauthorized(RequestError):
    status, error_type, failure = 401, "unauthorized", "unauthorized"

    def __init__(self) -> None:
        super().__init__("Unauthorized")


class GenerationError(RequestError):
    """The shards failed."""

    status, error_type, failure = 424, "generation", "generation"

    def __init__(self, message: str) -> None:
        super().__init__(f"Request failed during generation: Server error: {message}")


class IncompleteGeneration(RequestError):
    """The tokens of a plain request ended without a last one."""

    status, error_type, failure = 500, "incomplete_generation", "incomplete"

    def __init__(self) -> None:
        super().__init__("Incomplete generation")


class IncompleteStream(RequestError):
    """The same, of a streaming request."""

    status, error_type, failure = 500, "incomplete_generation_stream", "incomplete"

    def __init__(self) -> None:
        super().__init__("Incomplete generation stream")


class InternalError(RequestError):
    """A bug of ours: the log has the facts."""

    status, error_type, failure = 500, "internal", "internal"

    def __init__(self) -> None:
        super().__init__("Internal server error")


class Unhealthy(RequestError):
    status, error_type, failure = 503, "healthcheck", "generation"

    def __init__(self) -> None:
        super().__init__("unhealthy")
