"""Sizes and Python numbers that change between calls, and what is computed from them.

Place in the pipeline: beside constants. The value holds a ``torch.SymInt`` (``SymFloat``,
``SymBool``) of the capture's `ShapeContext`; arithmetic is Python's on those, and a branch records
a guard. Where a plain number is needed (a list index, ``range``, a format string), a guard makes
the value constant::

    x.shape[0] * 2          # graph: a placeholder for the size, operator.mul
    return x.shape[0] + 1   # replacement: `v[3]+1`
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, final

import numpy
import torch
from torch import fx

from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import GraphBreak, graph_break
from weft.capture.core.constant import (
    ConstantMethod,
    ConstantValue,
    constant,
    evaluate,
    plain_value,
    python_object,
)
from weft.capture.core.declared import Declared
from weft.capture.core.methods import BoundBuiltin
from weft.capture.core.operator_names import COMPARISONS
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.library.numbers.data_numbers import condition_node, read_symbol
from weft.capture.library.numbers.float_operations import float_operation
from weft.capture.library.tensors.input_tests import outcome
from weft.dims import DimRange
from weft.shapes.algebra import functions
from weft.shapes.algebra.atoms import Applied, Atom, FloorDiv, Max, Min, Mod, Symbol
from weft.shapes.algebra.expr import Expr, operands, symbols
from weft.shapes.algebra.float_domains import is_certain
from weft.shapes.algebra.floats import (
    FloatExpr,
    FloatSymbol,
    number_symbols,
    operations,
    symbol_name,
    text,
    truncated,
)
from weft.shapes.algebra.intervals import INF
from weft.shapes.algebra.relation import ne
from weft.shapes.algebra.rounding import exponent, mantissa
from weft.shapes.guard import python_text, symbols_of
from weft.shapes.number_calls import float_call, number_call, number_of
from weft.shapes.symnode import SymNode, UndecidedValue, expr_of, float_of, is_hinted

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

SymbolicNumber = torch.SymInt | torch.SymFloat | torch.SymBool

_TYPES: Final[Mapping[type, type]] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
}


@final
class SymbolicNumberValue(SymbolicValue):
    """An int, float or bool that depends on sizes or numbers of the call."""

    __slots__ = ("example", "numpy_type", "tx")

    def __init__(
        self, tx: Interpreter, example: SymbolicNumber, source: Source | None = None,
        kind: type | None = None,
    ) -> None:
        super().__init__(source)
        self.tx = tx
        self.example = example
        self.numpy_type = kind
        """The NumPy type of the number; None: it is Python's."""

    def python_type(self) -> type:
        return self.numpy_type or _TYPES[type(self.example)]

    def constant(self) -> int | float | bool:
        try:
            if isinstance(self.example, torch.SymInt):
                fixed = self._beyond()
                if fixed is not None:
                    return fixed
            plain: int | float | bool = _TYPES[type(self.example)](self.example)
            return plain if self.numpy_type is None else self.numpy_type(plain)
        except UndecidedValue as error:
            raise graph_break("data-dependent-value", str(error)) from error

    def in_this_call(self) -> object:
        """The number in this call, without guarding it; MISSING if it depends on data."""
        known = is_hinted(self.example)
        return self.python_type()(self.example.node.hint) if known else MISSING

    def _beyond(self) -> int | None:
        """The value of an int of more than 64 bits: its symbols are fixed one by one, because
        ranges end at 64 bits."""
        value, shapes = _value_of(self.example), self.tx.shapes
        hint = shapes.hints.integer(value) if isinstance(value, Expr) else None
        if hint is None or abs(hint) < INF:
            return None
        for symbol in symbols(value):
            shapes.specialize(symbol)
        return hint

    def copied(self, tx: Interpreter) -> int | float | bool:
        """The plain number, for Python code that works on constants."""
        return evaluate(tx, self.constant)

    def dict_key(self, tx: Interpreter) -> object:
        return self.constant()

    def truth(self, tx: Interpreter) -> bool:
        try:
            return evaluate(tx, lambda: bool(self.example))
        except GraphBreak as error:
            expected = expected_truth(tx, self)
            answer = self._tested(tx) if expected is None else expected
            if answer is None:
                raise graph_break("data-dependent-branch", error.detail) from error
            return answer

    def _tested(self, tx: Interpreter) -> bool | None:
        """The truth in this call; a guard tests it in later ones (`tensors/input_tests.py`)."""
        asked = self if isinstance(self.example, torch.SymBool) else tx.binary(
            "ne", self, constant(0))
        answer = outcome(tx, asked.proxy(tx))
        if answer is not None:
            tx.shapes.learn(condition_of(asked), answer)
        return answer

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name in _NAMED and _has_method(self.example, name):
            return BoundBuiltin(self, name)
        if isinstance(self.example, _THEMSELVES.get(name, ())):
            return self
        return ConstantValue(self.constant()).getattr(tx, name)

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        function = _METHODS.get(name)
        if name in ("__int__", "__trunc__") and _is_float_of_data(self.example):
            return int_of_data(tx, self)
        if function is not None and not args and _has_method(self.example, name):
            result = tx.wrap_new(evaluate(tx, lambda: function(self.example)))
            return result if name in _CONVERSIONS else self._of_kind(result, self.numpy_type)
        rounded = self._rounded_to(tx, args) if name == "__round__" else None
        if rounded is not None:
            return self._of_kind(rounded, self.numpy_type)
        return ConstantMethod(constant(self.constant()), name).call(tx, args, kwargs)

    def _rounded_to(self, tx: Interpreter, args: Args) -> SymbolicValue | None:
        """The number rounded to some digits, still symbolic, or None if that cannot be
        expressed."""
        digits = args[0].constant() if len(args) == 1 and args[0].is_constant else None
        if type(digits) is not int or isinstance(self.example, torch.SymBool):
            return None
        if isinstance(self.example, torch.SymInt):
            return self if digits >= 0 else None
        number: Any = self.example
        return tx.wrap_new(evaluate(tx, lambda: round(number, digits)))

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        plain = plain_value(other) or other
        right = operand(plain)
        if right is None:
            right = _inheriting(plain, op)
        if right is None:
            return None
        kind = self.numpy_type or numpy_kind(plain)
        if op == "divmod" or not _stays_symbolic(op, self.example, right):
            known = constant(self.constant())
            return tx.binary(op, *((other, known) if reflected else (known, other)))
        if type(right) is bool and not isinstance(self.example, torch.SymBool):
            right = int(right)  # PyTorch's numbers make floats of divided bools
        function = getattr(operator, op)
        pair = (right, self.example) if reflected else (self.example, right)
        if op in _DIVISIONS:
            if kind is not None and not _is_certainly_not_zero(pair[1]):
                return None  # NumPy warns
            check_divisor(tx, op, *pair)
        if op in _OF_TWO_INTS and float in [_TYPES.get(type(n), type(n)) for n in pair]:
            return _refuse(tx, function, *((other, self) if reflected else (self, other)))
        plain_op = op.removeprefix("i")
        if plain_op in _PARTIAL and _gives_float(plain_op, *pair):
            return self._partial(tx, plain_op, pair, kind)
        return self._of_kind(tx.wrap_new(evaluate(tx, lambda: function(*pair))), kind)

    def _partial(self, tx: Interpreter, op: str, pair: Any, kind: type | None) -> Any:
        """An operation on floats that is not defined for all numbers."""
        if kind is not None and not is_certain(op, *map(number_of, pair)):
            return None  # NumPy warns
        result = float_operation(tx, op, *pair)
        if result is None:  # Python says what is wrong, or computes a complex number
            return tx.binary(op, *(constant(tx.wrap_new(n).constant()) for n in pair))
        return self._of_kind(result, kind)

    @staticmethod
    def _of_kind(value: SymbolicValue, kind: type | None) -> SymbolicValue:
        """The result of an operation with an operand of that NumPy type (or None)."""
        if kind is None:
            return value
        numpy_type = NUMPY_KINDS[value.python_type()]
        if isinstance(value, SymbolicNumberValue):
            return SymbolicNumberValue(value.tx, value.example, kind=numpy_type)
        return ConstantValue(numpy_type(value.constant()))

    def proxy(self, tx: Interpreter) -> Any:
        if not isinstance(self.example, torch.SymBool):
            return number_node(tx, _value_of(self.example))
        condition = self.example.node.value
        if tx.shapes.hints.condition(condition) is not None:
            return self.constant()
        return condition_node(tx, condition, _Nodes(tx).number)

    def fake(self, tx: Interpreter) -> Any:
        return self.example

    def rebuild(self, emit: Emitter) -> str:
        text = self._text(emit)
        return text if self.numpy_type is None else f"{emit.constant(self.numpy_type)}({text})"

    def _text(self, emit: Emitter) -> str:
        if isinstance(self.example, torch.SymBool):
            return self._condition_text(emit, self.example.node.value)
        value = _value_of(self.example)
        names = {symbol_name(s): _place(self.tx, emit, s) for s in number_symbols(value)}
        if isinstance(value, FloatExpr):
            return _in_steps(emit, value, names)
        plain = isinstance(value, FloatSymbol) or (
            not isinstance(value, float) and symbols(value) == {value})
        return text(value, names) if plain else f"({text(value, names)})"

    def _condition_text(self, emit: Emitter, condition: Any) -> str:
        """An expression for a bool: a constant, guarded, if this call decides it; otherwise
        computed from drawn numbers or data."""
        if self.tx.shapes.hints.condition(condition) is not None:
            return repr(bool(self.constant()))
        if not self.tx.shapes.is_of_results(condition):
            return f"({condition_of_inputs(emit, condition)})"
        return emit.output(condition_node(self.tx, condition, _Nodes(self.tx).number))

    def __repr__(self) -> str:
        return f"{self.python_type().__name__} {self.example}"


_OF_TWO_INTS: Final = frozenset({
    "and_", "or_", "xor", "lshift", "rshift", "iand", "ior", "ixor", "ilshift", "irshift",
})
_DIVISIONS: Final = frozenset({"truediv", "floordiv", "mod", "itruediv", "ifloordiv", "imod"})
_PARTIAL: Final = frozenset({"pow", "mod", "floordiv"})


_OF_BOOLS: Final = frozenset({"add", "sub", "mul", "iadd", "isub", "imul"})
"""Operators of bools that PyTorch's numbers have as Python has them."""
_BETWEEN_BOOLS: Final = frozenset({"and_", "or_", "iand", "ior", "eq", "ne"})


def _refuse(tx: Interpreter, function: Callable[..., object], *values: SymbolicValue) -> None:
    """Raise the error of an operation that the values' types do not have."""
    objects = [value.python_type()(1) if isinstance(value, SymbolicNumberValue)
               else python_object(tx, value) for value in values]
    if MISSING not in objects:
        evaluate(tx, lambda: function(*objects))


def _stays_symbolic(op: str, left: SymbolicNumber, right: object) -> bool:
    """Whether PyTorch's numbers do the operation as Python does; otherwise it is done on the
    numbers of this call."""
    if type(right) is int and abs(right) >= INF:
        return False
    if torch.SymBool not in (type(left), type(right)) or op in _OF_BOOLS:
        return True
    both = all(isinstance(number, bool | torch.SymBool) for number in (left, right))
    equals_bool = op in ("eq", "ne") and type(right) is int and right in (0, 1)
    return equals_bool or (both and op in _BETWEEN_BOOLS)


def check_divisor(tx: Interpreter, op: str, number: object, divisor: object) -> None:
    """Guard that the divisor is not zero; if it is, raise Python's error."""
    try:
        is_zero = bool(divisor == 0)
    except UndecidedValue:
        check_divisor_of_data(tx, divisor)
        return
    if is_zero:
        kinds = [_TYPES.get(type(n), type(n)) for n in (number, divisor)]
        divide = divmod if op == "divmod" else getattr(operator, op)
        evaluate(tx, lambda: divide(kinds[0](1), kinds[1](0)))


def _gives_float(op: str, left: object, right: Any) -> bool:
    """Whether Python computes a float; a guard settles the sign of an int's exponent."""
    if any(isinstance(number, float | torch.SymFloat) for number in (left, right)):
        return True
    return op == "pow" and is_hinted(right) and bool(right < 0)


def _as_int(number: SymbolicNumber) -> object:
    return torch.sym_int(number)


_METHODS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "__neg__": operator.neg,
    "__pos__": operator.pos,
    "__abs__": abs,
    "__int__": _as_int,
    "__index__": _as_int,
    "__trunc__": _as_int,
    "__float__": torch.sym_float,
    "__round__": round,
    "__invert__": lambda number: -number - 1,
    "conjugate": operator.pos,
    "bit_length": number_call(functions.BIT_LENGTH),
    "is_integer": lambda number: torch.SymBool(number.node.is_integer()),
    "item": operator.pos,
}
"""Methods whose result stays symbolic."""
_THEMSELVES: Final[Mapping[str, Any]] = {
    "real": torch.SymInt | torch.SymFloat, "numerator": torch.SymInt}
"""Attributes that are the number itself; those of a bool are ints."""
_NAMED: Final = frozenset(name for name in _METHODS if not name.startswith("_")) | {"__round__"}
_OF_INTS: Final = frozenset({"__index__", "__invert__", "bit_length"})
_CONVERSIONS: Final = frozenset({"__int__", "__index__", "__trunc__", "__float__", "__round__",
                                 "is_integer", "item"})
"""Methods that return a Python number for NumPy's, too."""

NUMPY_KINDS: Final[Mapping[type, type]] = {
    int: numpy.int64, float: numpy.float64, bool: numpy.bool_,
    numpy.int64: numpy.int64, numpy.float64: numpy.float64, numpy.bool_: numpy.bool_,
}
"""The NumPy types with Python's values and arithmetic."""


def numpy_kind(value: SymbolicValue) -> type | None:
    """The NumPy type of a number, or None."""
    kind = value.python_type()
    return kind if kind in (numpy.int64, numpy.float64, numpy.bool_) else None


def _has_method(number: SymbolicNumber, name: str) -> bool:
    if name in _OF_INTS:
        return isinstance(number, torch.SymInt)
    if name == "is_integer" and isinstance(number, torch.SymInt):
        return hasattr(int, name)  # since Python 3.12
    return not isinstance(number, torch.SymBool)


def _is_certainly_not_zero(divisor: object) -> bool:
    if isinstance(divisor, torch.SymInt):
        return divisor.node.shape_env.decide(ne(divisor.node.value, 0)) is True
    return not isinstance(divisor, torch.SymFloat) and divisor != 0


int_of_data: Declared[[Interpreter, SymbolicNumberValue], SymbolicValue] = Declared()
"""`int` of a float that depends on data."""

expected_truth: Declared[[Interpreter, SymbolicNumberValue], bool | None] = Declared()
"""The truth to assume of a number that depends on data, or None."""

check_divisor_of_data: Declared[[Interpreter, Any], None] = Declared()
"""Adds a check to the graph that the divisor is not zero; if it is, the program raises."""


def _is_float_of_data(number: SymbolicNumber) -> bool:
    if not isinstance(number, torch.SymFloat) or number.node.has_hint():
        return False
    return truncated(float_of(number)) is None


def extreme_number(tx: Interpreter, op: str, values: list[SymbolicValue]) -> SymbolicValue | None:
    """The maximum (`op` "gt") or minimum of ints or of floats."""
    numbers = [operand(value) for value in values]
    if not any(isinstance(n, torch.SymInt | torch.SymFloat) for n in numbers) or any(
            map(numpy_kind, values)):  # the type of the result would follow from the values
        return None
    function: Callable[[Any, Any], Any]
    if all(type(n) is int or isinstance(n, torch.SymInt) for n in numbers):
        function = torch.sym_max if op == "gt" else torch.sym_min
    elif all(isinstance(n, float | torch.SymFloat) for n in numbers):
        function = float_call("max" if op == "gt" else "min")  # in order: NaN is never greater
    else:
        return None
    return tx.wrap_new(evaluate(tx, lambda: functools.reduce(function, numbers)))


def operand(value: SymbolicValue) -> object:
    """The Python or symbolic number to calculate with; None for other values."""
    if isinstance(value, SymbolicNumberValue):
        return value.example
    if isinstance(value, ConstantValue) and type(value.value) in _PLAIN:
        return _PLAIN[type(value.value)](value.value)
    return None


def _inheriting(value: SymbolicValue, op: str) -> int | float | None:
    """The number that a member of an IntEnum is, or an instance of another subclass of int or float
    that takes this operation from there; None for other values."""
    kind = value.python_type()
    base: Any = next((base for base in (int, float) if issubclass(kind, base)), None)
    if base is None or not isinstance(value, ConstantValue):
        return None
    name = op.rstrip("_")
    names = COMPARISONS if name in COMPARISONS else (name, f"r{name}")
    methods = [(getattr(kind, f"__{each}__", None), getattr(base, f"__{each}__", None))
               for each in names]
    same = all(method is own is not None for method, own in methods)
    return base(value.value) if same else None


_PLAIN: Final[Mapping[type, type]] = {
    int: int, float: float, bool: bool, numpy.int64: int, numpy.float64: float,
}


_NAME: Final = re.compile(r"[A-Za-z_]\w*")


def condition_of(value: SymbolicValue) -> Any:
    """The condition that a comparison of symbolic numbers stands for."""
    assert isinstance(value, SymbolicNumberValue)
    return value.example.node.value


def _value_of(example: SymbolicNumber) -> Any:
    assert not isinstance(example, torch.SymBool)
    return expr_of(example) if isinstance(example, torch.SymInt) else float_of(example)


def _source(tx: Interpreter, symbol: Expr | FloatSymbol) -> Source:
    source = tx.shapes.sources[symbol][0]
    assert isinstance(source, Source)
    return source


def _place(tx: Interpreter, emit: Emitter, symbol: Expr | FloatSymbol) -> str:
    """The expression for a symbol in the replacement: a collected value or a graph output."""
    if symbol_name(symbol) in tx.shapes.unbacked_symbols.names:
        return emit.output(_Nodes(tx).number(symbol))
    return f"v[{_source(tx, symbol).collect()}]"


def condition_of_inputs(emit: Emitter, condition: Any) -> str:
    """An expression of the replacement for a condition on inputs alone."""
    names = {symbol_name(s): _place(emit.tx, emit, s) for s in symbols_of(condition)}
    return _NAME.sub(lambda m: names.get(m[0], m[0]), python_text(condition))


def number_node(tx: Interpreter, value: object) -> object:
    """The graph node (or plain number) of an int or float expression."""
    return _Nodes(tx).number(value)


@final
class _Nodes:
    """Adds graph nodes that compute symbolic numbers from the placeholders of their symbols."""

    def __init__(self, tx: Interpreter) -> None:
        self.tx = tx
        self.memo: dict[Any, Any] = tx.numbers.nodes

    def number(self, value: object) -> Any:
        """The node (or plain number) for an int or float expression."""
        if isinstance(value, int | float):
            return value
        if value not in self.memo:
            self.memo[value] = _NODE_RULES[type(value)](self, value)
        return self.memo[value]

    def symbol(self, symbol: Expr | FloatSymbol) -> fx.Node:
        context = self.tx.shapes
        if symbol_name(symbol) in context.unbacked_symbols.names:
            return read_symbol(self.tx, symbol_name(symbol))
        if isinstance(symbol, FloatSymbol):
            example: Any = torch.SymFloat(context.float_node(symbol))
        else:
            example = context.sym_int(symbol)
        source = _source(self.tx, symbol)
        hint = context.hints.of_symbol(symbol)
        node: fx.Node = self.tx.builder.placeholder(source, example, hint)
        return node

    def polynomial(self, value: Expr) -> object:
        atom = value.atom
        if isinstance(atom, Symbol):
            return self.symbol(value)
        if atom is not None:
            return self.atom(atom)
        total: Any = None
        for monomial, coefficient in value.terms.items():
            term = self.product(monomial, coefficient)
            total = term if total is None else self.call(operator.add, total, term)
        return self.call(operator.add, total, value.const) if value.const else total

    def product(self, monomial: tuple[Atom, ...], coefficient: int) -> object:
        result: Any = None
        for atom in monomial:
            factor = self.number(atom.expr)
            result = factor if result is None else self.call(operator.mul, result, factor)
        return result if coefficient == 1 else self.call(operator.mul, result, coefficient)

    def atom(self, atom: Atom) -> object:
        if isinstance(atom, Applied):
            return self.call(number_call(atom.function), *map(self.number, atom.args))
        function = _ATOM_FUNCTIONS[type(atom)]
        first, *others = map(self.number, operands(atom))
        for other in others:
            first = self.call(function, first, other)
        return first

    def floating(self, value: FloatExpr) -> Any:
        function = _FLOAT_FUNCTIONS.get(value.op) or float_call(value.op)
        return self.call(function, *map(self.number, value.args))

    def call(self, function: Callable[..., object], *args: object) -> Any:
        examples = [a.meta["example_value"] if isinstance(a, fx.Node) else a for a in args]
        stack = self.tx.stack()
        node = self.tx.builder.call(function, args, {}, function(*examples), stack)
        self.tx.builder.n_calls -= 1  # numbers alone are not worth a graph
        return node


_NODE_RULES: Final[Mapping[type, Callable[[_Nodes, Any], Any]]] = {
    Expr: _Nodes.polynomial,
    FloatSymbol: _Nodes.symbol,
    FloatExpr: _Nodes.floating,
}
_ATOM_FUNCTIONS: Final[Mapping[type[Atom], Callable[..., Any]]] = {
    FloorDiv: operator.floordiv,
    Mod: operator.mod,
    Min: torch.sym_min,
    Max: torch.sym_max,
}
_FLOAT_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "round": round,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "neg": operator.neg,
    "abs": abs,
    "float": torch.sym_float,
    **{
        name: getattr(torch, f"_sym_{name}")
        for name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan",
                     "log2")
    },
}


@wraps(torch.SymInt, torch.SymFloat, torch.SymBool)
def _wrap_symbolic(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    node = obj.node
    if not isinstance(node, SymNode):
        raise graph_break("unknown-value", "a number computed from a ragged size")
    if node.constant is not None:
        return ConstantValue(node.constant)
    known = expr_of(obj) if isinstance(obj, torch.SymInt) else None
    if isinstance(known, int):
        return ConstantValue(known)
    return SymbolicNumberValue(tx, obj, source)


def wrap_number(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue | None:
    """A symbolic value for an outside Python number that changes between calls, or None."""
    if source is None or type(obj) not in (int, float) or (
            type(obj) is int and abs(obj) >= INF) or obj != obj:
        return None
    known = tx.numbers.values.get(source)
    if known is not None:
        return known
    declared = tx.policy.number_range(source.name, obj)
    changes = tx.policy.is_symbolic(source.name, obj, argument=source.is_argument,
                                    attribute=source.is_attribute)
    if not changes and declared is None:
        return None
    tx.guards.add(source, "type_is", type(obj))
    number = _float(tx, obj, source) if type(obj) is float else _integer(tx, obj, source, declared)
    value = tx.numbers.values[source] = SymbolicNumberValue(tx, number, source)
    return value


def _float(tx: Interpreter, obj: float, source: Source) -> torch.SymFloat:
    @functools.cache
    def parts() -> tuple[Expr, Expr] | None:
        if tx.builder.is_finished:
            return None
        return _part(tx, obj, source, mantissa), _part(tx, obj, source, exponent)

    return tx.shapes.number(obj, source, parts)


def _part(tx: Interpreter, obj: float, source: Source, read: Callable[[float], int]) -> Expr:
    """What `read` returns for the float, as an input: sizes of results may depend on it."""
    place = source.call(read, f"{read.__name__}({source.name})")
    part = expr_of(tx.shapes.integer(read(obj), place))
    assert isinstance(part, Expr)
    tx.builder.keep(number_node(tx, part))
    return part


def _integer(tx: Interpreter, obj: int, source: Source, declared: DimRange | None) -> torch.SymInt:
    if declared is None:
        return tx.shapes.integer(obj, source)
    hi = INF if declared.max is None else declared.max
    size = tx.shapes.integer(obj, source, lo=declared.min, hi=hi, dim=declared.dim)
    if declared.strict:
        number = expr_of(size)
        assert isinstance(number, Expr)
        tx.shapes.marked.add(number)
    return size


_IN_ONE: Final = 16
"""Most operations in one expression of a replacement (Python allows 200 parentheses)."""


def _in_steps(emit: Emitter, value: FloatExpr, names: dict[str, str]) -> str:
    """An expression for the value; a long formula gets a statement for each operation."""
    known: dict[FloatExpr, str] = {}
    steps = operations(value)
    for step in steps[:-1] if len(steps) > _IN_ONE else ():
        known[step] = emit.temporary(text(step, names, known))
    return f"({text(value, names, known)})"
