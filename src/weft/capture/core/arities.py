"""Which arguments C functions and types accept: how many, and under which names.

Place in the pipeline: consulted before a rule is applied. A call that does not fit
raises a TypeError, whose text is Python's own: the graph ends there and Python makes the call::

    fits(enumerate, 1, ["start"])     # True
    fits(enumerate, 1, ["begin"])     # False
    method_fits(list, "append", 2, []) # False
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, final


@final
@dataclass(frozen=True, slots=True)
class Arity:
    """The arguments that a callable accepts."""

    least: int
    most: float
    """The number of positional arguments, passed by position or by name."""
    names: dict[str, int]
    """Parameters that may be passed by name, with their positions; -1 for keyword-only ones."""
    required: frozenset[str]
    """Parameters without a default that may be passed by name."""
    any_name: bool


_Stub = Callable[..., Any]

_STUBS: Final[dict[Any, _Stub]] = {
    filter: lambda function, iterable, /: None,
    itertools.filterfalse: lambda function, iterable, /: None,
    map: lambda function, iterable, /, *iterables: None,
    zip: lambda *iterables, strict=False: None,
    reversed: lambda sequence, /: None,
    enumerate: lambda iterable, start=0: None,
    itertools.chain: lambda *iterables: None,
    itertools.islice: lambda iterable, stop, step=1, more=1, /: None,
    itertools.product: lambda *iterables, repeat=1: None,
    itertools.repeat: lambda object, times=0: None,
    itertools.zip_longest: lambda *iterables, fillvalue=None: None,
    itertools.starmap: lambda function, iterable, /: None,
    itertools.takewhile: lambda predicate, iterable, /: None,
    itertools.dropwhile: lambda predicate, iterable, /: None,
    functools.partial: lambda function, /, *args, **kwargs: None,
    iter: lambda iterable, sentinel=None, /: None,
    next: lambda iterator, default=None, /: None,
    getattr: lambda object, name, default=None, /: None,
    min: lambda first, /, *more, key=None, default=None: None,
    max: lambda first, /, *more, key=None, default=None: None,
}
"""Signatures of functions that `inspect` cannot read."""

_METHOD_STUBS: Final[dict[str, _Stub]] = {
    "pop": lambda self, key=None, default=None, /: None,
    "update": lambda self, others=None, /, **items: None,
    "get": lambda self, key, default=None, /: None,
    "setdefault": lambda self, key, default=None, /: None,
    "rotate": lambda self, steps=1, /: None,
    "insert": lambda self, index, item, /: None,
    "index": lambda self, item, start=0, stop=0, /: None,
    **dict.fromkeys(("popitem", "clear", "copy", "keys", "values", "items", "reverse"),
                    lambda self, /: None),
    **dict.fromkeys(("append", "appendleft", "extend", "extendleft", "count", "remove", "add",
                     "discard", "isdisjoint", "issubset", "issuperset", "symmetric_difference"),
                    lambda self, item, /: None),
}
"""Signatures of container methods that `inspect` cannot read."""

_HOMES: Final = ("builtins", "itertools", "functools", "_functools", "operator", "_operator",
                 "math", "collections", "_collections")


def fits(function: Any, count: int, names: Collection[str]) -> bool:
    """Whether the function accepts `count` positional arguments and these keywords; True if
    unknown."""
    return _accepts(arity_of(function), count, names)


def method_fits(kind: type, name: str, count: int, names: Collection[str]) -> bool:
    """As `fits`, for a method of a C type; the object itself is not counted."""
    return _accepts(_arity_of_method(kind, name), count, names)


def _accepts(arity: Arity | None, count: int, names: Collection[str]) -> bool:
    if arity is None:
        return True
    if not arity.least <= count + len(names) or count > arity.most:
        return False
    if not names:
        return True
    known = arity.any_name or all(name in arity.names for name in names)
    twice = any(0 <= arity.names.get(name, -1) < count for name in names)
    missing = any(name not in names and arity.names[name] >= count for name in arity.required)
    return known and not twice and not missing


@functools.cache
def arity_of(function: Any) -> Arity | None:
    """The arguments that a C function of Python's own libraries accepts, or None if unknown."""
    stub = _STUBS.get(function)
    if stub is None and getattr(function, "__module__", None) not in _HOMES:
        return None
    parameters = _parameters(function if stub is None else stub)
    return None if parameters is None else _read_arity(parameters)


@functools.cache
def _arity_of_method(kind: type, name: str) -> Arity | None:
    parameters = _parameters(getattr(kind, name, None))
    if parameters is None and kind.__module__ in ("builtins", "collections"):
        parameters = _parameters(_method_stub(kind, name))
    return None if parameters is None else _read_arity(parameters[1:])


def _method_stub(kind: type, name: str) -> _Stub | None:
    if name == "update" and not issubclass(kind, dict):
        return lambda self, *others: None
    return _METHOD_STUBS.get(name)


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def _read_arity(parameters: list[inspect.Parameter]) -> Arity:
    kinds = inspect.Parameter
    places = [p for p in parameters
              if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    names = {p.name: n for n, p in enumerate(places) if p.kind is not kinds.POSITIONAL_ONLY}
    names |= {p.name: -1 for p in parameters if p.kind is kinds.KEYWORD_ONLY}
    many = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    return Arity(
        least=sum(p.default is p.empty for p in places),
        most=float("inf") if many else len(places),
        names=names,
        required=frozenset(p.name for p in places if p.default is p.empty and p.name in names),
        any_name=any(p.kind is kinds.VAR_KEYWORD for p in parameters),
    )
