"""Stances: what compiled functions do for a while (compile, run eagerly or refuse), and where graph
breaks are errors.

Place in the pipeline: below capture, which reads the stance if no compiled variant fits. Both
settings belong to the thread that sets them; where it sets no stance, `torch.compiler.set_stance`
counts, which is of the process. `set_stance` is a function, context and decorator::

    weft.set_stance("eager_on_recompile")           # from now on: no compilation in this thread

    with weft.set_stance("force_eager"):            # as if nothing were compiled
        reference = compiled(x)

    @weft.error_on_graph_break(True)                # a graph break in here raises GraphBreakError
    def attention(q, k, v): ...
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar, final

from weft._frame import force_eager
from weft.config import config
from weft.errors import BadValue, UnknownStance
from weft.torch_marks import torch_stance

P = ParamSpec("P")
R = TypeVar("R")

REFUSING: Final = ("force_eager", "eager_on_recompile", "fail_on_recompile")
"""Stances under which nothing is compiled."""

WAITING: Final = ("eager_then_compile", "aot_eager_then_compile")
"""Stances under which the second call is compiled. (PyTorch's: the first one saves memory by
checkpoints, which eager does here.)"""

STANCES: Final = ("default", *REFUSING, *WAITING)


class _Settings(threading.local):
    stance = "default"
    breaks_are_errors: bool | None = None
    """None: `fullgraph=` and the configuration decide."""


_settings: Final = _Settings()


def current_stance() -> str:
    """This thread's stance: its own, else PyTorch's."""
    own = _settings.stance
    return torch_stance().name if own == "default" else own


def _change_stance(stance: str) -> str:
    previous, _settings.stance = _settings.stance, stance
    force_eager(stance == "force_eager")
    return previous


def breaks_are_errors(mode: bool | None, fullgraph: bool) -> bool:
    """Whether a graph break raises in this `error_mode`, with this `fullgraph=`."""
    return fullgraph or config.error_on_graph_break if mode is None else mode


def error_mode() -> bool | None:
    """This thread's setting for graph breaks; None: not set."""
    return _settings.breaks_are_errors


def set_error_mode(wanted: bool | None) -> None:
    """Set `error_mode`."""
    _settings.breaks_are_errors = wanted


class _Decorator:
    """Makes a context usable as a decorator, with a new context for each call."""

    def again(self) -> Any:
        """The same context, not yet entered."""
        raise NotImplementedError

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        if not callable(function):
            raise BadValue(f"{type(self).__name__} decorates functions, got {function!r}")

        @functools.wraps(function)
        def decorated(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.again():
                return function(*args, **kwargs)

        return decorated


@final
class set_stance(_Decorator):
    """Sets this thread's stance: at once, for a ``with`` block, or for a decorated function.

    "default": compile as needed. "force_eager": run everything as plain Python.
    "eager_on_recompile": use compiled variants, run the rest as plain Python. "fail_on_recompile":
    use compiled variants, raise `RecompileError` if none fits. "eager_then_compile" and
    "aot_eager_then_compile": run what is called for the first time as plain Python, then compile.

    Raises UnknownStance for any other name.
    """

    def __init__(self, stance: str = "default") -> None:
        if stance not in STANCES:
            raise UnknownStance(stance, STANCES)
        self.stance = stance
        self._previous = _change_stance(stance)

    def again(self) -> set_stance:
        return set_stance(self.stance)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        _change_stance(self._previous)  # only inside the decorated function
        return super().__call__(function)

    def __enter__(self) -> None:
        _change_stance(self.stance)

    def __exit__(self, *exception: object) -> None:
        _change_stance(self._previous)


@final
class error_on_graph_break(_Decorator):
    """Decides, for a ``with`` block or a decorated function, whether a graph break is an error.

    Inside and outside of compiled functions; takes precedence over `fullgraph=` and
    ``weft.config.error_on_graph_break``.
    """

    def __init__(self, wanted: bool) -> None:
        if not isinstance(wanted, bool):
            raise BadValue(f"error_on_graph_break takes True or False, got {wanted!r}")
        self.wanted = wanted
        self.previous: bool | None = None

    def again(self) -> error_on_graph_break:
        return error_on_graph_break(self.wanted)

    def __enter__(self) -> None:
        self.previous = error_mode()
        set_error_mode(self.wanted)

    def __exit__(self, *exception: object) -> None:
        set_error_mode(self.previous)
