"""`SymNode`: weft's expressions as PyTorch sees them, behind ``torch.SymInt`` and the like.

Place in the pipeline: between ``algebra/expr.py`` and PyTorch. ``torch.SymInt(node)`` accepts any
object with the methods below; C++ calls them while fake tensors with symbolic sizes run through
operators. A node holds a value (integer expression, float expression or condition) and its
`ShapeContext`. Arithmetic makes new nodes; ``guard_*`` asks the context for a concrete value. Nodes
of one context are memoised by value, so equal sizes have the same node::

    n = context.size(128, source)
    n.node.value                    # the Expr s0
    (n * 2 + 1).node.value          # 2*s0+1
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import torch

from weft.errors import SourceLine
from weft.shapes.algebra import expr, floats, functions, relation, rounding
from weft.shapes.algebra.atoms import IntFunction
from weft.shapes.algebra.expr import Expr, IntExpr
from weft.shapes.algebra.floats import FloatRelation, FloatValue
from weft.shapes.guard import AnyCondition

if TYPE_CHECKING:
    from weft.shapes.context import ShapeContext


class UndecidedValue(RuntimeError):
    """A branch depends on a value that is only known when the program runs; breaks the graph."""

    def __init__(self, value: object, line: SourceLine | None) -> None:
        where = f" at {line}" if line is not None else ""
        super().__init__(f"the value of {value!r} depends on data{where}")
        self.value = value
        self.line = line


class SizesAskedError(RuntimeError):
    """C++ asked a tensor with symbolic sizes for plain ones."""


# ------------------------------------------------------------------------ families of methods

Binary: TypeAlias = Callable[["SymNode", "SymNode"], "SymNode"]


def _arithmetic(operation: Callable[[IntExpr, IntExpr], IntExpr]) -> Binary:
    """An operation on ints, whose results are cached (operators ask for the same few products and
    sums), and on floats."""

    def method(self: SymNode, other: SymNode) -> SymNode:
        if self.pytype is not int:
            return self._float(operation.__name__, other)
        results = self.shape_env.memo.results
        key = (operation, self, other)
        node = results.get(key)
        if node is None:
            node = results[key] = self.shape_env.int_node(operation(self.value, other.value))
        return node

    return method


def _bits(function: IntFunction) -> Binary:
    return lambda self, other: self.shape_env.int_node(
        expr.applied(function, self.value, other.value))


def _comparison(op: str) -> Binary:
    return lambda self, other: self._compare(op, other)


@final
class SymNode:
    """A symbolic int, float or bool (``pytype``) in the protocol of PyTorch's symbolic numbers."""

    __slots__ = (
        "__weakref__", "_hint_memo", "constant", "known_int", "pytype", "shape_env", "value",
    )

    refuses_ints = False
    """While an operator is tried that may ask for plain sizes (`MemoFakeMode.run`)."""

    # torch: sympy's questions about ``node.expr``, which is the node itself.
    is_number = False
    is_Boolean = False
    is_Symbol = False
    free_symbols: frozenset[object] = frozenset()
    args: tuple[object, ...] = ()

    def __init__(self, context: ShapeContext, value: Any, pytype: type) -> None:
        self.shape_env = context
        self.value = value
        self.pytype = pytype
        self.constant = value if isinstance(value, int | float) else None
        self.known_int = value if pytype is int and isinstance(value, int) else None
        self._hint_memo: int | float | bool | None = None

    # -------------------------------------------------------------------- what it is

    @property
    def expr(self) -> SymNode:
        return self

    _expr = expr

    @property
    def _hint(self) -> int | float | bool | None:
        if self._hint_memo is None:
            self._hint_memo = _HINTS[self.pytype](self.shape_env, self.value)
        return self._hint_memo

    hint = _hint

    def forget_hint(self) -> None:
        """Ask again for the value in this call: what it followed from is not known any more."""
        self._hint_memo = None

    def has_hint(self) -> bool:
        return self._hint is not None

    def is_int(self) -> bool:
        return self.pytype is int

    def is_float(self) -> bool:
        return self.pytype is float

    def is_bool(self) -> bool:
        return self.pytype is bool

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        # For floats PyTorch cannot take the constant out, so it must not ask.
        return self.constant is not None and self.pytype is not float

    def maybe_as_int(self) -> int | None:
        return self.known_int

    def maybe_as_float(self) -> float | None:
        return self.value if isinstance(self.value, float) else None

    def maybe_as_bool(self) -> bool | None:
        return self.value if isinstance(self.value, bool) else None

    def __repr__(self) -> str:
        return repr(self.value)

    __str__ = _graph_repr = __repr__

    def clone(self) -> SymNode:
        return self

    # -------------------------------------------------------------------- concrete values

    def concrete(self) -> int | float | bool:
        """The value in this call, guarded."""
        return _CONCRETE[self.pytype](self.shape_env, self.value)

    def guard_int(self, file: str = "", line: int = 0) -> int:
        return int(self.concrete())

    def guard_float(self, file: str = "", line: int = 0) -> float:
        if file and self.constant is None:  # C++ asks
            return self.shape_env.plain_float(float_of(torch.SymFloat(self)))
        return float(self.concrete())

    def guard_bool(self, file: str = "", line: int = 0) -> bool:
        return bool(self.concrete())

    guard_size_oblivious = guard_bool

    def int_(self) -> int:
        if SymNode.refuses_ints and self.constant is None:
            raise SizesAskedError(f"int({self!r})")
        return self.guard_int()

    def bool_(self) -> bool:
        return self.guard_bool()

    def expect_true(self, file: str = "", line: int = 0) -> bool:
        return self.shape_env.require(self.value)

    def expect_size(self, file: str = "", line: int = 0) -> bool:
        return self.shape_env.require(relation.ge(self.value, 0))

    def guard_or_false(self, file: str = "", line: int = 0) -> bool:
        return bool(self.shape_env.evaluate_sym_node(self, False, False))

    def guard_or_true(self, file: str = "", line: int = 0) -> bool:
        return bool(self.shape_env.evaluate_sym_node(self, False, True))

    def statically_known_true(self, file: str = "", line: int = 0) -> bool:
        return self.shape_env.decide(self.value) is True

    # -------------------------------------------------------------------- making nodes

    def wrap_int(self, num: int) -> SymNode:
        return self.shape_env.int_node(num)

    def wrap_float(self, num: float) -> SymNode:
        return self.shape_env.float_node(self.shape_env.floats.carried.operand(num))

    def wrap_bool(self, num: bool) -> SymNode:
        return self.shape_env.bool_node(num)

    # -------------------------------------------------------------------- arithmetic

    add = _arithmetic(operator.add)
    sub = _arithmetic(operator.sub)
    mul = _arithmetic(operator.mul)

    def mod(self, other: SymNode) -> SymNode:
        if self.pytype is int:
            return self.shape_env.int_node(expr.mod(self.value, self._divisor(other)))
        return self._float("mod", other)

    def int_floordiv(self, other: SymNode) -> SymNode:
        if self.pytype is int:
            return self.shape_env.int_node(expr.floor_div(self.value, self._divisor(other)))
        return self._float("floordiv", other)

    floordiv = int_floordiv

    def _divisor(self, other: SymNode) -> IntExpr:
        """The other value, guarded not to be zero (expressions assume that)."""
        divisor: IntExpr = other.value
        if not self.shape_env.require(relation.ne(divisor, 0)):
            raise ZeroDivisionError("integer division or modulo by zero")
        return divisor

    def sym_min(self, other: SymNode) -> SymNode:
        if self.pytype is int:
            if self.shape_env.decide(relation.ge(other.value, self.value)):
                return self
            if self.shape_env.decide(relation.ge(self.value, other.value)):
                return other
            return self.shape_env.int_node(expr.minimum(self.value, other.value))
        return self._float("min", other)

    def sym_max(self, other: SymNode) -> SymNode:
        if self.pytype is int:
            if other.value == 1 and self.shape_env.in_operator:
                return self  # of strides, which mean nothing if a size is 0
            if self.shape_env.decide(relation.ge(self.value, other.value)):
                return self
            if self.shape_env.decide(relation.ge(other.value, self.value)):
                return other
            return self.shape_env.int_node(expr.maximum(self.value, other.value))
        return self._float("max", other)

    def sym_sum(self, args: Sequence[SymNode]) -> SymNode:
        total: IntExpr = 0
        for arg in args:
            total = total + arg.value
        return self.shape_env.int_node(total)

    def neg(self) -> SymNode:
        if self.pytype is int:
            return self.shape_env.int_node(-self.value)
        return self._float("neg")

    def pos(self) -> SymNode:
        return self

    def abs(self) -> SymNode:
        if self.pytype is int:
            return self.shape_env.int_node(expr.maximum(self.value, -self.value))
        return self._float("abs")

    def pow_by_natural(self, other: SymNode) -> SymNode:
        power = self._power(self.value, other.value)
        value = self.value ** other.guard_int() if power is None else power
        return self.shape_env.int_node(value)

    def _power(self, base: IntExpr, exponent: IntExpr) -> IntExpr | None:
        """``base**exponent`` of a constant base, if it is a 64-bit int (guarded)."""
        if not isinstance(base, int) or base < 2 or not isinstance(exponent, Expr):
            return None
        power, largest = functions.power_of(base)
        fits = all(map(self.shape_env.truth, (relation.ge(exponent, 0),
                                              relation.ge(largest, exponent))))
        return expr.applied(power, exponent) if fits else None

    def pow(self, other: SymNode) -> SymNode:
        return self.float_pow(other)

    def float_pow(self, other: SymNode) -> SymNode:
        return self._float("pow", other)

    def float_truediv(self, other: SymNode) -> SymNode:
        return self._float("truediv", other)

    int_truediv = truediv = float_truediv

    def _float(self, op: str, *others: SymNode) -> SymNode:
        values = (self.value, *(other.value for other in others))
        return self.shape_env.float_node(floats.apply(op, *values))

    # -------------------------------------------------------------------- bits

    bitwise_and = _bits(functions.BIT_AND)
    bitwise_or = _bits(functions.BIT_OR)
    bitwise_xor = _bits(functions.BIT_XOR)

    def lshift(self, other: SymNode) -> SymNode:
        return self.shape_env.int_node(self.value * self._power_of_two(other))

    def rshift(self, other: SymNode) -> SymNode:
        return self.shape_env.int_node(expr.floor_div(self.value, self._power_of_two(other)))

    def _power_of_two(self, exponent: SymNode) -> IntExpr:
        power = self._power(2, exponent.value)
        return 1 << exponent.guard_int() if power is None else power

    # -------------------------------------------------------------------- conversions

    def sym_float(self) -> SymNode:
        return self if self.pytype is float else self._float("float")

    def sym_int(self) -> SymNode:
        return self._round("int")

    def trunc(self) -> SymNode:
        return self._round("int")

    def floor(self) -> SymNode:
        return self._round("math.floor")

    def ceil(self) -> SymNode:
        return self._round("math.ceil")

    def round(self, ndigits: int | None = None) -> SymNode:
        if ndigits is not None and self.pytype is float:
            return self.shape_env.float_node(floats.apply("round", self.value, ndigits))
        return self._round("round")

    def _round(self, how: str) -> SymNode:
        """An int from a float of sizes and of Python floats that change between calls.

        If there is no formula: its value in this call, between guards on the float.
        """
        if self.pytype is int:
            return self
        context = self.shape_env
        symbolic = rounding.rounded(how, self.value, context.parts_of)
        if symbolic is not None and self._has_ordinary_floats():
            return context.int_node(symbolic)
        hint, function = self._hint, rounding.HOW[how]
        if hint is None:
            return context.int_node(function(self.guard_float()))
        return context.int_node(self._guarded_rounding(function, float(hint)))

    def _has_ordinary_floats(self) -> bool:
        """Whether the value fits in 62 bits and none of its changing Python floats is zero (which
        has a sign) or infinite."""
        asked = [(number, 0.0, math.inf) for number in rounding.float_symbols(self.value)]
        if asked:
            asked.append((self.value, -1.0, 2.0**62))
        context, size = self.shape_env, functools.partial(floats.apply, "abs")
        return all(context.evaluate(floats.compare("gt", size(value), low))
                   and context.evaluate(floats.compare("lt", size(value), high))
                   for value, low, high in asked)

    def _guarded_rounding(self, how: Callable[[float], int], hint: float) -> int:
        """The value in this call; all floats between the nearest integers are rounded alike."""
        context, value = self.shape_env, self.value
        if not math.isfinite(hint):
            context.specialize_float(value)
        result = how(hint)
        if hint == result:
            context.evaluate(floats.compare("eq", value, float(hint)))
        elif how is round:
            context.specialize_float(value)
        else:
            context.evaluate(floats.compare("gt", value, float(math.floor(hint))))
            context.evaluate(floats.compare("lt", value, float(math.ceil(hint))))
        return result

    def is_integer(self) -> SymNode:
        ratio = None if self.pytype is int else floats.exact_ratio(self.value)
        if ratio is not None:
            return self.shape_env.bool_node(relation.eq(expr.mod(*ratio), 0))
        whole = self.pytype is int or self.guard_float().is_integer()
        return self.shape_env.bool_node(whole)

    # -------------------------------------------------------------------- comparisons

    eq = _comparison("eq")
    ne = _comparison("ne")
    lt = _comparison("lt")
    le = _comparison("le")
    gt = _comparison("gt")
    ge = _comparison("ge")

    def _compare(self, op: str, other: SymNode) -> SymNode:
        left, right = self.value, other.value
        if self.pytype is int and other.pytype is int:
            comparisons = self.shape_env.memo.comparisons
            key = (op, self, other)
            condition = comparisons.get(key)
            if condition is None:
                condition = comparisons[key] = _INT_COMPARISONS[op](left, right)
            return self.shape_env.bool_node(condition)
        if self.pytype is bool and op in ("eq", "ne") and other.constant in (0, 1):
            plain = (other.constant == 1) is (op == "eq")
            return self if plain else self.sym_not()
        if self.pytype is bool:
            same = self.guard_bool() == other.guard_bool()
            return self.shape_env.bool_node(same is (op == "eq"))
        return self.shape_env.bool_node(floats.compare(op, left, right))

    # -------------------------------------------------------------------- booleans

    def sym_not(self) -> SymNode:
        return self.shape_env.bool_node(_negation(self.value))

    def sym_and(self, other: SymNode) -> SymNode:
        if isinstance(self.value, FloatRelation) or isinstance(other.value, FloatRelation):
            return self.shape_env.bool_node(self.guard_bool() and other.guard_bool())
        return self.shape_env.bool_node(relation.and_(self.value, other.value))

    def sym_or(self, other: SymNode) -> SymNode:
        if isinstance(self.value, FloatRelation) or isinstance(other.value, FloatRelation):
            return self.shape_env.bool_node(self.guard_bool() or other.guard_bool())
        return self.shape_env.bool_node(relation.or_(self.value, other.value))

    and_, or_ = sym_and, sym_or

    def sym_ite(self, then: SymNode, otherwise: SymNode) -> SymNode:
        return then if self.guard_bool() else otherwise

    # -------------------------------------------------------------------- layouts

    def is_non_overlapping_and_dense(
        self, sizes: Sequence[SymNode], strides: Sequence[SymNode]
    ) -> SymNode:
        """Of a tensor of these sizes and strides, some of which depend on data."""
        return self.shape_env.dense_node(
            tuple([node.value for node in sizes]), tuple([node.value for node in strides]))


def _math_method(op: str) -> Callable[[SymNode], SymNode]:
    def method(self: SymNode) -> SymNode:
        return self._float(op)

    method.__name__ = f"sym_{op}"
    return method


# torch: C++ asks for the text by this name, which would shadow the type inside the class.
setattr(SymNode, "str", SymNode.__repr__)  # noqa: B010
_MATH: Final = ("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh")
for _op in (*_MATH, "asin", "acos", "atan"):
    setattr(SymNode, f"sym_{_op}", _math_method(_op))


def _negation(value: AnyCondition) -> AnyCondition:
    return floats.negation(value) if isinstance(value, FloatRelation) else relation.not_(value)


_INT_COMPARISONS: Final[dict[str, Callable[[IntExpr, IntExpr], relation.Condition]]] = {
    "eq": relation.eq,
    "ne": relation.ne,
    "lt": relation.lt,
    "le": relation.le,
    "gt": relation.gt,
    "ge": relation.ge,
}

_HINTS: Final[dict[type, Callable[[ShapeContext, Any], int | float | bool | None]]] = {
    int: lambda context, value: context.hints.integer(value),
    float: lambda context, value: context.hints.floating(value),
    bool: lambda context, value: context.hints.condition(value),
}

_CONCRETE: Final[dict[type, Callable[[ShapeContext, Any], int | float | bool]]] = {
    int: lambda context, value: context.specialize(value),
    float: lambda context, value: context.specialize_float(value),
    bool: lambda context, value: context.evaluate(value),
}


def expr_of(size: int | torch.SymInt) -> IntExpr:
    """The expression of a plain or symbolic size; equal symbols are merged."""
    if isinstance(size, int):
        return size
    node = size.node
    result: IntExpr = node.shape_env.facts.simplify(node.value)
    return result


def input_expr(number: torch.SymInt) -> IntExpr:
    """What an input that is a number binds: its own symbol, also where the graph knows that it
    equals another or a plain number, which is checked by that symbol's name."""
    expr: IntExpr = number.node.value
    return expr


def is_hinted(value: object) -> bool:
    """Whether a plain or symbolic number is known in this call, that is, does not depend on
    data."""
    return not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) or (
        bool(value.node.has_hint()))


_DATA_DEPENDENT: Final = 64
"""The assumed value of a size that depends on data."""


def hint(size: Any) -> int:
    """A likely integer value of a size, for choices that are right either way: no guard, and no
    `UndecidedValue`. A product of sizes is at least as large as each of them."""
    if type(size) is int:
        return size
    known = size.node.hint
    if known is not None:
        return int(known)
    value, context = expr_of(size), size.node.shape_env
    likely = {s: context.hints.integer(s) for s in expr.symbols(value)}
    estimate = expr.subs(value, {s: _DATA_DEPENDENT if n is None else n for s, n in likely.items()})
    return estimate if isinstance(estimate, int) else _DATA_DEPENDENT


def factored_expr_of(size: int | torch.SymInt) -> IntExpr:
    """The expression with known multiples written as products; see `Facts.factored`."""
    if isinstance(size, int):
        return size
    result: IntExpr = size.node.shape_env.facts.factored(size.node.value)
    return result


def extents(tensor: torch.Tensor) -> tuple[object, ...]:
    """A tensor's sizes, and its strides if it has any."""
    if tensor.layout is not torch.strided:
        return tuple(tensor.size())
    return (*tensor.size(), *tensor.stride())


def certainly_equal(left: Any, right: Any) -> bool:
    """Whether two sizes, or two sequences of them, are known to be equal, without a guard."""
    if isinstance(left, Sequence):
        return len(left) == len(right) and all(map(certainly_equal, left, right))
    return bool(expr_of(left) == expr_of(right))


def float_of(number: float | torch.SymFloat) -> FloatValue:
    """The float expression of a Python or symbolic float; equal symbols are merged."""
    if isinstance(number, float):
        return number
    node = number.node
    result = floats.rewrite(node.value, node.shape_env.facts.simplify)
    assert not isinstance(result, Expr)
    return result


def condition_of(flag: torch.SymBool) -> AnyCondition:
    """The condition of a symbolic bool; equal symbols are merged."""
    value: AnyCondition = flag.node.value
    simplify = flag.node.shape_env.facts.simplify
    if not isinstance(value, FloatRelation):
        return relation.rewrite(value, simplify)
    left, right = (floats.rewrite(side, simplify) for side in (value.left, value.right))
    return floats.compare(value.op, left, right, value.negated)
