"""Immutable objects of C types, and functions that depend on their arguments only.

Place in the pipeline: see `weft.capture.library`. Python itself computes with patterns and matches
of `re`, decimals and dates, as with numbers; `json.dumps` and the functions of `re` run on
constants.
"""

from __future__ import annotations

import ast
import datetime
import decimal
import json
import pickle
import re
import struct
import typing
import uuid
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from weft.capture.core.base import Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import ConstantValue, evaluate, known_arguments
from weft.capture.core.registry import wraps, wraps_named
from weft.capture.core.source import Source
from weft.capture.library.classes.classes import constructor, constructor_named
from weft.capture.library.functions.functions import FunctionValue, rule
from weft.storable import storable

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_BY_VALUE: Final = (decimal.Decimal, datetime.date, datetime.datetime, datetime.time,
                    datetime.timedelta, datetime.timezone)
_PLACEMENTS: Final = tuple(f"torch.distributed.tensor.placement_types.{name}" for name in (
    "Shard", "Replicate", "Partial", "_StridedShard"))
"""How a DTensor lies on a mesh of devices."""
_WITH_FLAGS: Final[tuple[Any, ...]] = (
    re.compile, re.findall, re.fullmatch, re.match, re.search, re.split, re.sub, re.subn)
_FUNCTIONS: Final[tuple[Any, ...]] = (
    *_WITH_FLAGS, json.dumps, json.loads, re.escape, struct.calcsize, struct.pack, struct.unpack,
    struct.unpack_from, struct.iter_unpack, uuid.UUID.__str__, ast.literal_eval,
    *(function for name, function in vars(typing).items() if name.startswith("_collect_")),
)


def _evaluate(tx: Interpreter, function: Any, args: Sequence[SymbolicValue], kwargs: Kwargs
              ) -> SymbolicValue | None:
    """The result of Python's own call, or None if an argument is not entirely known."""
    known = known_arguments(tx, args, kwargs)
    if known is None:
        return None
    objects, named = known
    if function in _WITH_FLAGS and any(
            isinstance(o, int) and o & re.DEBUG for o in (*objects, *named.values())):
        raise graph_break("print", "a pattern that is printed")
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        result = evaluate(tx, lambda: function(*objects, **named))
    if issued:
        re.purge()  # a pattern cached now would not warn later
        raise graph_break("print", f"{function.__name__}, which warns")
    return tx.wrap_new(result)


@constructor(*_BY_VALUE)
@constructor_named(*_PLACEMENTS)
def _make(tx: Interpreter, cls: type, /, *args: SymbolicValue, **kwargs: SymbolicValue
          ) -> SymbolicValue:
    obj = _evaluate(tx, cls, args, kwargs)
    if obj is None:
        raise graph_break("unknown-operation", f"making a {cls.__name__}")
    return obj


@storable
@wraps(*_BY_VALUE)
@wraps_named(*_PLACEMENTS)
def _wrap_by_value(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    if source is not None and not source.is_fixed:
        tx.guards.same_key(source, obj, lambda value: (value, repr(value)))
    if isinstance(obj, decimal.Decimal):  # what is computed with it depends on the context
        place = tx.tree.object(decimal, "decimal").call(_context, "decimal.getcontext()")
        tx.guards.same_key(place, _context(decimal))
    return ConstantValue(obj)


def _context(module: Any) -> tuple[object, ...]:
    """The settings of the thread's decimal context."""
    context = module.getcontext()
    traps = [kind for kind, trapped in context.traps.items() if trapped]
    return (context.prec, context.rounding, context.Emin, context.Emax, context.capitals,
            context.clamp, *traps)


@wraps(re.Pattern, re.Match)
def _wrap_by_identity(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    tx.guards.identity(source, obj)
    return ConstantValue(obj)


def _register(function: Any) -> None:
    @rule(function)
    def call(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
        result = _evaluate(tx, function, args, kwargs)
        if result is not None:
            return result
        value = tx.wrap_fixed(function, function.__name__)
        if not isinstance(value, FunctionValue):
            raise graph_break("unknown-c-function", f"{function.__name__} of what is unknown")
        return value.inline(tx, [*args], kwargs)


@rule(pickle.dumps)
def _dumps(tx: Interpreter, obj: SymbolicValue, *rest: SymbolicValue, **named: SymbolicValue
           ) -> SymbolicValue:
    """The bytes of constants in containers, as programs make keys of keyword arguments."""
    known = known_arguments(tx, [obj, *rest], named)
    if known is None or not _is_plain(known[0][0], []):
        raise graph_break("unknown-c-function", "pickle.dumps of more than plain constants")
    objects, options = known
    pickled: Callable[..., bytes] = pickle.dumps
    return tx.wrap_new(evaluate(tx, lambda: pickled(*objects, **options)))


def _is_plain(obj: Any, seen: list[Any]) -> bool:
    """Whether pickling runs no code of classes, and all texts and containers differ: the bytes tell
    whether two equal ones are the same object, and this is a copy."""
    if type(obj) in (type(None), bool, int, float, complex) or obj == ():
        return True
    if type(obj) not in (str, bytes, tuple, list, dict) or obj in seen:
        return False
    seen.append(obj)
    parts = [part for item in obj.items() for part in item] if type(obj) is dict else obj
    return type(obj) in (str, bytes) or all(_is_plain(part, seen) for part in parts)


for _function in _FUNCTIONS:
    _register(_function)
