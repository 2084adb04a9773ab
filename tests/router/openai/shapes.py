"""Whether an answer is what the OpenAPI document says."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel


def strictly(model: type[BaseModel], content: Any) -> None:
    """The content has the model's keys and no others, at any depth."""
    parsed = model.model_validate(content)
    assert json.loads(parsed.model_dump_json(exclude_unset=True)) == content
