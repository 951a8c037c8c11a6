"""Entries on disk, as the compiler sees them: one is looked for at a miss, one is kept afterwards.

Place in the pipeline: called by `compiler.py`. Whatever goes wrong here, the frame is captured as
if there were no store::

    entry = stored_entry(compiler, state)          # None: capture it
    keep(compiler, record)                         # the next process has it
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, Final, Protocol

from weft.capture.core.source import FrameState
from weft.capture.sharing import is_alone
from weft.capture.stored.lookup import disk, keys, packed, unpacked
from weft.capture.stored.record import Record
from weft.capture.stored.records import Compiler, Loading, require_readable, to_data
from weft.capture.stored.shared import OneRankCompiles as OneRankCompiles
from weft.capture.stored.shared import offer
from weft.config import CompileOptions
from weft.diagnostics import events
from weft.errors import CacheWarning, warn
from weft.folders import remove
from weft.interrupts import surface
from weft.store import DoesNotFit, NotStorable
from weft.store.backwards import keep_backwards

_DAMAGED: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What reading an entry raises that is none, or of another form."""


class StoringCompiler(Compiler, Protocol):
    """What the store asks of the compiler."""

    options: CompileOptions
    backend: Any


def stored_entry(compiler: StoringCompiler, state: FrameState, *, outermost: bool) -> Any:
    """An entry for the frame that an earlier process has compiled, or None."""
    if is_alone():
        return None
    try:
        with events.stage("load"):
            return _first_that_fits(compiler, state, outermost)
    except NotStorable:
        return None
    except Exception as error:  # noqa: BLE001  a damaged entry: capture it
        surface(error)
        events.record("not_loaded", code=state.code, reason=f"{type(error).__name__}: {error}")
        return None


def _first_that_fits(compiler: StoringCompiler, state: FrameState, outermost: bool) -> Any:
    files = disk()
    for key in keys(state, compiler.options, compiler.backend, outermost=outermost):
        content = files.get(key)
        if content is None:
            return None
        try:
            entry = Loading(unpacked(content), compiler, state).entry()
        except DoesNotFit as reason:
            events.record("not_loaded", code=state.code, reason=str(reason))
            continue
        except _DAMAGED as error:  # it would stand before all further ones
            surface(error)
            events.record("not_loaded", code=state.code, reason=f"{type(error).__name__}: {error}")
            remove(files.path(key))
            continue
        events.count("entries_loaded")
        return entry
    return None


def differs(stored: Any, fresh: Any) -> bool:
    """Whether an entry from disk is not what a capture of the same frame gives."""
    first, second = (entry.fn.__weft_variant__.texts() for entry in (stored, fresh))
    return bool(first != second) or _text_of(stored.fn) != _text_of(fresh.fn)


def _text_of(function: FunctionType) -> tuple[object, ...]:
    code = function.__code__
    return code.co_code, code.co_names, code.co_firstlineno


def report_difference(state: FrameState) -> None:
    """Tell the user that an entry on disk was wrong; it is removed with all others."""
    events.count("entries_differ")
    for file in disk().directory.glob("??/*"):
        remove(file)
    warn(CacheWarning, f"{state.code.co_qualname}: an entry on disk differs from a new capture, "
         "which is used; the stored entries were removed")


def keep(compiler: StoringCompiler, record: Record, *, outermost: bool) -> None:
    """Keep a new entry for other processes; why not, if it cannot be, is an event."""
    code = record.state.code
    try:
        with events.stage("store"):
            data, writer = to_data(record, compiler)
            require_readable(data, compiler, record.state)
            content = packed(data)
            files = disk()
            for key in keys(record.state, compiler.options, compiler.backend, outermost=outermost):
                if not files.path(key).exists():
                    files.put(key, content)
                    offer(key, content)
                    events.count("entries_stored")
                    keep_backwards(writer.compiled_later)
                    return
    except NotStorable as reason:
        events.count("entries_not_stored")
        events.record("not_stored", code=code, reason=str(reason))
    except Exception as error:  # noqa: BLE001  the entry is compiled: not keeping it costs time only
        surface(error)
        events.count("entries_not_stored")
        events.record("not_stored", code=code, reason=f"{type(error).__name__}: {error}")
