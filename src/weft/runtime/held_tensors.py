"""Tensors as they are at a call, to be compared with what they are later.

Place in the pipeline: the forward that `aot/training/forward_code.py` writes holds the inputs that
it saves. `p.data = other` gives a tensor other memory, and nothing tells::

    held = hold((w,))
    w.data = torch.zeros(3)
    held.changed(), held.old()      # True, [a tensor with the old memory]

If torch lacks one of the C functions (`csrc/held_tensors.c`), the same is done in Python.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Final, Protocol, final

import torch

from weft import _held
from weft._torch import are_functorch_transforms_active, top_saved_tensors_default_hooks
from weft.runtime.launcher import tensor_offset
from weft.runtime.tensor_calls import WRAP

FUNCTIONS: Final = (
    "aoti_torch_get_data_ptr", "aoti_torch_get_dim", "aoti_torch_get_sizes",
    "aoti_torch_get_strides", "aoti_torch_get_dtype", "aoti_torch_get_device_type",
    "aoti_torch__reinterpret_tensor", "aoti_torch_delete_tensor_object",
)


class Held(Protocol):
    """Some tensors as they were."""

    def changed(self) -> bool:
        """Whether one has other memory or another layout now."""

    def old(self) -> list[torch.Tensor | None]:
        """For each that has changed, what it was, without a gradient; None for others."""

    def release(self) -> None:
        """Hold nothing any more: from then on nothing has changed."""


def hold(tensors: tuple[torch.Tensor, ...]) -> Held:
    """What the tensors are now; nothing if the program's hooks decide what is saved."""
    if top_saved_tensors_default_hooks(True) is not None or are_functorch_transforms_active():
        return _HeldInPython(())
    return (_held.Held if configured() else _HeldInPython)(tensors)


@final
class _HeldInPython:
    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        self._pairs = [(t, t.detach()) for t in tensors]

    def changed(self) -> bool:
        return any(map(_differ, self._pairs))

    def old(self) -> list[torch.Tensor | None]:
        return [pair[1] if _differ(pair) else None for pair in self._pairs]

    def release(self) -> None:
        self._pairs.clear()


def _differ(pair: tuple[torch.Tensor, torch.Tensor]) -> bool:
    now, then = pair
    return now.data_ptr() != then.data_ptr() or not has_layout(now, then)


def has_layout(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the tensor has the type, device, sizes and strides of the other."""
    return (tensor.dtype == other.dtype and tensor.device == other.device
            and tensor.size() == other.size() and tensor.stride() == other.stride())


@cache
def configured() -> bool:
    """Tell the C type where torch's functions are, once; returns whether torch has them all."""
    libraries = Path(torch.__file__).parent / "lib"
    try:
        cpu = ctypes.CDLL(str(libraries / "libtorch_cpu.so"))
        python = ctypes.CDLL(str(libraries / "libtorch_python.so"))
        functions = [getattr(cpu, name) for name in FUNCTIONS]
        functions.append(next(getattr(python, name) for name in WRAP if hasattr(python, name)))
        offset = tensor_offset()
    except (OSError, AttributeError, StopIteration, RuntimeError):
        return False
    _held.configure(offset, *(ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions))
    return True
