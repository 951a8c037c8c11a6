"""Which operators may raise because of their operands' data, though types and sizes fit.

Place in the pipeline: the one table of such errors. Capture asks while operators run on fakes, so
that a graph that fails can leave what it writes as it was; dead code elimination and the partition
keep what raises; codegen writes inputs in place only behind the last operator that may raise::

    x[i]                   # an index that is out of bounds: not on a GPU, which ends the process
    n // m                 # integers, divided by 0: on CPUs
    torch.linalg.inv(a)    # a singular matrix: on any device

Operators of the program may raise for whatever reason.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from functools import cache
from typing import Any, Final, Protocol, TypeVar

import torch
from torch.fx import Node

from weft._torch import OpOverload
from weft.shapes.algebra.expr import Expr, symbol_of
from weft.shapes.fakes.schemas import schema_arguments
from weft.shapes.symnode import certainly_equal, is_hinted

_T = TypeVar("_T")


class Cause(Enum):
    """What an operator may object to."""

    PLACE = auto()
    """An index, or a probability, out of range: a CPU's kernel raises."""
    VALUE = auto()
    """Data that it looks at on any device."""
    DIVISOR = auto()
    """A divisor of integers that is 0: on CPUs."""
    EXPONENT = auto()
    """A negative exponent of integers."""
    NUMBER = auto()
    """Another number, which fakes check unless it depends on data."""


_BY_PLACE: Final = re.compile(
    r"_?(unsafe_|index_put_impl_)?index(_put|_select|_add|_copy|_fill|_reduce)?(_impl)?_?|take|put_?"
    r"|gather|scatter(_add|_reduce)?_?|embedding(_bag|_renorm_?)?|_embedding_bag(_forward_only)?"
    r"|_unsafe_masked_index(_put_accumulate)?|(cross_entropy|nll)_loss\w*"
    r"|multi(label)?_?margin_loss\w*|one_hot|max_unpool\w*|multinomial|bernoulli_?|binomial|poisson"
    r"|binary_cross_entropy|searchsorted|\w*assert_(async|scalar)"
)
_BY_VALUE: Final = re.compile(
    r"_?linalg_\w+|cholesky\w*|svd|qr|inverse|det|lu_\w+|_lu_\w+|ormqr|geqrf|triangular_solve"
    r"|hist(c|ogram\w*)|_histogramdd\w*|bincount|masked_scatter_?|repeat_interleave|(nan)?quantile"
    r"|_?ctc_loss\w*|_pad_packed_sequence|_pack_padded_sequence|segment_reduce"
    r"|fractional_max\w*|normal|\w*sparse\w*|\w*quantize\w*|_nested\w*|_validate\w*"
)
_BY_NUMBER: Final = re.compile(
    r"select|as_strided|unfold|diagonal|topk|kthvalue|randperm|arange|linspace|logspace|eye"
    r"|tri[lu]_indices|random_?|randint(_like)?|uniform_?|exponential_?|geometric_?|normal_"
    r"|log_normal_?|cauchy_?|renorm_?|repeat|pixel_(un)?shuffle"
)
_DIVISIONS: Final = frozenset({"div", "floor_divide", "remainder", "fmod"})
_NEVER: Final = frozenset({
    "linalg_vector_norm", "linalg_cross", "linalg_diagonal", "linalg_matmul", "linalg_vecdot",
    "bernoulli.p", "bernoulli_.float", "normal.float_float",
})
"""Exceptions to these names, some with an overload's."""

_OWN: Final = frozenset({"aten", "prims", "prim", "_c10d_functional", "c10d", "inductor"})
"""Namespaces of operators whose errors are known."""
_BLIND: Final = frozenset({
    "empty_like", "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones",
    "new_zeros", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like",
})
"""ATen operators that read no values of their first operand."""


@cache
def error_cause(op: OpOverload) -> Cause | None:
    """Why the operator raises for some data of some operands; None: it never does."""
    if op.namespace not in _OWN:
        known = op.namespace == "weft" and not op._schema.name.endswith("_functional")
        return None if known else Cause.VALUE
    if op.namespace != "aten":
        return None
    name = op._schema.name.removeprefix("aten::")
    if op.is_view:
        return Cause.NUMBER if _BY_NUMBER.fullmatch(name) else None
    plain = name.removesuffix("_").removeprefix("_foreach_")
    if plain in _DIVISIONS:
        return Cause.DIVISOR
    if plain == "pow" and op._overloadname.endswith("Scalar"):
        return Cause.EXPONENT
    if name in _NEVER or f"{name}.{op._overloadname}" in _NEVER or name.endswith("_backward"):
        return None
    if _BY_PLACE.fullmatch(name):
        return Cause.PLACE
    if _BY_VALUE.fullmatch(name):
        return Cause.VALUE
    return Cause.NUMBER if _BY_NUMBER.fullmatch(name) else None


class Operand(Protocol):
    """A tensor, or what stands for one."""

    dtype: torch.dtype
    device: torch.device


def may_refuse(
    op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object],
    kind: type[Operand] = torch.Tensor,
) -> bool:
    """Whether the operator may raise because of the data of these arguments; `kind` is the class of
    those that are tensors."""
    cause = error_cause(op)
    if cause is None or cause is Cause.VALUE:
        return cause is not None
    if cause is Cause.NUMBER:
        return any(map(depends_on_data, _flat((*args, *kwargs.values()))))
    operands = [*tensors_of(args, kind), *tensors_of(kwargs.values(), kind)]
    if cause is Cause.EXPONENT:
        return depends_on_data(args[1]) and _has_integers(operands)
    if operands and all(t.device.type != "cpu" for t in operands):
        return False
    if cause is Cause.DIVISOR:
        rounding = schema_arguments(op, args, kwargs).get("rounding_mode")
        return _divides_by_zero(op, args, rounding, operands)
    return not _takes_masks(op) or any(
        t.dtype is not torch.bool for t in tensors_of(args[1:2], kind))


def _divides_by_zero(
    op: OpOverload, args: Sequence[object], rounding: str | None, operands: list[Operand]
) -> bool:
    """Whether it may be a division of integers by 0 (of floats, that is no error)."""
    divisor = args[1] if len(args) > 1 else None
    if isinstance(divisor, (int, float)) and divisor != 0:
        return False
    if op._schema.name.startswith("aten::div") and rounding is None:
        return False
    return _has_integers(operands)


def _has_integers(operands: list[Operand]) -> bool:
    return not any(t.dtype.is_floating_point or t.dtype.is_complex for t in operands)


def depends_on_data(value: object) -> bool:
    """Whether it is a number of torch or of codegen that the data of a call decides."""
    if isinstance(value, Expr):
        return any(symbol_of(symbol).kind == "unbacked" for symbol in value.symbols)
    return not is_hinted(value)


def sizes_may_differ(op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether an elementwise operator may raise because of a size that depends on data: fakes take
    it for that of the other operands."""
    if torch.Tag.pointwise not in op.tags:
        return False
    shapes = [t.shape for t in tensors_of((*args, *kwargs.values()), torch.Tensor)]
    return any(any(map(depends_on_data, sizes)) and not _certainly_fit(sizes)
               for sizes in itertools.zip_longest(*map(reversed, shapes), fillvalue=1))


def _certainly_fit(sizes: Sequence[object]) -> bool:
    """Whether operands' sizes in a dimension are known to be equal or 1."""
    longer = [size for size in sizes if not certainly_equal(size, 1)]
    return all(certainly_equal(size, longer[0]) for size in longer)


def _takes_masks(op: OpOverload) -> bool:
    """Whether the second argument is a list of indices, of which those of bools fit always."""
    name = op._schema.name
    return "index_put" in name or ("::index" in name and op._overloadname == "Tensor")


def tensors_of(values: Iterable[object], kind: type[_T]) -> Iterator[_T]:
    """The tensors among values, and in the lists among them."""
    return (value for value in _flat(values) if isinstance(value, kind))


def _flat(values: Iterable[object]) -> Iterator[Any]:
    """The values, and those in the lists among them."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


# -- nodes of graphs -------------------------------------------------------------------------------


def may_raise(node: Node) -> bool:
    """Whether a call in an ATen graph may raise because of its operands' data."""
    op = node.target
    if not isinstance(op, OpOverload) or (
            error_cause(op) is None and torch.Tag.pointwise not in op.tags):
        return False
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return may_refuse(op, args, kwargs) or sizes_may_differ(op, args, kwargs)


def takes_data(node: Node) -> bool:
    """Whether a captured call on a tensor takes a number or a size that depends on data."""
    return bool(node.args) and isinstance(_example(node.args[0]), torch.Tensor) and any(
        not is_hinted(_example(operand)) for operand in node.all_input_nodes)


def _example(item: object) -> object:
    return item.meta.get("example_value") if isinstance(item, Node) else item


def reads_values(node: Node) -> bool:
    """Whether an ATen operator reads its operands' values, and not only their metadata."""
    target = node.target
    return not isinstance(target, OpOverload) or target.overloadpacket.__name__ not in _BLIND
