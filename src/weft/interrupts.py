"""What comes from outside while weft works: signals, and exceptions that other threads set.

Place in the pipeline: the bottom, beside `config`. Capture holds signals during a compilation;
stages, inlined calls and waits are the points where they are handled.

Compiling runs torch's C++ code, parts of which end the process if a Python handler raises below
them (Ctrl-C, a time-out by SIGALRM), and changes tables that must not be left half filled. So the
program's handlers are called a little later, in its own thread, and what they raise is raised by
the call that was being compiled::

    with held():
        ...                    # SIGINT arrives: noted
        checkpoint()           # the handler raises: `Interrupted` ends the compilation
    # here the handler's own exception is raised

`Interrupted` is no `Exception`, so that nothing on the way takes it for a failure; what swallows it
all the same (a bare `except` of a backend) only delays the handler's exception until the block's
end. Where signals are not held (guards, compiled graphs that run, other threads), `surface` tells
such an exception from a failure.
"""

from __future__ import annotations

import ctypes
import dis
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from types import FrameType, TracebackType
from typing import Any, Final, TypeVar, final

from weft._frame import frame_arguments

Handler = Callable[[int, FrameType | None], Any]
T = TypeVar("T")

_SIGNALS: Final = tuple(signal.valid_signals())

PATIENCE: Final = 0.05
"""Seconds of waiting after which signals are looked at."""

_held: dict[int, Handler] = {}
"""The program's handlers, while ours are in their place."""
_arrived: list[tuple[int, Handler]] = []
_raised: list[BaseException] = []
"""What handlers have raised since signals are held."""


@final
class Interrupted(BaseException):
    """A handler of the program has raised; `held` raises its exception instead of this one."""


def _note(number: int, _frame: FrameType | None) -> None:
    _arrived.append((number, _held[number]))


@contextmanager
def held() -> Iterator[None]:
    """Delay signals until a checkpoint, at the latest until the end of the block.

    Only the main thread runs handlers; in others, and when nested, it does nothing.
    """
    if _held or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        try:
            _hold()
            yield
        except Interrupted:
            pass  # `_finish` raises its cause
    finally:
        _finish()


def _hold() -> None:
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler):
            _held[number] = handler
            signal.signal(number, _note)


def _finish() -> None:
    """Restore the handlers, handle what has arrived, and raise what handlers have raised."""
    try:
        _release()
    finally:
        _handle_arrived()
        if _raised:
            error = _raised[-1]
            _raised.clear()
            raise error from error.__cause__


def _release() -> None:
    """Restore the program's handlers, unless code inside the block set others.

    A restored handler may raise here; the others are restored all the same.
    """
    try:
        for number, handler in list(_held.items()):
            if signal.getsignal(number) is _note:
                signal.signal(number, handler)
            _held.pop(number, None)
    finally:
        if _held:
            _release()


def _handle_arrived() -> None:
    while _arrived:
        number, handler = _arrived.pop(0)
        try:
            handler(number, sys._getframe(1))
        except BaseException as error:  # noqa: BLE001  whatever it is, it is the program's
            _raised.append(error)


def checkpoint() -> None:
    """Handle the signals that have arrived; raises `Interrupted` if a handler of the program
    raises."""
    if not (_arrived or _raised) or threading.current_thread() is not threading.main_thread():
        return
    _handle_arrived()
    if _raised and not isinstance(sys.exception(), Interrupted):
        raise Interrupted


def wait_for(future: Future[T]) -> T:
    """The future's result; signals are handled while it is not there."""
    while True:
        try:
            return future.result(PATIENCE)
        except NotYet:
            if future.done():  # with such an error
                raise
            checkpoint()


# -- exceptions that are no failures --------------------------------------------------------------


def surface(error: BaseException) -> None:
    """Raise `error` if it was thrown into the running code from outside, by a signal's handler or
    another thread; return if that code failed itself."""
    if is_from_outside(error):
        raise error


def is_from_outside(error: BaseException) -> bool:
    """Whether a signal's handler has raised the exception, or another thread has set it.

    A handler is known by its arguments. An exception set by `PyThreadState_SetAsyncExc` appears at
    an instruction that cannot fail, or its class is of the program, and its place is not.
    """
    frames = list(_walk(error.__traceback__))
    if not frames:
        return False
    if any(_is_handler(traceback.tb_frame) for traceback in frames):
        return True
    innermost = frames[-1]
    return not isinstance(error, RecursionError | MemoryError) and (
        _cannot_fail(innermost) or _is_stray(error, innermost.tb_frame))


def _walk(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _is_handler(frame: FrameType) -> bool:
    """Whether the frame was called with a signal's number and the frame that it interrupted."""
    code = frame.f_code
    if frame.f_back is None or code.co_argcount + bool(code.co_flags & _VARARGS) == 0:
        return False
    arguments = frame_arguments(frame)
    if code.co_flags & _VARARGS:
        rest = arguments[-1]
        arguments = (*arguments[:-1], *(rest if isinstance(rest, tuple) else ()))
    return any(b is frame.f_back and isinstance(a, int) for a, b in pairwise(arguments))


_VARARGS: Final = 4  # inspect.CO_VARARGS
_INNOCENT: Final = frozenset(dis.opmap[name] for name in ("RESUME", "JUMP_BACKWARD"))


def _cannot_fail(place: TracebackType) -> bool:
    code, at = place.tb_frame.f_code.co_code, place.tb_lasti
    return code != _code_without_source() and 0 <= at < len(code) and code[at] in _INNOCENT


@cache
def _code_without_source() -> bytes:
    """The instructions of frames that compiled extensions (Cython's, say) show in tracebacks."""
    make = ctypes.pythonapi.PyCode_NewEmpty
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]
    return bytes(make(b"", b"", 1).co_code)


def _is_stray(error: BaseException, frame: FrameType) -> bool:
    """Whether a class of the program was raised in code of weft or of a library below it."""
    return not _is_library(type(error).__module__) and _is_library(
        frame.f_globals.get("__name__", ""))


def _is_library(module: str) -> bool:
    root = module.partition(".")[0]
    return root in _LIBRARIES or root in sys.stdlib_module_names


_LIBRARIES: Final = frozenset({"weft", "torch", "numpy", "sympy", "triton"})
