"""The cases of `slower_than_eager`: operators of PyTorch's op_db, blocks, and kinds of calls.

A case has a name, from which another process builds it again::

    operator:nn.functional.gelu:large:bfloat16:training
    block:rms_norm:medium:float32:inference
    call:two views:small:float32:inference

Operators get the arguments of op_db's samples. These are made of a few lengths (`S`, `M`, `L`),
which stand for other numbers here while a sample is drawn; of the samples that fit, the largest
counts.
Blocks are `operator_programs.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, final
from unittest import mock

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.calls_of_users import CALLS
from benchmarks.operator_programs import PROGRAMS

LENGTHS: Final[dict[str, dict[str, int]]] = {
    "small": {"XS": 3, "S": 5, "M": 10, "L": 20},
    "medium": {"XS": 8, "S": 24, "M": 64, "L": 512},
    "large": {"XS": 16, "S": 64, "M": 256, "L": 2048},
}
LARGEST: Final = 1 << 24
"""Bytes of arguments that a case has at most."""
SAMPLES: Final = 12
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODES: Final = ("inference", "training")
OP_INFO: Final = ("torch.testing._internal.opinfo", common_methods_invocations.__name__)
LEFT_OUT: Final = ("empty", "new_empty", "resize_", "to_sparse", "sparse.", "special.airy")
"""Operators whose results have no values, and layouts that are not compiled."""


@final
@dataclass(frozen=True)
class Case:
    """A function with its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def gradient_inputs(self) -> list[torch.Tensor]:
        """The arguments that get gradients."""
        leaves = tree_leaves((self.args, self.kwargs))
        return [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]


def names() -> Iterator[str]:
    """All cases, those of a kind in the order of their definitions."""
    for size in LENGTHS:
        for dtype in DTYPES:
            for mode in MODES:
                yield from (f"operator:{op.formatted_name}:{size}:{dtype}:{mode}" for op in op_db
                            if _is_measured(op, dtype, mode))
                if size == "medium":
                    yield from (f"block:{name}:{size}:{dtype}:{mode}" for name in PROGRAMS)
                yield from (f"call:{name}:{size}:{dtype}:{mode}" for name in CALLS)


def _is_measured(op: Any, dtype: str, mode: str) -> bool:
    is_taken = not op.name.startswith(LEFT_OUT) and DTYPES[dtype] in op.dtypes
    return is_taken and (mode == "inference" or op.supports_autograd)


def build(name: str) -> Case | None:
    """The case of this name; None if op_db has no sample that fits."""
    kind, rest = name.split(":", 1)
    what, size, dtype, mode = rest.rsplit(":", 3)
    torch.manual_seed(0)
    makers: dict[str, Callable[[str, str, torch.dtype, bool], Case | None]] = {
        "operator": _operator, "block": _block, "call": _call}
    return makers[kind](what, size, DTYPES[dtype], mode == "training")


def _operator(name: str, size: str, dtype: torch.dtype, train: bool) -> Case | None:
    op = next(op for op in op_db if op.formatted_name == name)
    with _lengths(LENGTHS[size]):
        samples = list(islice(_fitting(op, dtype, train), SAMPLES))
    if not samples:
        return None
    sample = max(samples, key=_bytes)
    function = op.op

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return Case(call, (sample.input, *sample.args), sample.kwargs)


def _fitting(op: Any, dtype: torch.dtype, train: bool) -> Iterator[Any]:
    samples = op.sample_inputs("cpu", dtype, requires_grad=train)
    return (s for s in islice(samples, 4 * SAMPLES) if _bytes(s) <= LARGEST)


def _bytes(sample: Any) -> int:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return sum(t.numel() * t.element_size() for t in leaves if isinstance(t, torch.Tensor))


@contextmanager
def _lengths(lengths: dict[str, int]) -> Iterator[None]:
    """Let op_db's samples have other lengths."""
    modules = [m for name, m in sys.modules.items() if name.startswith(OP_INFO)]
    with ExitStack() as stack:
        for module in modules:
            for name in lengths.keys() & vars(module).keys():
                stack.enter_context(mock.patch.object(module, name, lengths[name]))
        yield


def _block(name: str, size: str, dtype: torch.dtype, train: bool) -> Case:
    function, make = PROGRAMS[name]
    return Case(function, _arguments(make(1), dtype, train), {})


def _call(name: str, size: str, dtype: torch.dtype, train: bool) -> Case:
    make = CALLS[name]
    rows = {"small": 4, "medium": 64, "large": 1024}[size]
    function = make()
    arguments = (torch.randn(rows, 64), torch.randn(64, 64) / 8)
    return Case(function, _arguments(arguments, dtype, train), {})


def _arguments(values: tuple[Any, ...], dtype: torch.dtype, train: bool) -> tuple[Any, ...]:
    def convert(t: torch.Tensor) -> torch.Tensor:
        if not t.is_floating_point():
            return t
        return t.to(dtype).requires_grad_(train)

    converted: tuple[Any, ...] = tree_map_only(torch.Tensor, convert, values)
    return converted
