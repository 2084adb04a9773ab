"""Lets a test call functions in a client's environment: one JSON object a line in, one out, in order.

In: {"operation": name, "arguments": {...}}. Out: {"result": ...}, or {"error": "module.Class", "message": ...} for
what the client raised. Runs with the client's interpreter, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any


def serve(operations: Mapping[str, Callable[..., Any]]) -> None:
    """Answer calls until standard input ends. Arguments are passed by name; results must be JSON."""
    replies = sys.stdout
    sys.stdout = sys.stderr  # what a library prints is not a reply
    for line in sys.stdin:
        call = json.loads(line)
        reply: dict[str, Any]
        try:
            reply = {"result": operations[call["operation"]](**call["arguments"])}
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__module__}.{type(error).__qualname__}", "message": str(error)}
        print(json.dumps(reply), file=replies, flush=True)
