"""Rules for hooks that the program registers with modules.

Place in the pipeline: see `handlers/__init__`. Capture interprets the Python code that registers
and removes hooks, except that each handle takes the next number of a counter. Here the replacement
draws the number, and only if the hook stays: it is a key that equals no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.hooks import RemovableHandle

from weft.capture.polyfills import hooks
from weft.capture.values.base import Args, Kwargs, SymbolicValue
from weft.capture.values.containers.identities import RunTimeNumber
from weft.capture.values.objects.functions import polyfill, rule

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter


polyfill(RemovableHandle.__init__, hooks.init_handle)


@rule(hooks.next_handle)
def _next_handle(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return RunTimeNumber(hooks.next_handle, [], fresh=True)
