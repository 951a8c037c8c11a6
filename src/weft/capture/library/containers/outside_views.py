"""Views of dictionaries from outside: what an object keeps of `d.keys()`.

Place in the pipeline: a value family beside `mapping.py`. The view is read through the dictionary
that it belongs to, which is guarded as any other::

    self.names = options.keys()       # outside
    if len(self.names): ...           # guards the keys of `options`
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.library.classes.unknown import unknown
from weft.capture.library.containers.mapping import DictValue, DictView

if TYPE_CHECKING:
    from weft.capture.core.base import SymbolicValue
    from weft.capture.core.protocols import Interpreter

_WHAT: Final[dict[type, str]] = {
    type(getattr(kind(), what)()): what
    for kind in (dict, OrderedDict) for what in ("keys", "values", "items")}


def _owner(view: Any) -> Any:
    """The dictionary itself; `view.mapping` is a proxy of it."""
    return gc.get_referents(view)[0]


@wraps(*_WHAT)
def _wrap_view(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None:
        return unknown(tx, obj, source)
    owner = tx.wrap(_owner(obj), source.call(_owner, f"{source.name}.mapping")).underlying()
    if not isinstance(owner, DictValue):
        return unknown(tx, obj, source)
    tx.guards.add(source, "type_is", type(obj))
    view = DictView(owner, _WHAT[type(obj)])
    view.source = source
    return view
