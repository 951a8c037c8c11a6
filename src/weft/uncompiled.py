"""What weft's names do where weft itself cannot be imported: programs run, uncompiled.

Place in the pipeline: the bottom. A PyTorch newer than the tested ones may lack a symbol that weft
stands on. `import weft` works nevertheless, and the first name that needs the rest of weft warns::

    @weft.compile              # UntestedTorchWarning: ... nothing is compiled
    def f(x): ...              # f itself
    weft.explain(f)            # raises UnsupportedTorch
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

from weft.config import config
from weft.errors import UnsupportedTorch, UntestedTorchWarning
from weft.torch_version import NEWEST, RELEASE, TESTED, VERSION

_warned = False


def stand_in(name: str, error: Exception) -> object:
    """What `weft.name` is after `error` kept its module from being imported; raises `error` if
    PyTorch's version is no reason for it, or in strict mode."""
    if RELEASE <= NEWEST or config.raise_internal_errors:
        raise error
    _warn(error)
    if name not in _STAND_INS:
        raise UnsupportedTorch(
            f"weft.{name} does not work with PyTorch {VERSION}: {error}",
            do=f"use a PyTorch from {TESTED}, or a newer weft") from error
    return _STAND_INS[name]


def _warn(error: Exception) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"weft does not work with PyTorch {VERSION} ({type(error).__name__}: {error}): nothing "
            f"is compiled, everything runs eagerly. Use a PyTorch from {TESTED}, or a newer weft.",
            UntestedTorchWarning, stacklevel=4)


def _itself(model: object = None, *args: object, **kwargs: object) -> object:
    """The function or module as it is; called without one, a decorator that does nothing."""
    return _itself if model is None else model


def _decorator(*args: object, **kwargs: object) -> Callable[[Any], object]:
    return _itself


def _nothing(*args: object, **kwargs: object) -> None:
    """Marks and settings of compilation have no effect."""


_STAND_INS: Final[dict[str, Any]] = {
    **dict.fromkeys((
        "compile", "compile_inplace", "uncompile_inplace", "disable", "allow_in_graph"), _itself),
    "optimize": _decorator,
    **dict.fromkeys(("mark_dynamic", "mark_static", "mark_unbacked", "reset", "set_logs",
                     "register_pass", "register_pattern", "unregister_pass",
                     "unregister_pattern", "uninstall"), _nothing),
    "install": nullcontext,
    "is_compiling": lambda: False,
    "stats": dict,
}
"""The names of which the program's results do not depend on weft."""
