"""What operators do besides computing a result: they write arguments, and refuse some data.

Place in the pipeline: noted while `MemoFakeMode` runs the operators of a call that capture
records, so that a graph that fails can leave what it writes as it was; asked by codegen, which
writes inputs in place only behind the last operator that may fail::

    may_refuse(aten.index_select.default, (x, 0, places), {})       # True: an index out of range
    may_refuse(aten.floor_divide.default, (floats, floats), {})     # False; True of integers
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, Protocol, TypeVar, final

import torch

from weft._torch import OpOverload

_T = TypeVar("_T")

_BY_PLACE: Final = re.compile(
    r"_?(unsafe_|index_put_impl_)?index(_put|_select|_add|_copy|_fill|_reduce)?(_impl)?_?|take|put_?"
    r"|gather|scatter(_add|_reduce)?_?|embedding(_bag|_renorm_?)?|_embedding_bag(_forward_only)?"
    r"|_unsafe_masked_index(_put_accumulate)?|nll_loss\w*|multi(label)?_?margin_loss\w*|one_hot"
    r"|max_unpool\w*|multinomial|bernoulli_?|binomial|poisson|binary_cross_entropy|normal"
    r"|searchsorted|\w*assert_(async|scalar)"
)
"""Operators that a CPU's kernel ends with an error where a place (or a probability) is out of
range. On a GPU, the device's assertion ends the process."""

_BY_VALUE: Final = re.compile(
    r"_?linalg_\w+|cholesky\w*|svd|qr|inverse|det|lu_\w+|_lu_\w+|ormqr|geqrf|triangular_solve"
    r"|hist(c|ogram\w*)|_histogramdd\w*|bincount|masked_scatter_?|repeat_interleave|(nan)?quantile"
    r"|_?ctc_loss\w*|_pad_packed_sequence|_pack_padded_sequence|segment_reduce"
    r"|fractional_max\w*|\w*sparse\w*|\w*quantize\w*|_nested\w*|_validate\w*"
)
"""Operators that look at their data and raise on any device."""

_OF_INTEGERS: Final = frozenset({"div", "floor_divide", "remainder", "fmod"})
"""Operators that raise where an integer divisor is 0 (by their names without the last `_`)."""

_NEVER: Final = frozenset({
    "linalg_vector_norm", "linalg_cross", "linalg_diagonal", "linalg_matmul", "linalg_vecdot",
    "bernoulli.p", "bernoulli_.float", "normal.float_float",
})
"""Exceptions to these names, some with an overload's."""

_OWN: Final = frozenset({"aten", "prims", "prim", "_c10d_functional", "c10d", "inductor"})
"""Namespaces of operators whose errors are known."""


@cache
def _written_arguments(func: OpOverload) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments that an operator writes."""
    if not func._schema.is_mutable:
        return ()
    return tuple((i, a.name) for i, a in enumerate(func._schema.arguments)
                 if a.alias_info is not None and a.alias_info.is_write)


@cache
def _refuses(func: OpOverload) -> str:
    """For what an operator may raise though its arguments' types and sizes fit."""
    if func.namespace not in _OWN:
        own = func.namespace == "weft" and not func._schema.name.endswith("_functional")
        return "" if own else "value"
    if func.is_view or func.namespace != "aten":
        return ""
    name = func._schema.name.removeprefix("aten::")
    plain = name.removesuffix("_").removeprefix("_foreach_")
    if plain in _OF_INTEGERS:
        return "integer"
    if name in _NEVER or f"{name}.{func._overloadname}" in _NEVER or name.endswith("_backward"):
        return ""
    if _BY_PLACE.fullmatch(name):
        return "place"
    return "value" if _BY_VALUE.fullmatch(name) else ""


class Operand(Protocol):
    """A tensor, or what stands for one."""

    dtype: torch.dtype
    device: torch.device


def may_refuse(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any],
    kind: type[Operand] = torch.Tensor,
) -> bool:
    """Whether the operator may raise because of the data of its arguments; `kind` is the class of
    those that are tensors."""
    cause = _refuses(func)
    if not cause:
        return False
    tensors = [*_tensors(args, kind), *_tensors(kwargs.values(), kind)]
    if cause == "integer":
        return _divides_by_zero(func, args, kwargs, tensors)
    if cause == "place" and tensors and all(t.device.type != "cpu" for t in tensors):
        return False
    by_masks = ("::index" in func._schema.name and func._overloadname == "Tensor") or (
        "index_put" in func._schema.name)
    return not by_masks or any(
        t.dtype is not torch.bool for t in _tensors(args[1:2], kind))


def _divides_by_zero(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: list[Operand]
) -> bool:
    """Whether it may be a division of integers by 0 (of floats, that is no error)."""
    divisor = args[1] if len(args) > 1 else None
    if isinstance(divisor, (int, float)) and divisor != 0:
        return False
    if func._schema.name.startswith("aten::div") and kwargs.get("rounding_mode") is None:
        return False
    return not any(t.dtype.is_floating_point or t.dtype.is_complex for t in tensors)


def _tensors(values: Iterable[Any], kind: type[_T]) -> Iterator[_T]:
    for value in values:
        if isinstance(value, kind):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value, kind)


@final
class OperatorNotes:
    """What the operators of one call do, as they run on fakes."""

    __slots__ = ("refuses", "written")

    def __init__(self) -> None:
        self.written: dict[int, torch.UntypedStorage] = {}
        """The memory that they write, by its address (it lives on, so that none has the same)."""
        self.refuses = False
        """Whether one of them may raise because of data."""

    def note(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note an operator that is about to run."""
        for position, name in _written_arguments(func):
            self.note_write(args[position] if position < len(args) else kwargs.get(name))
        if not self.refuses and _refuses(func):
            self.refuses = may_refuse(func, args, kwargs)

    def note_write(self, value: object) -> None:
        """Note that a tensor, or those in a list, are written."""
        for tensor in _tensors((value,), torch.Tensor):
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                self.written[storage._cdata] = storage
