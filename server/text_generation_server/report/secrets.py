"""What must not leave the machine: which variables are shown at all, and what is cut out of every text.

A variable is shown if its name belongs to serving; one that may hold a secret is named without its value, and that
value is cut out wherever else it turns up.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

HIDDEN = "[removed]"
_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE|(^|_)(API_?KEY|KEY|AUTH|AUTHTOKEN|PWD|AK|SK)(_|$)")
# Numbers and words that a name such as MAX_TOTAL_TOKENS holds are no secrets, and would cut holes into every text.
_LEAST_SECRET_LENGTH = 8
_PREFIXES = (
    "ACL",
    "ACLNN",
    "ASCEND",
    "ASDOPS",
    "ATB",
    "CANN",
    "CPU_AFFINITY",
    "GE_",
    "HCCL",
    "HF_",
    "INF_NAN",
    "LCCL",
    "LD_",
    "MA_",
    "MODELSCOPE",
    "NPU",
    "OMP",
    "PYTHON",
    "PYTORCH",
    "TASK_QUEUE",
    "TEXT_GENERATION",
    "TORCH",
    "TOOLCHAIN",
)
_NAMES = ("CONDA_DEFAULT_ENV", "LANG", "LC_ALL", "LOG_LEVEL", "PATH", "VIRTUAL_ENV")
_PATTERNS = (
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), HIDDEN),
    (re.compile(r"\bms-[0-9a-f]{8}-[0-9a-f-]{20,}"), HIDDEN),
    (re.compile(r"(?i)\b(bearer)\s+[\w.~+/=-]{6,}"), rf"\1 {HIDDEN}"),
    (re.compile(r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?)[^\"'\n]+"), rf"\1{HIDDEN}"),
    (re.compile(r"://[^/\s:@]+:[^/\s@]+@"), f"://{HIDDEN}@"),
    (re.compile(r"(?i)((?:token|secret|password|passwd|api[_-]?key)\"?\s*[=:]\s*\"?)[^\s\",;&]{6,}"), rf"\1{HIDDEN}"),
)


def is_secret(name: str) -> bool:
    """Whether a variable's value must not be shown."""
    return _SECRET_NAME.search(name.upper()) is not None and not name.upper().endswith("TOKENS")


def belongs_to_serving(name: str, options: Collection[str] = ()) -> bool:
    """Whether a variable's name has to do with serving; `options` are names that options read."""
    return name in options or name in _NAMES or name.startswith(_PREFIXES)


class Redactor:
    """Cuts out of a text what must not be in it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        values = {value for name, value in environ.items() if is_secret(name)}
        self._secrets = sorted((value for value in values if len(value) >= _LEAST_SECRET_LENGTH), key=len, reverse=True)
        self._home = environ.get("HOME", "").rstrip("/")

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return re.sub(rf"{re.escape(self._home)}(?=/|\b)", "~", text) if len(self._home) > 1 else text
