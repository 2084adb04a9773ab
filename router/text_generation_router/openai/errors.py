"""What can go wrong on these routes only, in TGI's words."""

from __future__ import annotations

from text_generation_router.errors import RequestError


class TemplateError(RequestError):
    """There is no chat template, or it does not take these messages."""

    status, error_type, failure = 422, "template_error", "template"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Template error: {reason}")


class ToolError(RequestError):
    """The tools asked for cannot be used, or the forced call did not come out whole."""

    status, error_type, failure = 422, "tool_error", "validation"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Tool error: {reason}")


class SuffixNotSupported(RequestError):
    status, error_type, failure = 422, "suffix not supported", "validation"

    def __init__(self) -> None:
        super().__init__("Suffix is not supported and can be achieved by preprocessing the prompt.")


class TooManyPrompts(RequestError):
    status, error_type, failure = 422, "batch size exceeded", "validation"

    def __init__(self, max_client_batch_size: int) -> None:
        super().__init__(f"Number of prompts exceeds the maximum allowed batch size of {max_client_batch_size}")


class NoInstances(RequestError):
    status, error_type, failure = 422, "Input validation error", "validation"

    def __init__(self) -> None:
        super().__init__("Input validation error")


class UnknownModel(RequestError):
    status, error_type, failure = 404, "not_found", "validation"

    def __init__(self, model: str, served: str) -> None:
        super().__init__(f"Model {model} is not served here; {served} is")
