"""Callables that make, view and multiply tensors: the building blocks of generated call sequences.

Place in the pipeline: requested by `codegen/calls/call_sequence.py`. `torch.empty_strided` and
`torch.as_strided` take a microsecond each, mostly to read their arguments; these callables have
read them before (`csrc/tensor_calls.c`)::

    make = empty(((4, n), (n, 1), 0), torch.float32, device)      # n: an int, or None
    make()                                                        # or make(n) and so on

If torch lacks one of the C functions, the same is done in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeAlias, final
from weakref import WeakKeyDictionary

import torch

from weft import _calls
from weft.runtime.launcher import tensor_offset
from weft.shapes.algebra.layout import row_major

Number: TypeAlias = int | None
Layout: TypeAlias = tuple[tuple[Number, ...], tuple[Number, ...] | None, Number]
"""Sizes, strides, offset from the first element of what is viewed; None: given at the call. Strides
that are None altogether are row-major."""
TensorCall: TypeAlias = Callable[..., torch.Tensor]

FUNCTIONS: Final = (
    "aoti_torch_empty_strided", "aoti_torch__reinterpret_tensor",
    "aoti_torch_delete_tensor_object", "aoti_torch_mm_out", "aoti_torch_addmm_out",
    "aoti_torch_bmm_out",
)
WRAP: Final = (
    "_Z16THPVariable_WrapRKN2at10TensorBaseE",
    "_Z16THPVariable_WrapN2at10TensorBaseE",
)
"""THPVariable_Wrap(const TensorBase&), in earlier versions THPVariable_Wrap(TensorBase)."""
PRODUCTS: Final[dict[str, TensorCall]] = {"mm": torch.mm, "addmm": torch.addmm, "bmm": torch.bmm}
MAX_DIMS: Final = 12
CACHED: Final = 4096


@final
class Making(NamedTuple):
    """The function of this module that makes a callable, and its arguments."""

    function: str
    arguments: tuple[Any, ...]


_MAKING: Final[WeakKeyDictionary[TensorCall, Making]] = WeakKeyDictionary()


def making_of(call: Any) -> Making | None:
    """How a callable of this module was made; None for others."""
    is_of_c = isinstance(call, (_calls.Empty, _calls.View, _calls.Product))
    function = call.fallback if is_of_c else call
    return _MAKING.get(function) if isinstance(function, FunctionType) else None


@lru_cache(CACHED)
def empty(layout: Layout, dtype: torch.dtype, device: torch.device) -> TensorCall:
    """Makes tensors of this layout."""

    def in_python(*numbers: int) -> torch.Tensor:
        sizes, strides, _ = _fill(layout, numbers)
        return torch.empty_strided(sizes, strides, dtype=dtype, device=device)

    _MAKING[in_python] = Making("empty", (layout, dtype, device))
    where = _where(device)
    if where is None or not _fits(layout):
        return in_python
    return _calls.Empty(layout, _code(dtype), *where, in_python)


@lru_cache(CACHED)
def view(layout: Layout) -> TensorCall:
    """A callable that gives a tensor's memory another layout."""

    def in_python(tensor: torch.Tensor, *numbers: int) -> torch.Tensor:
        sizes, strides, offset = _fill(layout, numbers)
        return torch.as_strided(tensor, sizes, strides, tensor.storage_offset() + offset)

    _MAKING[in_python] = Making("view", (layout,))
    if not (configured() and _fits(layout)):
        return in_python
    return _calls.View(layout, in_python)


@lru_cache(CACHED)
def product(
    kind: str, operands: tuple[Layout | None, ...], result: Layout, dtype: torch.dtype,
    device: torch.device,
) -> TensorCall:
    """A callable that multiplies tensors by `mm`, `addmm` or `bmm`, each seen in a layout (None: as
    it is).

    The numbers that the operands' layouts leave open follow the tensors, then those of the result's
    layout.
    """
    views = [None if layout is None else view(layout) for layout in operands]
    counts = [0 if layout is None else _count_open(layout) for layout in operands]
    function = PRODUCTS[kind]

    def in_python(*arguments: object) -> torch.Tensor:
        rest = iter(arguments[len(operands) :])
        return function(*[
            t if v is None else v(t, *islice(rest, count))
            for v, t, count in zip(views, arguments, counts, strict=False)
        ])

    _MAKING[in_python] = Making("product", (kind, operands, result, dtype, device))
    where = _where(device)
    if where is None or not _fits(result):
        return in_python
    return _calls.Product(kind, operands, result, _code(dtype), *where, in_python)


def _fill(layout: Layout, numbers: tuple[int, ...]) -> tuple[list[int], list[int], int]:
    """A layout's numbers with those given at the call."""
    sizes, strides, offset = layout
    rest = iter(numbers)
    filled = list(_known_numbers(sizes, rest))
    steps = list(row_major(filled)) if strides is None else list(_known_numbers(strides, rest))
    return filled, steps, next(_known_numbers((offset,), rest))


def _count_open(layout: Layout) -> int:
    """How many numbers of the layout are passed at the call."""
    sizes, strides, offset = layout
    return [*sizes, *(strides or ()), offset].count(None)


def _known_numbers(numbers: tuple[Number, ...], rest: Iterator[int]) -> Iterator[int]:
    return (next(rest) if n is None else n for n in numbers)


def _fits(layout: Layout) -> bool:
    return len(layout[0]) <= MAX_DIMS


@cache
def configured() -> bool:
    """Tell the C callables where torch's functions are, once; returns whether torch has them
    all."""
    libraries = Path(torch.__file__).parent / "lib"
    try:
        cpu = ctypes.CDLL(str(libraries / "libtorch_cpu.so"))
        python = ctypes.CDLL(str(libraries / "libtorch_python.so"))
        addresses = [_address(cpu, name) for name in FUNCTIONS]
        wrap = next(_address(python, name) for name in WRAP if hasattr(python, name))
        offset = tensor_offset()
    except (OSError, AttributeError, StopIteration, RuntimeError):
        return False
    _calls.configure(offset, *addresses, wrap)
    return True


def _address(library: ctypes.CDLL, name: str) -> int:
    address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    assert address is not None
    return address


def _where(device: torch.device) -> tuple[int, int] | None:
    """torch's numbers for a device; None if only Python can use it."""
    if not configured() or device.type not in ("cpu", "cuda"):
        return None
    if device.type == "cuda" and device.index is None:
        return None
    return _device_code(device.type), device.index or 0


@cache
def _device_code(kind: str) -> int:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    code: int = getattr(library, f"aoti_torch_device_type_{kind}")()
    return code


@cache
def _code(dtype: torch.dtype) -> int:
    """torch's number for a dtype, read from a tensor."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    tensor, code = torch.empty(0, dtype=dtype, device="cpu"), ctypes.c_int32(-1)
    library.aoti_torch_get_dtype(ctypes.c_void_p(id(tensor) + tensor_offset()), ctypes.byref(code))
    return code.value
