"""Numbers in tensors that follow from sizes: `torch.ceil((length - kernel) / stride).long()`.

Place in the pipeline: beside `known_data.py`, for numbers that change between calls but follow from
sizes and known data alone. Programs read such numbers from tensors for paddings and frame counts.
Here they are computed from the sizes, so they stay symbolic::

    n = torch.div(x.size(1), 8, rounding_mode="trunc")      # a tensor, for eager
    number(tx, node of n)                                   # s1//8: what `n.item()` gives

A tensor of floats stands for a fraction. Rounding it gives the kernels' result if its parts are
small compared to the type's precision, which is guarded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import fx

from weft.capture.core.constant import evaluate
from weft.capture.core.graph import target_name
from weft.capture.library.tensors.known_data import can_run, known, steps_of
from weft.shapes.graph_facts import captured_facts
from weft.shapes.symnode import is_hinted

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

Whole = int | torch.SymInt
Number = Whole | torch.SymBool


class _NoNumber(Exception):
    """The tensor's number does not follow from sizes."""


@final
@dataclass(frozen=True, slots=True)
class _Fraction:
    """The float `over / under`; `numerators` bound those of the operations that computed it."""

    over: Whole
    under: int
    numerators: tuple[Whole, ...] = ()


def number(tx: Interpreter, node: fx.Node) -> Number | None:
    """The number in a tensor of one element if it follows from sizes, else None."""
    if node.graph is not tx.builder.graph:
        return None
    try:
        value = _Evaluation(tx).value(node)
    except _NoNumber:
        return None
    steps = steps_of(tx, node, can_run)
    if steps is None or any(captured_facts(step).has_effect for step in steps):
        return None  # written to
    return None if isinstance(value, _Fraction) else value


@final
class _Evaluation:
    """Computes the numbers of nodes, each once."""

    def __init__(self, tx: Interpreter) -> None:
        self.tx = tx
        self._memo: dict[fx.Node, Any] = {}

    def value(self, node: fx.Node) -> Any:
        if node not in self._memo:
            self._memo[node] = self._compute(node)
        return self._memo[node]

    def _compute(self, node: fx.Node) -> object:
        example = node.meta.get("example_value")
        if isinstance(example, torch.SymInt | torch.SymBool):
            return example
        if not isinstance(example, torch.Tensor) or not has_one_element(example):
            raise _NoNumber
        real = known(self.tx, node)
        if real is not None:
            return _plain(real.item())
        rule = _RULES.get(target_name(node))
        if rule is None or node.op == "placeholder" or not can_run(node):
            raise _NoNumber
        args = [self.value(a) if isinstance(a, fx.Node) else a for a in node.args]
        named = {k: self.value(a) if isinstance(a, fx.Node) else a for k, a in node.kwargs.items()}
        try:
            return self._of_type(rule(self, *args, **named), example.dtype)
        except (TypeError, AttributeError):
            raise _NoNumber from None  # arguments that the rule does not know

    def _of_type(self, value: Any, dtype: torch.dtype) -> object:
        if dtype is torch.bool and isinstance(value, bool | torch.SymBool):
            return value
        if dtype.is_floating_point and dtype.itemsize >= 4:
            is_fraction = isinstance(value, _Fraction)
            return value if is_fraction else _Fraction(_integer(value), 1, (value,))
        if dtype not in (torch.int64, torch.int32):
            raise _NoNumber
        integer = self.truncated(value) if isinstance(value, _Fraction) else _integer(value)
        limit = 1 << (8 * dtype.itemsize - 1)
        if not self.holds(-limit <= integer) or not self.holds(integer < limit):
            raise _NoNumber  # it overflows
        return integer

    def truncated(self, fraction: _Fraction) -> Whole:
        if fraction.under != 1 and not self.holds(fraction.over >= 0):
            raise _NoNumber
        return self.rounded(fraction, up=False)

    def rounded(self, fraction: _Fraction, *, up: bool) -> Whole:
        """The rounded number; guards that errors of float32 cannot reach the next integer."""
        count = max(1, len(fraction.numerators))
        for n in fraction.numerators:
            if not self.holds(-(1 << 23) < n * count) or not self.holds(n * count < 1 << 23):
                raise _NoNumber
        return -(-fraction.over // fraction.under) if up else fraction.over // fraction.under

    def holds(self, condition: bool | torch.SymBool) -> bool:
        """Whether the condition holds in this call; guarded."""
        if not is_hinted(condition):
            raise _NoNumber
        return evaluate(self.tx, lambda: bool(condition))


def has_one_element(example: torch.Tensor) -> bool:
    return all(type(n) is int and n == 1 for n in example.shape)


def _plain(value: object) -> Any:
    if isinstance(value, float):
        if not value.is_integer():
            raise _NoNumber
        return _Fraction(int(value), 1)
    return value


def _integer(value: object) -> Whole:
    if type(value) is int or isinstance(value, torch.SymInt):
        return value
    raise _NoNumber


def _fraction(value: object) -> _Fraction:
    return value if isinstance(value, _Fraction) else _Fraction(_integer(value), 1)


# -- what operators make of numbers ---------------------------------------------------------------


def _sum(function: Callable[[Any, Any], Any]) -> Callable[..., object]:
    def rule(ev: _Evaluation, a: object, b: object) -> Any:
        if not isinstance(a, _Fraction) and not isinstance(b, _Fraction):
            return function(_integer(a), _integer(b))
        a, b = _fraction(a), _fraction(b)
        over = function(a.over * b.under, b.over * a.under)
        return _Fraction(over, a.under * b.under, (*a.numerators, *b.numerators, over))

    return rule


def _product(ev: _Evaluation, a: object, b: object) -> object:
    if not isinstance(a, _Fraction) and not isinstance(b, _Fraction):
        return _integer(a) * _integer(b)
    a, b = _fraction(a), _fraction(b)
    over = a.over * b.over
    return _Fraction(over, a.under * b.under, (*a.numerators, *b.numerators, over))


def _quotient(ev: _Evaluation, a: object, b: object, *, rounding_mode: str | None = None) -> object:
    if rounding_mode is not None:
        return _divide(ev, a, b, rounding_mode)
    a, b = _fraction(a), _fraction(b)
    if type(b.over) is not int or b.over <= 0 or b.under != 1:
        raise _NoNumber
    return _Fraction(a.over, a.under * b.over, (*a.numerators, *b.numerators, a.over))


def _divide(ev: _Evaluation, a: object, b: object, rounding_mode: str = "floor") -> Any:
    a, b = _integer(a), _integer(b)
    if type(b) is not int or b <= 0 or (rounding_mode == "trunc" and not ev.holds(a >= 0)):
        raise _NoNumber
    return a // b


def _remainder(ev: _Evaluation, a: object, b: object) -> object:
    return _integer(a) - b * _divide(ev, a, b)


def _rounding(*, up: bool) -> Callable[..., object]:
    return lambda ev, a: _Fraction(ev.rounded(_fraction(a), up=up), 1, _fraction(a).numerators)


def _of_wholes(function: Callable[..., object]) -> Callable[..., object]:
    return lambda ev, *args: function(*map(_integer, args))


def _clamp(ev: _Evaluation, a: object, min: object = None, max: object = None) -> Whole:
    clamped = _integer(a)
    clamped = clamped if min is None else torch.sym_max(clamped, _integer(min))
    return clamped if max is None else torch.sym_min(clamped, _integer(max))


def _same(ev: _Evaluation, a: object, *args: object, **named: object) -> Any:
    """The same number, perhaps of another type: that of the result's example."""
    return a


_RULES: Final[Mapping[str, Callable[..., Any]]] = {
    "add": _sum(operator.add), "sub": _sum(operator.sub), "mul": _product,
    "neg": _of_wholes(operator.neg), "abs": _of_wholes(abs),
    "truediv": _quotient, "div": _quotient, "floordiv": _divide, "floor_divide": _divide,
    "mod": _remainder, "remainder": _remainder,
    "ceil": _rounding(up=True), "floor": _rounding(up=False),
    "maximum": _of_wholes(torch.sym_max), "minimum": _of_wholes(torch.sym_min),
    "max": _of_wholes(torch.sym_max), "min": _of_wholes(torch.sym_min), "clamp": _clamp,
    **{name: _of_wholes(getattr(operator, name)) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    **dict.fromkeys(("to", "long", "int", "float", "clone", "detach", "tensor", "as_tensor",
                     "scalar_tensor", "squeeze"), _same),
}
