"""Rules for hooks that the program registers with modules.

Place in the pipeline: see `weft.capture.library`. Capture interprets the Python code that registers
and removes hooks, except that each handle takes the next number of a counter. Here the replacement
draws the number, and only if the hook stays: it is a key that equals no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.hooks import RemovableHandle

from weft.capture.core.base import SymbolicValue
from weft.capture.library.functions.functions import polyfill, rule
from weft.capture.library.modules import polyfills
from weft.capture.library.numbers.identities import RunTimeNumber

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


polyfill(RemovableHandle.__init__, polyfills.init_handle)


@rule(polyfills.next_handle)
def _next_handle(tx: Interpreter) -> SymbolicValue:
    return RunTimeNumber(polyfills.next_handle, [], fresh=True)
