"""A checkpoint's tensors by name, read lazily and in parts, whatever files they lie in.

Knows file formats; knows nothing about models, ranks or devices. What it hands out may be a view of a mapped file:
read-only for the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from text_generation_kernels.errors import first_line
from text_generation_server.weights.folder import CheckpointError, weight_files

_LFS_POINTER = b"version https://git-lfs"


class _Part(Protocol):
    """One weight file."""

    path: Path

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str, region: tuple[slice, ...]) -> Tensor: ...


class _SafetensorsPart:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Opening checks that the header and the file's length agree, so a truncated download ends here.
            self._file: Any = safe_open(str(path), framework="pt", device="cpu")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(_describe_unreadable(path, error)) from None

    def names(self) -> list[str]:
        return list(self._file.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(name).get_shape())

    def read(self, name: str, region: tuple[slice, ...]) -> Tensor:
        part: Tensor = self._file.get_slice(name)[region] if region else self._file.get_tensor(name)
        return part


class _PickledPart:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            try:
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError:
                # Files from before torch 1.6 are no zip archives and cannot be mapped.
                content = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged pickle raises whatever its bytes happen to mean
            raise CheckpointError(_describe_unreadable(path, error)) from None
        if not isinstance(content, dict):
            raise CheckpointError(f"{path}: holds a {type(content).__name__}, not named tensors")
        self._tensors: dict[str, Tensor] = {k: v for k, v in content.items() if isinstance(v, Tensor)}

    def names(self) -> list[str]:
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def read(self, name: str, region: tuple[slice, ...]) -> Tensor:
        return self._tensors[name][region]


def _describe_unreadable(path: Path, error: Exception) -> str:
    try:
        with path.open("rb") as file:
            start = file.read(len(_LFS_POINTER))
    except OSError as unreadable:
        return f"{path}: cannot be read: {unreadable.strerror}"
    if start == _LFS_POINTER:
        return f"{path}: is a Git LFS pointer, not the weights; run git lfs pull"
    reason = first_line(error)
    return f"{path}: cannot be read, it may be truncated or damaged; download it again ({reason})"


class Checkpoint:
    """Named tensors of a model folder.

    Names are those of transformers' causal models (`model.layers.0...`, `lm_head.weight`). A folder that was saved
    from the inner model has them without `model.`; both are found.
    """

    def __init__(self, folder: Path) -> None:
        """Open every weight file of `folder`; tensors are read later. Raises CheckpointError."""
        self.folder = folder
        self._parts: dict[str, _Part] = {}
        self._read_names: set[str] = set()
        for path in weight_files(folder):
            part: _Part = _SafetensorsPart(path) if path.suffix == ".safetensors" else _PickledPart(path)
            for name in part.names():
                other = self._parts.setdefault(name, part)
                if other is not part:
                    raise CheckpointError(f"{folder}: {name} is in both {other.path.name} and {path.name}")

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parts.clear()

    def names(self) -> Iterator[str]:
        """Names as the files have them."""
        return iter(self._parts)

    def unread_names(self) -> list[str]:
        """Names that nothing has asked for yet."""
        return sorted(self._parts.keys() - self._read_names)

    def has(self, name: str) -> bool:
        return self._stored_name(name) is not None

    def shape(self, name: str) -> tuple[int, ...]:
        stored, part = self._find(name)
        return part.shape(stored)

    def get(self, name: str) -> Tensor:
        """The whole tensor, on the host, in the checkpoint's dtype."""
        return self._read(name, ())

    def get_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Elements [start, stop) of the first dimension."""
        return self._read(name, (slice(start, stop),))

    def get_columns(self, name: str, start: int, stop: int) -> Tensor:
        """Elements [start, stop) of the second dimension."""
        return self._read(name, (slice(None), slice(start, stop)))

    def _read(self, name: str, region: tuple[slice, ...]) -> Tensor:
        stored, part = self._find(name)
        self._read_names.add(stored)
        tensor = part.read(stored, region)
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise CheckpointError(f"{part.path}: {stored} is {tensor.dtype}; only 16, 32 and 64 bit floats are served")
        return tensor

    def _find(self, name: str) -> tuple[str, _Part]:
        stored = self._stored_name(name)
        if stored is None:
            raise CheckpointError(f"{self.folder}: the weights have no tensor {name}")
        return stored, self._parts[stored]

    def _stored_name(self, name: str) -> str | None:
        return next((n for n in (name, name.removeprefix("model.")) if n in self._parts), None)
