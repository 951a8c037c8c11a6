"""Compiled C++ kernels as callables.

Place in the pipeline: after `compile_pool.py`; what generated call sequences call. The call itself
is C (`weft._cpu.Kernel`): reading the arguments costs some 10 ns each.

    kernel = kernel_of(submit([text])[0], buffers=2, sizes=1, name="add_relu")
    kernel(x, out, n)
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, final

import torch

from weft import _cpu
from weft.runtime.compile_pool import Compiling


@final
@dataclass(frozen=True, slots=True)
class KernelSource:
    """What a kernel was made of, and what keeps its code loaded: a kernel holds it as `keep`."""

    text: str
    buffers: int
    sizes: int
    name: str
    library: ctypes.CDLL


@cache
def configure() -> None:
    """Tell the C launcher where to find a tensor's data (once)."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    address = ctypes.cast(library.aoti_torch_get_data_ptr, ctypes.c_void_p).value
    assert address is not None
    _cpu.configure(tensor_offset(), address)


@cache
def tensor_offset() -> int:
    """The offset in bytes from a torch.Tensor object to the at::Tensor in it, found by comparing
    pointers."""
    tensor = torch.empty(1, device="cpu")
    words = (ctypes.c_uint64 * (type(tensor).__basicsize__ // 8)).from_address(id(tensor))
    wanted: int = tensor._cdata
    for position in range(2, len(words)):  # after the object header
        if words[position] == wanted:
            return position * 8
    raise RuntimeError("this torch keeps its tensors where weft does not find them")


def kernel_of(source: Compiling, *, buffers: int, sizes: int, name: str) -> _cpu.Kernel:
    """The function of a compiled source as a callable."""
    configure()
    library = source.library()
    address = ctypes.cast(getattr(library, source.symbol), ctypes.c_void_p).value
    assert address is not None
    kept = KernelSource(source.text, buffers, sizes, name, library)
    return _cpu.Kernel(address, buffers, sizes, name, kept)


def bits_of(number: float) -> int:
    """A double as kernels receive it: the integer of its bits (`double_of` turns it back)."""
    return int(_BITS.unpack(_DOUBLE.pack(number))[0])


_BITS: Final = struct.Struct("<q")
_DOUBLE: Final = struct.Struct("<d")
