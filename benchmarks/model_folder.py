"""A copy of a model's folder whose texts never end early, so that every run has the same number of tokens."""

from __future__ import annotations

import json
from pathlib import Path


def write_endless_model(model: Path, folder: Path) -> Path:
    """Link everything of `model` into `folder`, but name a token as the end that greedy text practically never holds.

    Returns: `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    never = json.loads((model / "config.json").read_text())["vocab_size"] - 1
    for path in model.iterdir():
        target = folder / path.name
        if path.name in {"config.json", "generation_config.json"}:
            target.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": never}))
        else:
            target.symlink_to(path.resolve())
    return folder
