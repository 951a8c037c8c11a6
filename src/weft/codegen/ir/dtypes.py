"""Element types of the loop IR and their relation to torch, NumPy and C.

Place in the pipeline: the lowest module of `codegen/`; every other one imports it.

The IR names an element type by a short string (`"f32"`, `"i64"`, …): kernels are plain data that
can be hashed, printed and cached without torch. A *memory type* is what a buffer holds; a *compute
type* is what a scalar node has. They differ only for the half types, which are loaded as `f32` and
rounded when stored:

>>> compute_type("bf16")
'f32'
>>> from_torch(torch.int64)
'i64'
"""

from __future__ import annotations

from typing import Final

import torch

DType = str
"""One of the keys of `ITEM_SIZE`."""

ITEM_SIZE: Final[dict[DType, int]] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2,
    "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1,
}

_FROM_TORCH: Final[dict[torch.dtype, DType]] = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "bool",
}
_TO_TORCH: Final = {name: dtype for dtype, name in _FROM_TORCH.items()}

HALF_TYPES: Final = frozenset({"f16", "bf16"})
FLOAT_TYPES: Final = frozenset({"f64", "f32", "f16", "bf16"})
INT_TYPES: Final = frozenset({"i64", "i32", "i16", "i8", "u8"})


def from_torch(dtype: torch.dtype) -> DType:
    """The IR's name of a torch dtype; KeyError for dtypes that the IR lacks (complex, quantised,
    …)."""
    return _FROM_TORCH[dtype]


def is_supported(dtype: torch.dtype) -> bool:
    """Whether a buffer of this torch dtype can appear in a kernel."""
    return dtype in _FROM_TORCH


def to_torch(dtype: DType) -> torch.dtype:
    """The torch dtype of an IR memory type."""
    return _TO_TORCH[dtype]


def compute_type(dtype: DType) -> DType:
    """The type of values loaded from a buffer of `dtype`."""
    return "f32" if dtype in HALF_TYPES else dtype


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The same for a torch dtype: float32 for the half types."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
