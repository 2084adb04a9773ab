"""A checkpoint's sizes in numbers, from config.json and the headers of its safetensors files: no weight is read."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path

from text_generation_launcher.doctor.facts import ModelFacts
from text_generation_launcher.doctor.host import Host

_MAX_HEADER_BYTES = 100 << 20
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_NOT_LINEAR = ("embed_tokens", "lm_head")


def probe_model(host: Host, model_id: str | None, revision: str | None = None) -> ModelFacts:
    """The sizes of the model that `--model-id` names; a hub's model is looked for in the hub's cache."""
    if model_id is None:
        return ModelFacts(None, "no --model-id is given, so the demo model (under 1 GB) would be served")
    if model_id.endswith(".gguf"):
        return ModelFacts(None, f"{model_id} is a GGUF file, whose sizes are known once it is converted")
    folder = Path(model_id).expanduser()
    if not folder.is_dir():
        cached = _snapshot(host, model_id, revision or "main")
        if cached is None:
            return ModelFacts(None, f"{model_id} is not on this machine yet")
        folder = cached
    try:
        return _read(folder)
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, struct.error) as error:
        return ModelFacts(str(folder), f"{folder} does not give its sizes: {_describe(error)}")


def _read(folder: Path) -> ModelFacts:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    heads = int(config["num_attention_heads"])
    floats, linear, others, dtypes = 0, 0, 0, set()
    files = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("adapter_"))
    whole = [path for path in files if path.name == "model.safetensors"]
    for name, dtype, shape in _tensors(whole or [path for path in files if not path.name.startswith("consolidated")]):
        if dtype in _FLOATS:
            dtypes.add(_FLOATS[dtype])
            floats += prod(shape)
            if len(shape) == 2 and not any(part in name for part in _NOT_LINEAR):
                linear += prod(shape)
        else:
            others += prod(shape) * _ITEM_BYTES.get(dtype, 1)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    return ModelFacts(
        folder=str(folder),
        num_layers=int(config["num_hidden_layers"]),
        num_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        max_positions=int(config.get("max_position_embeddings") or config.get("max_sequence_length") or 0),
        scales_positions=kind != "default",
        dtypes=tuple(sorted(dtypes)) or _stated_dtype(config),
        float_elements=floats,
        linear_elements=linear,
        other_bytes=others,
        is_quantized=bool(config.get("quantization_config")),
        stored_bytes=sum(
            path.stat().st_size for pattern in ("*.safetensors", "*.bin") for path in folder.glob(pattern)
        ),
    )


def _stated_dtype(config: dict[str, object]) -> tuple[str, ...]:
    stated = config.get("dtype") or config.get("torch_dtype")
    return (str(stated).removeprefix("torch."),) if stated else ()


def _tensors(files: list[Path]) -> Iterator[tuple[str, str, list[int]]]:
    """(name, dtype, shape) of every tensor."""
    for path in files:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _MAX_HEADER_BYTES:
                raise ValueError(f"{path.name} has no safetensors header")
            header = json.loads(file.read(size))
        for name, tensor in header.items():
            if name != "__metadata__":
                yield name, str(tensor["dtype"]), [int(length) for length in tensor["shape"]]


def _snapshot(host: Host, model_id: str, revision: str) -> Path | None:
    """Where the hub's cache has this model, if it has."""
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model_id):
        return None
    environ = host.environ
    user_cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '')}/.cache"
    hub_home = environ.get("HF_HOME") or f"{user_cache}/huggingface"
    cache = Path(environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE") or f"{hub_home}/hub")
    folder = cache / f"models--{model_id.replace('/', '--')}"
    try:
        commit = (folder / "refs" / revision).read_text().strip()
    except OSError:
        commit = revision
    found = folder / "snapshots" / commit
    return found if (found / "config.json").is_file() else None


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{Path(str(error.filename)).name}: {error.strerror}"
    if isinstance(error, KeyError):
        return f"config.json has no {error.args[0]}"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "a file is not valid JSON"
    return str(error) or type(error).__name__
