"""What the text of a tensor depends on besides the tensor: print options, the default type.

Place in the pipeline: asked by `tensor` when a text is made. Texts of known data are made while
capturing, under guarded options. Those of other data are made when the graph has run: under the
options of its end, so the graph ends before the program changes them::

    torch.set_printoptions(precision=2)     # a graph break
    torch.set_default_dtype(torch.float64)  # another, if a text waits for the graph
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy
import torch

from weft._torch import print_options
from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import constant, evaluate

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


def note_text_of_data(tx: Interpreter) -> None:
    """Record that a text waits for the graph; break it if the text would be another one then."""
    _require_options(tx)
    if torch.get_default_dtype() is not tx.state.at_start(torch.get_default_dtype, ()):
        raise graph_break("state", "a text of a tensor under a default type that the program set")
    tx.modes.texts_wait = True


def constant_text(tx: Interpreter, function: Callable[..., str], obj: object, *more: str
                  ) -> SymbolicValue:
    """The text of a known object, under the print options that arrays in it ask for."""
    if _holds_array(obj):
        expected, ask = numpy.get_printoptions(), numpy.get_printoptions
        tx.guards.add(tx.tree.object(ask, "numpy's print options"), "py",
                      lambda options: options() == expected)
    return constant(evaluate(tx, lambda: function(obj, *more)))


def _holds_array(obj: object) -> bool:
    if isinstance(obj, dict):
        return any(map(_holds_array, obj.values()))
    return isinstance(obj, numpy.ndarray) or (
        isinstance(obj, (list, tuple)) and any(map(_holds_array, obj)))


def guard_print_options(tx: Interpreter) -> None:
    """Guard the options under which a text of a tensor of known data is made."""
    _require_options(tx)
    place = tx.tree.object(print_options, "torch's print options").instance_dict()
    for name, value in vars(print_options).items():
        tx.guards.add(place.dict_item(name), "eq", value)


def _require_options(tx: Interpreter) -> None:
    if tx.effects.changed_any(print_options, vars(print_options)):
        raise graph_break("state", "a text of a tensor under print options that the program set")


def check_texts(tx: Interpreter) -> None:
    """Break the graph before a change that texts would show, if any wait for the graph."""
    if tx.modes.texts_wait:
        raise graph_break("state", "a change that texts of tensors show")
