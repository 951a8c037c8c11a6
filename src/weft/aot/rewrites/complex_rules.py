"""Operators on complex tensors, written as operators on their real and imaginary parts.

Place in the pipeline: `complex_pairs.py` looks rules up here. A rule gets `Parts` for complex
tensors, `Real` for real ones, and numbers; it returns what it makes of them::

    @rule(aten.mul.Tensor)
    def multiply(cx, a, b):                 # (a + bi)(c + di)
        a, b = cx.parts(a), cx.parts(b)
        return Parts(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)

Real operands take part as complex ones, as in eager, so that infinities and NaNs spread alike.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, final

import torch
from torch.fx import Node

from weft._torch import OpOverload

aten = torch.ops.aten

Emit = Callable[..., Node]
Number = int | float


@final
class Real:
    """A real tensor in the graph, or a number, with arithmetic that appends operators."""

    __slots__ = ("emit", "value")

    def __init__(self, emit: Emit, value: Node | Number | Any) -> None:
        self.emit = emit
        self.value = value

    def _apply(self, op: OpOverload, other: Real | Number) -> Real:
        value = other.value if isinstance(other, Real) else other
        if isinstance(self.value, Node):
            return Real(self.emit, self.emit(op, self.value, value))
        if isinstance(value, Node):
            wrapped = self.emit(aten.full_like.default, value, self.value)
            return Real(self.emit, self.emit(op, wrapped, value))
        return Real(self.emit, _ON_NUMBERS[op](self.value, value))

    def __add__(self, other: Real | Number) -> Real:
        return self._apply(aten.add.Tensor, other)

    def __sub__(self, other: Real | Number) -> Real:
        return self._apply(aten.sub.Tensor, other)

    def __mul__(self, other: Real | Number) -> Real:
        return self._apply(aten.mul.Tensor, other)

    def __truediv__(self, other: Real | Number) -> Real:
        return self._apply(aten.div.Tensor, other)

    def __neg__(self) -> Real:
        if isinstance(self.value, Node):
            return self.call(aten.neg.default)
        return Real(self.emit, -self.value)

    def call(self, op: OpOverload, *args: object, **kwargs: object) -> Real:
        """An operator with this tensor first."""
        values = [a.value if isinstance(a, Real) else a for a in args]
        return Real(self.emit, self.emit(op, self.value, *values, **kwargs))


_ON_NUMBERS: Final[dict[OpOverload, Callable[[Any, Any], Any]]] = {
    aten.add.Tensor: operator.add,
    aten.sub.Tensor: operator.sub,
    aten.mul.Tensor: operator.mul,
}


class Parts(NamedTuple):
    """A complex tensor."""

    real: Real
    imag: Real


@final
@dataclass(frozen=True)
class Context:
    """What a rule needs besides its arguments."""

    emit: Emit
    op: OpOverload
    dtype: torch.dtype
    """The dtype of the parts."""
    result: Any
    """The metadata of what the operator returns."""

    @property
    def complex_result(self) -> bool:
        """Whether a rule should return parts."""
        return isinstance(self.result, torch.Tensor) and self.result.is_complex()

    def parts(self, value: object) -> Parts:
        """Any operand as a complex one; the imaginary part of a real operand is the number 0."""
        if isinstance(value, Parts):
            return Parts(self._cast(value.real), self._cast(value.imag))
        if isinstance(value, Real):
            return Parts(self._cast(value), Real(self.emit, 0.0))
        number = value if isinstance(value, complex) else None
        real = number.real if number is not None else (
            float(value) if isinstance(value, int) else value)
        return Parts(Real(self.emit, real), Real(self.emit, 0.0 if number is None else number.imag))

    def _cast(self, part: Real) -> Real:
        value = part.value
        if not isinstance(value, Node) or value.meta["val"].dtype == self.dtype:
            return part
        return part.call(aten._to_copy.default, dtype=self.dtype)

    def tensors(self, value: object) -> Parts:
        """As `parts`, but both parts are tensors."""
        real, imag = self.parts(value)
        if not isinstance(imag.value, Node):
            imag = real.call(aten.full_like.default, imag.value)
        return Parts(real, imag)


Rule = Callable[..., Any]
RULES: Final[dict[OpOverload, Rule]] = {}


AnyRule = TypeVar("AnyRule", bound=Rule)


def rule(*ops: OpOverload) -> Callable[[AnyRule], AnyRule]:
    """Register a rule."""

    def register(function: AnyRule) -> AnyRule:
        RULES.update(dict.fromkeys(ops, function))
        return function

    return register


# -- arithmetic ------------------------------------------------------------------------------------


@rule(aten.add.Tensor, aten.add.Scalar)
def _add(cx: Context, a: object, b: object, alpha: object = 1) -> Parts:
    """Eager multiplies by alpha, a complex number, even if it is 1."""
    a, b = cx.parts(a), _mul(cx, b, alpha)
    return Parts(a.real + b.real, a.imag + b.imag)


@rule(aten.sub.Tensor, aten.sub.Scalar)
def _sub(cx: Context, a: Any, b: Any, alpha: Any = 1) -> Parts:
    return _add(cx, a, b, -alpha)


@rule(aten.mul.Tensor, aten.mul.Scalar)
def _mul(cx: Context, a: object, b: object) -> Parts:
    a, b = cx.parts(a), cx.parts(b)
    return Parts(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


@rule(aten.div.Tensor, aten.div.Scalar)
def _div(cx: Context, a: Any, b: Any) -> Parts:
    """R. L. Smith's method (Algorithm 116, CACM 5, 1962), in which no square can overflow; zeros
    and infinities as in eager."""
    a, b = cx.parts(a), cx.parts(b)
    if _is_ordinary(b):
        return _divided_by_number(a, b.real.value, b.imag.value)
    if _is_symbolic(b.real.value):
        return Parts(a.real / b.real, a.imag / b.real)
    like = next(part for part in (*b, *a) if isinstance(part.value, Node))
    x, y, c, d = (_tensor(part, like) for part in (*a, *b))
    size = c.call(aten.abs.default)
    wide = size.call(aten.ge.Tensor, d.call(aten.abs.default))
    large, small = _chosen(wide, c, d), _chosen(wide, d, c)
    ratio = small / large
    scale = (large + small * ratio).call(aten.reciprocal.default)
    real = (_chosen(wide, x, y) + _chosen(wide, y, x) * ratio) * scale
    imag = _chosen(wide, y - x * ratio, y * ratio - x) * scale
    zero = _chosen(wide, size, d).call(aten.eq.Scalar, 0)
    return Parts(_chosen(zero, x / size, real), _chosen(zero, y / size, imag))


def _is_ordinary(b: Parts) -> bool:
    """Whether a divisor is a number neither near zero nor infinite."""
    number, rest = b.real.value, b.imag.value
    if not isinstance(number, int | float) or not isinstance(rest, int | float):
        return False
    return 1e-30 < max(abs(number), abs(rest)) < 1e30


def _is_symbolic(value: object) -> bool:
    """Whether a real operand is a number that follows from sizes."""
    if isinstance(value, Node):
        return not isinstance(value.meta["val"], torch.Tensor)
    return not isinstance(value, int | float)


def _divided_by_number(a: Parts, c: float, d: float) -> Parts:
    """As `_div` does it; a product with 0 makes infinities NaN, as in eager."""
    if abs(c) >= abs(d):
        ratio = d / c
        scale = 1 / (c + d * ratio)
        return Parts((a.real + a.imag * ratio) * scale, (a.imag - a.real * ratio) * scale)
    ratio = c / d
    scale = 1 / (c * ratio + d)
    return Parts((a.real * ratio + a.imag) * scale, (a.imag * ratio - a.real) * scale)


def _tensor(part: Real, like: Real) -> Real:
    """A number as a tensor."""
    if isinstance(part.value, Node):
        return part
    return like.call(aten.full_like.default, part.value)


def _both(a: Real, b: Real) -> Real:
    return a.call(aten.logical_and.default, b)


def _chosen(condition: Real, yes: Real, no: Real) -> Real:
    return condition.call(aten.where.self, yes, no)


@rule(aten.reciprocal.default)
def _reciprocal(cx: Context, a: object) -> Parts:
    return _div(cx, 1.0, cx.tensors(a))


@rule(aten.neg.default, aten._neg_view.default)
def _neg(cx: Context, a: Parts) -> Parts:
    """0 - a on CPUs: it has no negative zeros, so that angles of real numbers are pi."""
    if cx.result.device.type == "cpu":
        return Parts(a.real.call(aten.rsub.Scalar, 0.0), a.imag.call(aten.rsub.Scalar, 0.0))
    return Parts(-a.real, -a.imag)


@rule(aten._conj.default, aten._conj_physical.default, aten.conj_physical.default)
def _conj(cx: Context, a: Parts) -> Parts:
    return Parts(a.real, -a.imag)


@rule(aten.exp.default)
def _exp(cx: Context, a: Parts) -> Parts:
    """As C defines it (Annex G): real for real numbers, and without the NaN of 0 * inf for infinite
    ones."""
    size = a.real.call(aten.exp.default)
    real, imag = (size * a.imag.call(op) for op in (aten.cos.default, aten.sin.default))
    imag = _chosen(a.imag.call(aten.eq.Scalar, 0), a.imag, imag)
    turns = a.imag.call(aten.isfinite.default).call(aten.logical_not.default)
    gone = _both(turns, a.real.call(aten.eq.Scalar, -math.inf))
    endless = _both(turns, a.real.call(aten.eq.Scalar, math.inf))
    nothing = size.call(aten.copysign.Tensor, a.imag)
    return Parts(_chosen(gone, size, _chosen(endless, a.real, real)), _chosen(gone, nothing, imag))


@rule(aten.abs.default)
def _abs(cx: Context, a: Parts) -> Real:
    return a.real.call(aten.hypot.default, a.imag)


@rule(aten.angle.default)
def _angle(cx: Context, a: Parts) -> Real:
    return a.imag.call(aten.atan2.default, a.real)


@rule(aten.log.default)
def _log(cx: Context, a: Parts) -> Parts:
    return Parts(_abs(cx, a).call(aten.log.default), _angle(cx, a))


@rule(aten.sgn.default)
def _sgn(cx: Context, a: Parts) -> Parts:
    size = _abs(cx, a)
    zero, none = size.call(aten.eq.Scalar, 0), size.call(aten.full_like.default, 0.0)
    return Parts(_chosen(zero, none, a.real / size), _chosen(zero, none, a.imag / size))


@rule(aten.eq.Tensor, aten.eq.Scalar)
def _eq(cx: Context, a: object, b: object) -> Real:
    a, b = cx.tensors(a), cx.parts(b)
    return _compare(a.real, b.real, "eq").call(
        aten.bitwise_and.Tensor, _compare(a.imag, b.imag, "eq"))


@rule(aten.ne.Tensor, aten.ne.Scalar)
def _ne(cx: Context, a: object, b: object) -> Real:
    a, b = cx.tensors(a), cx.parts(b)
    return _compare(a.real, b.real, "ne").call(
        aten.bitwise_or.Tensor, _compare(a.imag, b.imag, "ne"))


def _compare(a: Real, b: Real, name: str) -> Real:
    overload = "Tensor" if isinstance(b.value, Node) else "Scalar"
    return a.call(getattr(getattr(aten, name), overload), b)


# -- making and taking apart -----------------------------------------------------------------------


@rule(aten.view_as_real.default)
def _view_as_real(cx: Context, a: Parts) -> Real:
    return Real(cx.emit, cx.emit(aten.stack.default, [a.real.value, a.imag.value], -1))


@rule(aten.view_as_complex.default)
def _view_as_complex(cx: Context, a: Real) -> Parts:
    return Parts(a.call(aten.select.int, -1, 0), a.call(aten.select.int, -1, 1))


@rule(aten.complex.default)
def _complex(cx: Context, real: Real, imag: Real) -> Parts:
    size = list(cx.result.size())
    return Parts(real.call(aten.expand.default, size), imag.call(aten.expand.default, size))


@rule(aten.polar.default)
def _polar(cx: Context, size: Real, angle: Real) -> Parts:
    return Parts(size * angle.call(aten.cos.default), size * angle.call(aten.sin.default))


@rule(aten._to_copy.default)
def _to_copy(cx: Context, a: Any, **options: Any) -> object:
    """Also converts between real and complex. The imaginary part is dropped, as in eager, except by
    a conversion to bool."""
    parts = a if isinstance(a, Parts) else None
    real = a.real if parts else a
    if parts and cx.result.dtype is torch.bool:
        return _ne(cx, parts, 0).call(aten._to_copy.default, **options)
    if not cx.complex_result:
        return real.call(aten._to_copy.default, **options)
    options = {**options, "dtype": cx.dtype}
    real = real.call(aten._to_copy.default, **options)
    if parts is None:
        return Parts(real, real.call(aten.full_like.default, 0.0))
    return Parts(real, parts.imag.call(aten._to_copy.default, **options))


# -- both parts alike ------------------------------------------------------------------------------


def _same_for_both_parts(*values: int) -> Rule:
    """A rule for operators that do the same to both parts.

    `values`: positions of the complex arguments, even if they are numbers or real tensors.
    """

    def apply(cx: Context, *args: object, **kwargs: object) -> object:
        operands = [_as_parts(cx, a) if i in values else a for i, a in enumerate(args)]
        if kwargs.get("dtype") is not None:
            kwargs["dtype"] = cx.dtype
        results = []
        for k in (0, 1):
            own = [_part(a, k) if i in values else _plain(a) for i, a in enumerate(operands)]
            results.append(cx.emit(cx.op, *own, **kwargs))
        real, imag = results
        return Parts(Real(cx.emit, real), Real(cx.emit, imag))

    return apply


def _as_parts(cx: Context, value: object) -> object:
    if isinstance(value, (Parts, Real)):
        return cx.tensors(value)
    return [cx.tensors(v) for v in value] if isinstance(value, list) else cx.parts(value)


def _part(value: Any, k: int) -> object:
    if isinstance(value, list):
        return [v[k].value for v in value]
    return value[k].value


def _plain(value: object) -> Any:
    if isinstance(value, Real):
        return value.value
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _overloads(names: Sequence[str]) -> list[OpOverload]:
    overloads = []
    for name in names:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet, None), overload or "default", None)
        overloads += [] if op is None else [op]
    return overloads


VIEWS: Final = _overloads((
    "view", "_unsafe_view", "reshape", "permute", "transpose.int", "t", "expand", "unsqueeze",
    "squeeze", "squeeze.dim", "squeeze.dims", "select.int", "slice.Tensor", "diagonal", "unfold",
    "alias", "detach",
))
"""Operators that show the memory of a complex tensor in another form."""

RULES.update(dict.fromkeys(VIEWS, _same_for_both_parts(0)))
RULES.update(dict.fromkeys(_overloads((
    "clone", "contiguous", "sum", "sum.dim_IntList", "cumsum", "flip", "roll",
    "repeat", "index.Tensor", "index_select", "gather", "tril", "triu", "lift_fresh_copy", "trace",
    "diag_embed", "slice_backward", "select_backward", "diagonal_backward", "as_strided_copy",
)), _same_for_both_parts(0)))


@rule(aten.mean.default, aten.mean.dim)
def _mean(cx: Context, a: Parts, *args: object, **kwargs: object) -> Parts:
    """Eager divides by a complex number, whose imaginary part is 0."""
    a = cx.parts(_same_for_both_parts(0)(cx, a, *args, **kwargs))
    return Parts(a.real + a.imag * 0.0, a.imag - a.real * 0.0)


RULES.update(dict.fromkeys(_overloads(("cat", "stack")), _same_for_both_parts(0)))
RULES.update(dict.fromkeys(_overloads((
    "select_scatter", "slice_scatter", "diagonal_scatter",
)), _same_for_both_parts(0, 1)))
RULES.update(dict.fromkeys(_overloads(("where.self",)), _same_for_both_parts(1, 2)))
RULES.update(dict.fromkeys(_overloads((
    "masked_fill.Scalar", "masked_fill.Tensor", "index_put", "constant_pad_nd",
)), _same_for_both_parts(0, 2)))


@rule(aten.zeros_like.default, aten.ones_like.default, aten.empty_like.default)
def _filled_like(cx: Context, a: Parts, **options: object) -> Real | Parts:
    number = 1.0 if cx.op is aten.ones_like.default else 0.0
    return _full_like(cx, a, number, **options)


@rule(aten.full_like.default)
def _full_like(cx: Context, a: Any, number: Any, **options: object) -> Real | Parts:
    like: Real = a.real if isinstance(a, Parts) else a
    if not cx.complex_result:
        return like.call(aten.full_like.default, number, **options)
    options = {**options, "dtype": cx.dtype}
    number = complex(number)
    return Parts(*(like.call(aten.full_like.default, n, **options)
                   for n in (number.real, number.imag)))


@rule(aten.full.default)
def _full(cx: Context, size: Any, number: Any, **options: object) -> Parts:
    number = complex(number)
    return Parts(*(_constant(cx, size, n, cx.dtype) for n in (number.real, number.imag)))


@rule(aten.zeros.default)
def _zeros(cx: Context, size: object, **options: object) -> object:
    return _full(cx, size, 0.0)


@rule(aten.new_full.default)
def _new_full(
    cx: Context, a: object, size: object, number: object, **options: object
) -> Real | Parts:
    if cx.complex_result:
        return _full(cx, size, number)
    return _constant(cx, size, number, cx.result.dtype)


@rule(aten.new_zeros.default, aten.new_ones.default, aten.new_empty.default)
def _new(cx: Context, a: object, size: object, **options: object) -> Real | Parts:
    return _new_full(cx, a, size, 1.0 if cx.op is aten.new_ones.default else 0.0)


def _constant(cx: Context, size: object, number: object, dtype: torch.dtype) -> Real:
    tensor = cx.emit(aten.full.default, size, number, dtype=dtype, device=cx.result.device)
    return Real(cx.emit, tensor)
