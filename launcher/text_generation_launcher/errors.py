"""The one error of this package: what ends the launcher with exit status 1, in TGI's words."""

from __future__ import annotations

import json


class LauncherError(Exception):
    """`kind` is TGI's name of the failure. str() is what follows `Error: ` on stderr: `ArgumentValidation("...")`."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message

    def __str__(self) -> str:
        return f"{self.kind}({json.dumps(self.message, ensure_ascii=False)})" if self.message else self.kind


def invalid(message: str) -> LauncherError:
    """An argument, or a combination of arguments, that cannot work."""
    return LauncherError("ArgumentValidation", message)
