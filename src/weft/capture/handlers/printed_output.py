"""Printing breaks the graph, so that the output appears when the program is there.

Place in the pipeline: see `handlers/__init__`. Logging may be delayed (`logging_library.py`)::

    print("layer", 3)                 # a graph break: who prints while debugging wants it now
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.capture.breaks import graph_break
from weft.capture.values.base import Args, Kwargs, SymbolicValue
from weft.capture.values.objects.functions import rule

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter


@rule(print, input, open, exec, eval, compile, breakpoint)
def _print(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    raise graph_break("print", "a call of print")
