"""Printing breaks the graph, so that the output appears when the program is there.

Place in the pipeline: see `weft.capture.library`. Logging may be delayed
(`library/standard/logging_rules.py`), and what is printed to an object of the
program is written to it::

    print("layer", 3)                 # a graph break: who prints while debugging wants it now
    print("layer", 3, file=report)    # report.write("layer"); report.write(" "); ...
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import is_none
from weft.capture.library.classes.instances import ObjectValue
from weft.capture.library.functions.functions import rule
from weft.capture.library.standard.library_polyfills import print_to
from weft.capture.library.standard.remade import RemadeValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@rule(print)
def _print(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    file = tx.force(kwargs["file"]) if "file" in kwargs else None
    if file is None or is_none(file):  # where the program itself has redirected it
        file = tx.wrap_fixed(sys, "sys").getattr(tx, "stdout")
        if file.source is not None:
            raise graph_break("print", "a call of print")
    if not isinstance(file, RemadeValue | ObjectValue):
        raise graph_break("print", "a call of print")
    return tx.call_python(print_to, args, {**kwargs, "file": file})


@rule(input, open, exec, eval, compile, breakpoint)
def _outside(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    raise graph_break("print", "a call of print")
