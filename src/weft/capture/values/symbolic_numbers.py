"""Sizes and Python numbers that change between calls, and what is computed of them.

Place in the pipeline: beside constants. The value holds a ``torch.SymInt`` (``SymFloat``,
``SymBool``) of the capture's `ShapeContext`; arithmetic is Python's on those, a branch records a
guard. Where a plain number is needed (a list index, ``range``, a format string) the value becomes
constant, by a guard.

    x.shape[0] * 2          # graph: a placeholder for the size, operator.mul
    return x.shape[0] + 1   # replacement: `v[3]+1`
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import fx

from weft.capture.breaks import GraphBreak, graph_break
from weft.capture.source import Source
from weft.capture.values.base import Args, Kwargs, SymbolicValue
from weft.capture.values.constant import ConstantMethod, ConstantValue, constant, evaluate
from weft.capture.values.data_numbers import condition_node, read_symbol
from weft.capture.values.registry import wraps
from weft.dims import DimRange
from weft.shapes.atoms import Atom, FloorDiv, Max, Min, Mod, Symbol
from weft.shapes.expr import Expr, operands, symbol_of, symbols
from weft.shapes.floats import (
    FloatExpr,
    FloatSymbol,
    number_symbols,
    rounded_down,
    text,
    truncated,
)
from weft.shapes.intervals import INF
from weft.shapes.symnode import UndecidedValue, expr_of, float_of

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter
    from weft.capture.replacement import Emitter

SymbolicNumber = torch.SymInt | torch.SymFloat | torch.SymBool

_TYPES: Final[Mapping[type, type]] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
}


@final
class SymbolicNumberValue(SymbolicValue):
    """An int, float or bool that depends on sizes or numbers of the call."""

    __slots__ = ("example", "tx")

    def __init__(
        self, tx: Interpreter, example: SymbolicNumber, source: Source | None = None
    ) -> None:
        super().__init__(source)
        self.tx = tx
        self.example = example

    def python_type(self) -> type:
        return _TYPES[type(self.example)]

    def constant(self) -> int | float | bool:
        try:
            if isinstance(self.example, torch.SymInt):
                fixed = self._beyond()
                if fixed is not None:
                    return fixed
            return self.python_type()(self.example)  # type: ignore[no-any-return]
        except UndecidedValue as error:
            raise graph_break("data-dependent-value", str(error)) from error

    def _beyond(self) -> int | None:
        """The value of an int that has more than 64 bits, which only its symbols can be fixed by:
        what is known of ranges ends there."""
        value, shapes = _value_of(self.example), self.tx.shapes
        hint = shapes.hint(value) if isinstance(value, Expr) else None
        if hint is None or abs(hint) < INF:
            return None
        for symbol in symbols(value):
            shapes.specialize(symbol)
        return hint

    def copied(self, tx: Interpreter) -> int | float | bool:
        """The plain number, for Python code that works on constants."""
        return evaluate(tx, self.constant)  # type: ignore[no-any-return]

    def dict_key(self, tx: Interpreter) -> Any:
        return self.constant()

    def truth(self, tx: Interpreter) -> bool:
        try:
            return evaluate(tx, lambda: bool(self.example))  # type: ignore[no-any-return]
        except GraphBreak as error:
            raise graph_break("data-dependent-branch", error.detail) from error

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        return ConstantValue(self.constant()).getattr(tx, name)

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        function = _METHODS.get(name)
        if name in ("__int__", "__trunc__") and _is_float_of_data(self.example):
            return TRUNCATED[0](tx, self)
        if function is not None:
            return tx.wrap_new(evaluate(tx, lambda: function(self.example)))
        return ConstantMethod(constant(self.constant()), name).call(tx, args, kwargs)

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        right = operand(other)
        if right is None:
            return None
        if type(right) is int and abs(right) >= INF:
            known = constant(self.constant())
            pair_of_constants = (other, known) if reflected else (known, other)
            return tx.binary(op, *pair_of_constants)
        function = getattr(operator, op)
        pair = (right, self.example) if reflected else (self.example, right)
        if op in _DIVISIONS:
            self._check_divisor(tx, pair[1])
        return tx.wrap_new(evaluate(tx, lambda: function(*pair)))

    @staticmethod
    def _check_divisor(tx: Interpreter, divisor: Any) -> None:
        """Guards that it is not zero, else raises what Python raises."""
        try:
            is_zero = isinstance(divisor, (torch.SymInt, torch.SymFloat)) and bool(divisor == 0)
        except UndecidedValue:
            DIVISORS[0](tx, divisor)
            return
        if is_zero:
            kind = "float division" if isinstance(divisor, torch.SymFloat) else "division"
            raise tx.error(ZeroDivisionError, f"{kind} by zero")

    def proxy(self, tx: Interpreter) -> Any:
        if not isinstance(self.example, torch.SymBool):
            return number_node(tx, _value_of(self.example))
        condition = self.example.node.value
        if tx.shapes.condition_hint(condition) is not None:
            return self.constant()
        return condition_node(tx, condition, _Nodes(tx).number)

    def fake(self, tx: Interpreter) -> Any:
        return self.example

    def rebuild(self, emit: Emitter) -> str:
        if isinstance(self.example, torch.SymBool):
            return self._condition_text(emit, self.example.node.value)
        value = _value_of(self.example)
        names = {_name(s): _place(self.tx, emit, s) for s in number_symbols(value)}
        plain = isinstance(value, FloatSymbol) or (
            not isinstance(value, (float, FloatExpr)) and symbols(value) == {value})
        return text(value, names) if plain else f"({text(value, names)})"

    def _condition_text(self, emit: Emitter, condition: Any) -> str:
        """A bool: constant (guarded) if this call decides it, else computed from the data."""
        if self.tx.shapes.condition_hint(condition) is not None:
            return repr(self.constant())
        return emit.output(condition_node(self.tx, condition, _Nodes(self.tx).number))

    def __repr__(self) -> str:
        return f"{self.python_type().__name__} {self.example}"


_DIVISIONS: Final = frozenset({"truediv", "floordiv", "mod", "itruediv", "ifloordiv", "imod"})


def _as_int(number: SymbolicNumber) -> Any:
    return torch.sym_int(number)


_METHODS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "__neg__": operator.neg,
    "__pos__": operator.pos,
    "__abs__": abs,
    "__int__": _as_int,
    "__index__": _as_int,
    "__trunc__": _as_int,
    "__float__": torch.sym_float,
}
"""Methods whose result stays symbolic."""


TRUNCATED: Final[list[Callable[[Any, SymbolicNumberValue], SymbolicValue]]] = []
"""What `int` of a float that depends on data is (registered by `handlers/data_numbers.py`)."""


DIVISORS: Final[list[Callable[[Any, Any], None]]] = []
"""Checks that a divisor that depends on data is not zero."""


def _is_float_of_data(number: SymbolicNumber) -> bool:
    if not isinstance(number, torch.SymFloat) or number.node.has_hint():
        return False
    return truncated(float_of(number)) is None


def _function_of_math(name: str) -> Callable[[Any], Any]:
    """One that torch has no symbolic twin of."""

    def function(number: Any) -> Any:
        if not isinstance(number, torch.SymInt | torch.SymFloat):
            return getattr(math, name)(number)
        return torch.SymFloat(getattr(number.node, f"sym_{name}")())

    function.__name__ = function.__qualname__ = name
    return function


_OWN_TWINS: Final = {name: _function_of_math(name) for name in ("log", "exp")}
_MATH: Final[Mapping[Any, Callable[[Any], Any]]] = {
    math.floor: math.floor, math.ceil: math.ceil, math.trunc: torch.sym_int,
    **{getattr(math, name): function for name, function in _OWN_TWINS.items()},
    **{getattr(math, name): getattr(torch, f"_sym_{name}")
       for name in ("sqrt", "log2", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
                    "tanh")},
}  # fmt: skip


def math_of_number(tx: Interpreter, function: Any, args: Args, kwargs: Kwargs
                   ) -> SymbolicValue | None:
    """`math.sqrt(x.shape[0])` and the like, which stay symbolic; None for other calls."""
    if len(args) != 1 or kwargs or not isinstance(args[0], SymbolicNumberValue):
        return None
    symbolic, number = _MATH.get(function), args[0].example
    if symbolic is None or isinstance(number, torch.SymBool):
        return None
    if function in (math.floor, math.ceil, math.trunc):
        if isinstance(number, torch.SymInt):
            return args[0]
        if not number.node.has_hint() and rounded_down(float_of(number)) is None:
            return None
    return tx.wrap_new(evaluate(tx, lambda: symbolic(number)))


def extreme_number(tx: Interpreter, op: str, values: list[SymbolicValue]) -> SymbolicValue | None:
    """The greatest (`op` "gt") or least of some ints, where data decides which it is."""
    numbers = [operand(value) for value in values]
    if not any(isinstance(n, torch.SymInt) and not n.node.has_hint() for n in numbers):
        return None
    if not all(type(n) is int or isinstance(n, torch.SymInt) for n in numbers):
        return None
    function = torch.sym_max if op == "gt" else torch.sym_min
    return tx.wrap_new(evaluate(tx, lambda: functools.reduce(function, numbers)))


def operand(value: SymbolicValue) -> Any:
    """The Python or symbolic number for arithmetic; None for other values."""
    if isinstance(value, SymbolicNumberValue):
        return value.example
    if isinstance(value, ConstantValue) and type(value.value) in (int, float, bool):
        return value.value
    return None


def _value_of(example: SymbolicNumber) -> Any:
    assert not isinstance(example, torch.SymBool)
    return expr_of(example) if isinstance(example, torch.SymInt) else float_of(example)


def _name(symbol: Expr | FloatSymbol) -> str:
    return symbol.name if isinstance(symbol, FloatSymbol) else symbol_of(symbol).name


def _source(tx: Interpreter, symbol: Expr | FloatSymbol) -> Source:
    source = tx.shapes.sources[symbol][0]
    assert isinstance(source, Source)
    return source


def _place(tx: Interpreter, emit: Emitter, symbol: Expr | FloatSymbol) -> str:
    """Where the replacement finds the symbol: among the collected values or graph outputs."""
    if _name(symbol) in tx.shapes.unbacked_symbols.names:
        return emit.output(_Nodes(tx).number(symbol))
    return f"v[{_source(tx, symbol).collect()}]"


def number_node(tx: Interpreter, value: Any) -> Any:
    """The graph node (or plain number) of an int or float expression."""
    return _Nodes(tx).number(value)


@final
class _Nodes:
    """Graph nodes that compute symbolic numbers from the placeholders of their symbols."""

    def __init__(self, tx: Interpreter) -> None:
        self.tx = tx
        self.memo: dict[Any, Any] = tx.number_nodes

    def number(self, value: Any) -> Any:
        """The node (or plain number) for an int or float expression."""
        if isinstance(value, int | float):
            return value
        if value not in self.memo:
            self.memo[value] = _NODE_RULES[type(value)](self, value)
        return self.memo[value]

    def symbol(self, symbol: Expr | FloatSymbol) -> fx.Node:
        context = self.tx.shapes
        if _name(symbol) in context.unbacked_symbols.names:
            return read_symbol(self.tx, _name(symbol))
        if isinstance(symbol, FloatSymbol):
            example: Any = torch.SymFloat(context.float_node(symbol))
        else:
            example = context.sym_int(symbol)
        source = _source(self.tx, symbol)
        hint = context.hints.get(symbol, context.examples.get(symbol))
        node: fx.Node = self.tx.builder.placeholder(source, example, hint)
        return node

    def polynomial(self, value: Expr) -> Any:
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

    def product(self, monomial: tuple[Atom, ...], coefficient: int) -> Any:
        result: Any = None
        for atom in monomial:
            factor = self.number(atom.expr)
            result = factor if result is None else self.call(operator.mul, result, factor)
        return result if coefficient == 1 else self.call(operator.mul, result, coefficient)

    def atom(self, atom: Atom) -> Any:
        function = _ATOM_FUNCTIONS[type(atom)]
        first, *others = map(self.number, operands(atom))
        for other in others:
            first = self.call(function, first, other)
        return first

    def floating(self, value: FloatExpr) -> Any:
        return self.call(_FLOAT_FUNCTIONS[value.op], *map(self.number, value.args))

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        examples = [a.meta["example_value"] if isinstance(a, fx.Node) else a for a in args]
        stack = self.tx.stack()
        node = self.tx.builder.call("call_function", function, args, {}, function(*examples), stack)
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
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "min": torch.sym_min,
    "max": torch.sym_max,
    "neg": operator.neg,
    "abs": abs,
    "float": torch.sym_float,
    **{
        name: getattr(torch, f"_sym_{name}")
        for name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan",
                     "log2")
    },
    **_OWN_TWINS,
}


@wraps(torch.SymInt, torch.SymFloat, torch.SymBool)
def _wrap_symbolic(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    node = obj.node
    if node.constant is not None:
        return ConstantValue(node.constant)
    known = expr_of(obj) if isinstance(obj, torch.SymInt) else None
    if isinstance(known, int):
        return ConstantValue(known)
    return SymbolicNumberValue(tx, obj, source)


def wrap_number(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue | None:
    """A Python number from outside, if it is one that changes between calls."""
    if source is None or type(obj) not in (int, float) or (
            type(obj) is int and abs(obj) >= INF):
        return None
    known = tx.numbers.get(source)
    if known is not None:
        return known
    said = tx.policy.number_range(source.name, obj)
    if not tx.policy.is_symbolic(source.name, obj) and said is None:
        return None
    tx.guards.add(source, "type_is", type(obj))
    made = _float(tx, obj, source) if type(obj) is float else _integer(tx, obj, source, said)
    value = tx.numbers[source] = SymbolicNumberValue(tx, made, source)
    return value


def _float(tx: Interpreter, obj: float, source: Source) -> torch.SymFloat:
    return tx.shapes.number(obj, source)


def _integer(tx: Interpreter, obj: int, source: Source, said: DimRange | None) -> torch.SymInt:
    if said is None:
        return tx.shapes.integer(obj, source)
    hi = INF if said.max is None else said.max
    made = tx.shapes.integer(obj, source, lo=said.min, hi=hi, dim=said.dim)
    if said.strict:
        number = expr_of(made)
        assert isinstance(number, Expr)
        tx.shapes.marked.add(number)
    return made

