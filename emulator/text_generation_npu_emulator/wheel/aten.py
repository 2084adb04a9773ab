"""The aten ops of the real torch_npu, computed by the emulator's kernels instead of a card's.

torch_npu registers a kernel of its own for each op that a card computes. All are replaced but those that make tensors,
view them, or look at them: these are C++ that works as it is, and the point of this host.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from text_generation_npu_emulator.aten import PRODUCTS, copy_from, launched, to_copy
from text_generation_npu_emulator.fallback import fallback

_KEY = "PrivateUse1"
_PACKETS_KEPT = frozenset(
    {"empty", "empty_strided", "empty_like", "new_empty_strided", "resize_", "resize_as_", "set_", "is_set_to"}
    | {"as_strided", "as_strided_", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex"}
    | {"record_stream", "is_pinned", "_pin_memory", "_local_scalar_dense"}
)
# What torch makes of other ops, it makes of them on the other host, too.
_COMPOSED = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return copy_from(source, target, non_blocking)


def _composed(op: OpOverload) -> Callable[..., Any] | None:
    for name in _COMPOSED:
        key = getattr(torch._C.DispatchKey, name)
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), name):
            return partial(op._op_dk, key)
    return None


def replace_kernels() -> torch.library.Library:
    """Put the emulator's kernels in the place of torch_npu's. They stay for as long as what is returned."""
    library = torch.library.Library("aten", "IMPL")
    special: dict[str, Callable[..., Any]] = {"copy_": _copy, "_to_copy": to_copy, "clone": to_copy}
    special |= {kernel.name: launched(kernel) for kernel in PRODUCTS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are overridden
        for qualified in torch._C._dispatch_get_registrations_for_dispatch_key(_KEY):
            namespace, _, name = qualified.partition("::")
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
            if namespace != "aten" or packet in _PACKETS_KEPT or op is None:
                continue
            function = special.get(name) or _composed(op) or partial(fallback, op)
            library.impl(name, function, _KEY, allow_override=True)
    return library
