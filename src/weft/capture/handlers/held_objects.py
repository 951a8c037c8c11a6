"""Objects that a node of the graph holds, since its operator calls or reads them when it runs.

Place in the pipeline: used by the rules of checkpoint (its settings) and of autograd functions
(arguments that are no tensors).
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from weft.capture.breaks import graph_break
from weft.capture.values.base import MISSING, SymbolicValue
from weft.capture.values.containers.sequences import ListValue, TupleValue
from weft.capture.values.objects.functions import BoundMethodValue, FunctionValue, PartialValue
from weft.capture.values.tensors.random_generators import RandomGeneratorValue
from weft.capture.values.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter


def held_object(tx: Interpreter, value: SymbolicValue, operator: str, *, copies: bool = True
                ) -> Any:
    """The Python object of a value: a constant, an outside object, or a function, method, partial
    or list of such made in the frame. Breaks the graph at `operator` for any other.

    copies: whether it may be a copy of a list, which the program could change.
    """
    value = tx.force(value)
    if value.is_constant:
        return value.constant()
    found = value.real()
    if found is not MISSING and not (
            tx.effects.changed(value) or isinstance(value, (RandomGeneratorValue, TensorValue))):
        tx.guards.identity(value.source, found)
        return found
    make = functools.partial(held_object, tx, operator=operator, copies=copies)
    if isinstance(value, FunctionValue) and value.attributes is None:
        return _function(tx, value, make)
    if isinstance(value, BoundMethodValue):
        return types.MethodType(make(value.function), make(value.owner))
    if isinstance(value, PartialValue):
        named = {k: make(v) for k, v in value.keywords.items()}
        return functools.partial(make(value.function), *map(make, value.args), **named)
    if isinstance(value, ListValue | TupleValue) and (copies or isinstance(value, TupleValue)):
        return value.python_type()(map(make, value.items))
    raise graph_break("unknown-value", f"{value!r} as an argument of {operator}")


def _function(tx: Interpreter, value: FunctionValue, make: Any) -> types.FunctionType:
    """A real function for one that the frame made, with its variables' current values."""
    cells = tuple(types.CellType(make(cell.read(tx))) for cell in value.closure)
    for cell in value.closure:
        tx.early_ends.note_cell(tx, cell)
    defaults = tuple(map(make, value.defaults))
    made = types.FunctionType(value.code, value.globals, value.name, defaults, cells)
    made.__kwdefaults__ = {k: make(v) for k, v in value.kwdefaults.items()}
    return made
