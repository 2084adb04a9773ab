"""How a plain torch without C++ gets a tensor on another device with a real storage.

A host tensor is exported through DLPack, the device field of the capsule is changed from "CPU" to "extension device",
which torch maps to PrivateUse1, and the capsule is imported again. The result has a genuine storage on `npu:<n>` whose
bytes are the host's; ATen's own deleter ends both. (A deleter written in Python fails when a tensor dies while an
exception is on its way.) The host storage came from DLPack itself, so that no kernel can resize it under our feet.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

_EXTENSION_DEVICE = 12


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Tensor(ctypes.Structure):
    """The head of DLManagedTensor: the address of the data, then the device."""

    _fields_ = (("data", ctypes.c_void_p), ("device", _Device))


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


_to_dlpack = torch._C._to_dlpack
_from_dlpack = torch._C._from_dlpack


def new_host_bytes(nbytes: int) -> Tensor:
    """A flat uint8 tensor on the host that nobody can resize; at least one byte, so that each has its own address."""
    host: Tensor = _from_dlpack(_to_dlpack(torch.empty(max(nbytes, 1), dtype=torch.uint8, device="cpu")))
    return host


def on_card(host: Tensor, device: int) -> Tensor:
    """A flat uint8 tensor on `npu:<device>` over the bytes of a flat host tensor, which live as long as it does."""
    capsule = _to_dlpack(host)
    head = ctypes.cast(_capsule_pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    head.device.type = _EXTENSION_DEVICE
    head.device.id = device
    card: Tensor = _from_dlpack(capsule)
    return card


def weak(tensor: Tensor) -> StorageWeakRef:
    """A reference to a tensor's storage that does not keep it."""
    return StorageWeakRef(tensor.untyped_storage())


def strong(reference: StorageWeakRef) -> torch.UntypedStorage:
    """The storage of a reference that has not expired."""
    return torch.UntypedStorage._new_with_weak_ptr(reference.cdata)


def flat_host_tensor(storage: torch.UntypedStorage) -> Tensor:
    """All bytes of a host storage."""
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, 0, (storage.nbytes(),), (1,))
