"""Rules: what a call of one function, type or method does.

Place in the pipeline: under all of `library/`. A rule is a Python function with the parameters of
the callable that it stands for, behind what comes first: the interpreter, and the class or the
object::

    @rule(sum)
    def _sum(tx, iterable, /, start=ZERO): ...

    def m_get(self, tx, key, default=NONE, /): ...

`Rule.call` binds the arguments of a call to them; signatures are read once. Arguments that do not
fit end the graph: Python makes the call, and raises its own TypeError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, TypeVar, final

from weft.arity import Arity, arity
from weft.capture.core.breaks import graph_break

if TYPE_CHECKING:
    from weft.capture.core.base import Args, Kwargs, SymbolicValue
    from weft.capture.core.protocols import Interpreter

RuleFunction = Callable[..., "SymbolicValue"]

F = TypeVar("F", bound=RuleFunction)
K = TypeVar("K")


@functools.cache
def _arity_of_callable(function: object, first: int) -> Arity | None:
    """What a C function of Python's own library accepts, as far as `inspect` can read it."""
    home = getattr(function, "__objclass__", function)
    if not callable(function) or getattr(home, "__module__", None) not in _HOMES:
        return None
    try:
        return arity(function, first)
    except (TypeError, ValueError):
        return None


_HOMES: Final = ("builtins", "itertools", "functools", "_functools", "operator", "_operator",
                 "math", "collections", "_collections")


@final
class Rule:
    """A function that is applied in place of a callable.

    first: how many parameters come before those of the call. of: the callable; a call that does not
    fit its signature, behind its own first `skipped` parameters, does not fit the rule either: a
    rule may stand for several callables.
    """

    __slots__ = ("_arities", "_of", "first", "function", "name")

    def __init__(self, function: RuleFunction, name: str, first: int = 1, of: object = None,
                 skipped: int = 0) -> None:
        self.function = function
        self.name = name
        self.first = first
        self._of = of, skipped
        self._arities: list[Arity] | None = None

    def call(self, first: tuple[object, ...], args: Args, kwargs: Kwargs) -> SymbolicValue:
        """The result for the arguments of a call, behind what comes first."""
        if not self.fits(len(args), kwargs):
            raise graph_break("unknown-operation", f"{self.name} of {len(args)} arguments")
        return self.function(*first, *args, **kwargs)

    def fits(self, count: int, names: Collection[str]) -> bool:
        """Whether it takes `count` positional arguments and these keywords."""
        accepted = self._read() if self._arities is None else self._arities
        return all(a.accepts(count, names) for a in accepted)

    def _read(self) -> list[Arity]:
        """What the signatures of the function and of the callable accept."""
        own, outer = arity(self.function, self.first), _arity_of_callable(*self._of)
        self._arities = [own] if outer is None else [own, outer]
        return self._arities

    def __repr__(self) -> str:
        return f"rule of {self.name}"


def rules(table: dict[K, Rule], first: int = 1) -> Callable[..., Callable[[F], F]]:
    """The decorator, called with the keys, that enters a function as the rule of each of them."""

    def of(*keys: K) -> Callable[[F], F]:
        def enter(function: F) -> F:
            for key in keys:
                table[key] = Rule(function, _name_of(key), first, _callable_of(key))
            return function

        return enter

    return of


def _name_of(key: object) -> str:
    if isinstance(key, tuple):
        return ".".join(map(_name_of, key))
    return key if isinstance(key, str) else getattr(key, "__qualname__", None) or repr(key)


def _callable_of(key: object) -> object:
    """A callable, or the method of a type and its name."""
    if not isinstance(key, tuple):
        return key
    kind, name = key
    return getattr(kind, name, None)


_METHODS: Final[dict[tuple[type, type, str], Rule | None]] = {}


def rule_of_method(value: type[SymbolicValue], kind: type, name: str) -> Rule | None:
    """The rule of a C type's method, which is a method of the values that stand for the type."""
    key = value, kind, name
    if key not in _METHODS:
        function: RuleFunction | None = getattr(value, f"m_{name}", None)
        of = getattr(kind, name, None)
        _METHODS[key] = None if function is None or of is None else Rule(
            function, name, 2, of, skipped=1)
    return _METHODS[key]


def breaking(kind: str, detail: str) -> RuleFunction:
    """The rule of a call that always breaks the graph, for this reason."""

    def refuse(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
        raise graph_break(kind, detail)

    return refuse


def passed(**arguments: SymbolicValue | None) -> Kwargs:
    """The arguments that a call did pass: those that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}
