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

from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, is_none
from weft.capture.core.rules import breaking
from weft.capture.library.classes.instances import ObjectValue
from weft.capture.library.functions.functions import rule
from weft.capture.library.standard.library_polyfills import print_to
from weft.capture.library.standard.remade import RemadeValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@rule(print)
def _print(tx: Interpreter, *values: SymbolicValue, file: SymbolicValue = NONE,
           **options: SymbolicValue) -> SymbolicValue:
    target = tx.force(file)
    if is_none(target):  # where the program itself has redirected it
        target = tx.wrap_fixed(sys, "sys").getattr(tx, "stdout")
        if target.source is not None:
            raise graph_break("print", "a call of print")
    if not isinstance(target, RemadeValue | ObjectValue):
        raise graph_break("print", "a call of print")
    return tx.call_python(print_to, [*values], {**options, "file": target})


rule(input, open, exec, eval, compile)(breaking("print", "a call of print"))
rule(breakpoint)(breaking("debugger", "a call of breakpoint"))
