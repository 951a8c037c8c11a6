"""Objects that a node of the graph holds, since its operator calls or reads them when it runs.

Place in the pipeline: used by the rules of checkpoint (its settings), and of autograd functions and
functions that are allowed in the graph (arguments that are no tensors).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Final

from torch import fx

from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.containers.sequences import ListValue, SliceValue, TupleValue
from weft.capture.library.functions.functions import BoundMethodValue, FunctionValue, PartialValue
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.random.generators import RandomGeneratorValue
from weft.capture.library.tensors.tensor import TensorValue
from weft.shapes.graph_facts import LateReads, ProgramFunction

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter
    from weft.capture.core.source import Source


def held_object(tx: Interpreter, value: SymbolicValue, operator: str, *, copies: bool = True
                ) -> Any:
    """The Python object of a value: a constant, an outside object, or a function, method, partial
    or list of such made in the frame. Breaks the graph at `operator` for any other.

    copies: whether it may be a copy of a list, which the program could change.
    """
    value = tx.force(value)
    if value.is_constant:
        return value.constant()
    obj = value.real()
    if obj is not MISSING and not (
            tx.effects.changed(value) or isinstance(value, (RandomGeneratorValue, TensorValue))):
        tx.guards.identity(value.source, obj)
        return obj
    make = functools.partial(held_object, tx, operator=operator, copies=copies)
    if isinstance(value, FunctionValue) and value.attributes is None:
        return _function(tx, value, make)
    if isinstance(value, BoundMethodValue):
        return types.MethodType(make(value.function), make(value.owner))
    if isinstance(value, PartialValue):
        named = {k: make(v) for k, v in value.keywords.items()}
        return functools.partial(make(value.function), *map(make, value.args), **named)
    if isinstance(value, SymbolicNumberValue):
        return value.constant()
    if isinstance(value, ListValue | TupleValue) and (copies or isinstance(value, TupleValue)):
        return value.build([make(item) for item in value.all(tx)])
    if copies and value.python_type() is dict and isinstance(value, DictValue):
        return {make(key): make(item) for key, item in value.pairs(tx)}
    raise graph_break("unknown-value", f"{value!r} as an argument of {operator}")


_SHOWN: Final = frozenset({*fx.node.base_types, types.NoneType, types.EllipsisType, range})


def is_shown(tx: Interpreter, value: SymbolicValue) -> bool:
    """Whether an argument of a graph's node can be the value, type and all: members of
    enumerations, NumPy's numbers and instances of subclasses would become plain numbers, texts and
    tuples there."""
    value = tx.force(value)
    kind = value.python_type()
    if isinstance(value, SliceValue):
        return all(is_shown(tx, part) for part in value.parts)
    if kind in (list, tuple) and isinstance(value, ListValue | TupleValue):
        return all(is_shown(tx, item) for item in value.all(tx))
    if kind is dict and isinstance(value, DictValue):
        return all(is_shown(tx, part) for pair in value.pairs(tx) for part in pair)
    if isinstance(value, SymbolicNumberValue):
        return value.numpy_type is None
    return isinstance(value, TensorValue) or (value.is_constant and kind in _SHOWN)


Held = dict[int | str, Any]
"""Objects by the position or the name of the argument that they are."""


def split_arguments(tx: Interpreter, args: Args, kwargs: Kwargs, operator: str,
                    kept: Container[Source] = ()) -> tuple[Args, Kwargs, Held]:
    """The arguments that a graph can show, and those that the node's function must hold: what is
    `kept` may change later, and is the program's own object."""
    every: dict[int | str, SymbolicValue] = {}
    every.update(enumerate(args))
    every.update(kwargs.items())
    held: Held = {key: held_object(tx, value, operator) for key, value in every.items()
                  if tx.force(value).source in kept or not is_shown(tx, value)}
    return ([value for index, value in enumerate(args) if index not in held],
            {name: value for name, value in kwargs.items() if name not in held}, held)


def holding(function: Callable[..., object], name: str, held: Held, reads: LateReads | None = None
            ) -> ProgramFunction:
    """A function that calls another one, with arguments of its own at some places, and has a
    name of its own, which the graph shows."""
    named = {key: value for key, value in held.items() if isinstance(key, str)}
    placed = [(key, value) for key, value in held.items() if isinstance(key, int)]

    def apply(*args: object, **kwargs: object) -> object:
        placed_args = [*args]
        for index, value in placed:
            placed_args.insert(index, value)
        return function(*placed_args, **kwargs, **named)

    return ProgramFunction(name, apply, is_unseen=True, late_reads=reads)


def _function(tx: Interpreter, value: FunctionValue, make: Any) -> types.FunctionType:
    """A real function for one that the frame made, with its variables' current values."""
    cells = tuple(types.CellType(make(cell.read(tx))) for cell in value.closure)
    for cell in value.closure:
        tx.early_ends.note_cell(tx, cell)
    defaults = tuple(map(make, value.defaults))
    copy = types.FunctionType(value.code, value.globals, value.name, defaults, cells)
    copy.__kwdefaults__ = {k: make(v) for k, v in value.kwdefaults.items()}
    return copy
