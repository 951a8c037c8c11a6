"""`weft.install()`: from then on, torch.compile is weft's.

Place in the pipeline: above `api`. Programs and libraries that call `torch.compile` or
`nn.Module.compile` (which calls it) get what `weft.compile` gives, with all of weft's front end;
their arguments are translated (`torch_settings`)::

    weft.install()                      # until weft.uninstall()
    Trainer(model, TrainingArguments(torch_compile=True, ...)).train()

    with weft.install():                # only what is compiled in this block
        model.compile(mode="reduce-overhead")

`WEFT_INSTALL=1` does it at the start of the process, without a change of the program
(`weft_autoload.py`). What was compiled while weft was installed stays weft's.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from types import TracebackType
from typing import Any, Final, final

import torch

from weft.module import is_call_of_module
from weft.torch_marks import default_backend
from weft.torch_settings import GUARD_FILTER, keep_guards, note, settings_of

Backend = str | Callable[..., Any]

_COMPILE: Final = "compile"
_WEFTS: Final = ("inductor", "weft")
_UNTUNED: Final = ("eager", "aot_eager")
"""weft's backends that nothing can be set for, under the names that PyTorch's have."""

_DISABLING: Final = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
"""Environment variables that turn torch.compile off."""


@final
class Installation:
    """What `install` returns: a context that uninstalls at its end, if this call installed."""

    def __init__(self, *, was_installed: bool) -> None:
        self._was_installed = was_installed

    def __enter__(self) -> Installation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        if not self._was_installed:
            uninstall()

    def __repr__(self) -> str:
        return f"<weft is {'' if is_installed() else 'not '}installed as torch.compile>"


@final
class _State:
    """Whether weft is installed, and the functions in question."""

    installed = False
    theirs: Callable[..., Any] | None = None
    """PyTorch's function, or what another library has put in its place."""
    ours: Callable[..., Any] | None = None


_state: Final = _State()


def install() -> Installation:
    """Make `torch.compile` and `nn.Module.compile` weft's, for the whole process.

    Returns a context manager that ends it; `uninstall` does so, too. Arguments keep their meaning:
    PyTorch's default backend "inductor" is weft's code generator; other backends run behind weft's
    capture; what has no counterpart is accepted, with one note that says what weft does instead;
    misspelt names are errors.
    """
    was_installed = _state.installed
    if not was_installed:
        current = getattr(torch, _COMPILE)
        if current is not _state.ours:
            _state.theirs, _state.ours = current, _in_place_of(current)
        setattr(torch, _COMPILE, _state.ours)
        _state.installed = True
    return Installation(was_installed=was_installed)


def uninstall() -> None:
    """Make `torch.compile` PyTorch's own again. What is compiled already stays as it is."""
    if getattr(torch, _COMPILE) is _state.ours:
        setattr(torch, _COMPILE, _state.theirs)
    _state.installed = False  # a library may have wrapped ours: it passes on from now on


def is_installed() -> bool:
    """Whether `torch.compile` is weft's."""
    return _state.installed


def _in_place_of(theirs: Callable[..., object]) -> Callable[..., object]:
    """The function that stands for torch.compile; it has its name, signature and docstring."""

    @functools.wraps(theirs)
    def compile(model: Any = None, **arguments: Any) -> Any:
        if not _state.installed:
            return theirs(model, **arguments)
        api, translated = import_module("weft.api"), compile_arguments(**arguments)
        if is_call_of_module(model):  # `nn.Module.compile`
            return api.compile_inplace(model.__self__, **translated)._compiled_call_impl
        return api.compile(model, **translated)

    return compile


def compile_arguments(
    *, backend: Backend | None = None, mode: str | None = None,
    options: Mapping[str, object] | None = None, fullgraph: bool | None = False,
    dynamic: bool | None = None, disable: bool = False, name: str | None = None,
    recompile_limit: int | None = None, isolate_recompiles: bool = False,
    shapes_spec: object = None,
    dynamic_shapes: object = None,
) -> dict[str, object]:
    """The arguments of `weft.compile` that mean what these mean to `torch.compile`."""
    chosen = default_backend() if backend is None else backend
    translated: dict[str, Any] = {
        "fullgraph": bool(fullgraph), "dynamic": dynamic, "disable": disable or _is_turned_off()}
    if chosen in _WEFTS:
        settings = settings_of(mode, options)
    else:
        settings = {}
        chosen = _with_arguments(chosen, mode, options)
    if recompile_limit is not None:
        settings["cache_size_limit"] = recompile_limit
    if name is not None:
        note("name=", "weft names what it compiles by the function")
    if shapes_spec is not None or dynamic_shapes is not None:
        note("shapes_spec= (dynamic_shapes=)", "sizes that change become symbolic; "
             "weft.compile(dynamic_shapes=...) takes weft.Dim")
    return translated | {"backend": chosen, "options": settings}


def _with_arguments(backend: Backend, mode: str | None, options: Mapping[str, object] | None
                    ) -> Backend:
    """A backend other than weft's code generator, with the arguments that torch.compile passes."""
    passed: dict[str, Any] = {}
    if mode not in (None, "default"):
        passed["mode"] = mode
    theirs = dict(options or {})
    if GUARD_FILTER in theirs:
        keep_guards(theirs.pop(GUARD_FILTER))
    if theirs:
        passed["options"] = theirs
    if not passed:
        return backend
    if backend in _UNTUNED:
        note(f"backend={backend!r} with {' and '.join(passed)}", "that backend has no settings")
        return backend
    resolve = import_module("weft.backends").resolve
    chosen: Callable[..., Any] = resolve(backend)
    bound = functools.partial(chosen, **passed)
    functools.update_wrapper(bound, chosen)
    return bound


def _is_turned_off() -> bool:
    return any(os.environ.get(variable) == "1" for variable in _DISABLING)
