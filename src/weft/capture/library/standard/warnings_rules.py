"""Warnings wait for the end of the graph, as logging does; others break it.

Place in the pipeline: see `weft.capture.library`. A warning with a known text is a side effect,
replayed in order with the others (`core/side_effects.py`). It names the line of the frame
that `stacklevel` means, if that frame is captured::

    F.grid_sample(x, grid)      # warns of a default: `c7_warn_at(text, c8_UserWarning, c9_Place)`

The graph breaks if the program could catch the warning as an error, if the warning is an error now,
if the program has set `sys.stderr` meanwhile, or if warnings are recorded in a list outside, which
it may read. `catch_warnings` itself is interpreted; under the program's own filters, ignored
warnings are dropped, those that are always shown go to its list, and others break. Operators may
warn too: the graph runs under what such filters ignore (`ignored_warnings`).
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any, final

from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, ONE, constant, python_object
from weft.capture.core.frame import Frame, frame_places
from weft.capture.core.ignored_warnings import filters_mutated
from weft.capture.core.methods import BoundBuiltin
from weft.capture.core.tracebacks import Place, warn_at
from weft.capture.library.containers.sequences import ListValue
from weft.capture.library.functions.functions import rule
from weft.capture.library.standard import library_polyfills
from weft.capture.library.texts.symbolic_texts import TextValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


@final
class GivenWarning(SymbolicValue):
    """A call of `warnings.warn`, as a side effect."""

    __slots__ = ("category", "place", "text")
    kind = warnings.WarningMessage

    def __init__(self, text: SymbolicValue, category: type[Warning], place: Place) -> None:
        super().__init__()
        self.text, self.category, self.place = text, category, place

    def replay(self, emit: Emitter) -> None:
        """Emit the warning."""
        place = f"{emit.constant(self.category)}, {emit.constant(self.place)}"
        emit.line(f"{emit.constant(warn_at)}({emit.value(self.text)}, {place})")


@final
class ChangedFilters(SymbolicValue):
    """The program changed the filters; after that, C code, which caches them, is told."""

    kind = list

    def replay(self, emit: Emitter) -> None:
        """Emit the call."""
        emit.line(f"{emit.constant(filters_mutated)}()")


@rule(filters_mutated)
def _filters_mutated(tx: Interpreter) -> SymbolicValue:
    if not _was_told(tx):
        tx.effects.touch(ChangedFilters())
    filters = python_object(tx, tx.call_python(library_polyfills.warning_filters, []))
    if not isinstance(filters, list):
        raise graph_break("print", "filters of warnings that are not known")
    known = [*warnings.filters, *tx.modes.ignored_warnings]
    tx.modes.ignored_warnings += [entry for entry in filters if entry[0] == "ignore"
                            and entry not in known]
    return NONE


def _was_told(tx: Interpreter) -> bool:
    return any(isinstance(changed, ChangedFilters) for changed in tx.effects.touched())


def _has_own_filters(tx: Interpreter) -> bool:
    """Whether the filters differ from those at the start of the frame."""
    if not _was_told(tx):
        return False
    filters = tx.force(tx.call_python(library_polyfills.warning_filters, []))
    return filters.source is None or tx.effects.changed(filters)


@rule(warnings.warn)
def _warn(tx: Interpreter, message: SymbolicValue, category: SymbolicValue = NONE,
          stacklevel: SymbolicValue = ONE) -> SymbolicValue:
    frame = tx.frame
    kind = python_object(tx, category) or UserWarning
    level = python_object(tx, stacklevel)
    places = frame_places(frame) if frame is not None else ()
    known = isinstance(message, TextValue) or type(python_object(tx, message)) is str
    plain = isinstance(kind, type) and issubclass(kind, Warning) and type(level) is int
    if not known or not plain or max(level, 1) > len(places):
        raise graph_break("print", "a warning")
    warning = GivenWarning(message, kind, places[-max(level, 1)])
    own = _has_own_filters(tx)
    action = _action(tx, warning) if own else "default"
    if action == "ignore":
        return NONE
    if action == "always" and _are_recorded_inside(tx):
        code, line = warning.place.code, constant(warning.place.line)
        where = [tx.wrap_fixed(kind, kind.__name__), constant(code.co_filename), line]
        return tx.call_python(library_polyfills.show_warning, [message, *where])
    if own or _may_be_caught(frame) or tx.effects.changed(tx.globals_of(vars(sys))):
        raise graph_break("print", "a warning")
    if _is_error(warning) or _are_recorded():
        raise graph_break("print", "a warning that is an error or recorded")
    tx.effects.touch(warning)
    return NONE


def _may_be_caught(frame: Frame | None) -> bool:
    """Whether the call is inside a `try` of the program (`with` statements let errors through)."""
    while frame is not None:
        row = frame.program.handler_of(frame.current.index)
        if row is not None:
            handler = frame.program.instructions[row.target : row.target + 2]
            if handler[-1].name != "WITH_EXCEPT_START":
                return True
        frame = frame.caller
    return False


def _action(tx: Interpreter, warning: GivenWarning) -> str:
    """What the program's filters say about the warning."""
    module = warning.place.globals.get("__name__") or "<string>"
    asked = [constant(warning.category), constant(module), constant(warning.place.line)]
    action = tx.call_python(library_polyfills.warning_action, [warning.text, *asked])
    return str(python_object(tx, action))


def _are_recorded_inside(tx: Interpreter) -> bool:
    """Whether warnings that are shown go to a list that the program has made."""
    sink = tx.force(tx.call_python(library_polyfills.warning_sink, []))
    return isinstance(sink, BoundBuiltin) and isinstance(sink.owner, ListValue)


def _is_error(warning: GivenWarning) -> bool:
    """Whether the current filters may turn the warning into an error; texts are not compared."""
    module = warning.place.globals.get("__name__") or "<string>"
    entries: Any = warnings.filters
    for action, _, category, pattern, line in entries:
        if (issubclass(warning.category, category) and line in (0, warning.place.line)
                and (pattern is None or pattern.match(module))):
            return bool(action == "error")
    return False


def _are_recorded() -> bool:
    """Whether warnings go to a list; `warnings.warn` in C asks the module that is imported now."""
    show = getattr(sys.modules.get("warnings"), "_showwarnmsg_impl", None)
    return isinstance(getattr(show, "__self__", None), list)
