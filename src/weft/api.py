"""What a user calls: `weft.compile` and the functions around it.

Place in the pipeline: the top. It checks arguments, picks the backend, and hands the function to
`capture`; nothing is compiled before the first call::

    compiled = weft.compile(model, mode="max-autotune")
    compiled(x)                                     # captured and compiled here
    weft.explain(f)(x)                              # what happened, for a person
    weft.stats()["graph_breaks"]                    # the same, for a program
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, signature
from types import FunctionType, MethodType
from typing import Any, Final, TypeVar, final, overload

import torch

from weft import backends, capture, torch_version
from weft._frame import set_redirect
from weft.backends.users_backend import UsersBackend
from weft.config import MODES, CompileOptions, Mode, check_options, config
from weft.diagnostics import events, failures, statistics
from weft.diagnostics.explanation import Explanation
from weft.dims import DynamicShapes
from weft.errors import BadValue, NotCallable, UnknownMode, users_level
from weft.module import CompiledModule, compile_calls, leave_calls
from weft.passes.framework import requested_passes
from weft.torch_marks import FORBIDDEN, mark_wrapper, torch_stance, unmarked
from weft.torch_settings import GUARD_FILTER, keep_guards

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=torch.nn.Module)
Backend = Callable[..., Callable[..., Any]]

_DEFAULT_BACKEND: Final = "inductor"
_SUSPENDABLE: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


@overload
def compile(
    model: F, *, fullgraph: bool = False, dynamic: bool | None = None,
    dynamic_shapes: object = None, backend: str | Backend = _DEFAULT_BACKEND,
    mode: Mode | None = None, options: Mapping[str, Any] | None = None, disable: bool = False,
) -> F: ...
@overload
def compile(
    model: None = None, *, fullgraph: bool = False, dynamic: bool | None = None,
    dynamic_shapes: object = None, backend: str | Backend = _DEFAULT_BACKEND,
    mode: Mode | None = None, options: Mapping[str, Any] | None = None, disable: bool = False,
) -> Callable[[F], F]: ...
def compile(
    model: object = None, *, fullgraph: bool = False, dynamic: bool | None = None,
    dynamic_shapes: object = None, backend: str | Backend = _DEFAULT_BACKEND,
    mode: Mode | None = None, options: Mapping[str, object] | None = None, disable: bool = False,
) -> Any:
    """`model` (a function, method, `nn.Module` or other callable), compiled at its first call.

    Without `model`, returns a decorator. What cannot be captured runs as plain Python between the
    compiled parts.

    fullgraph: raise `GraphBreakError` where the graph would break.
    dynamic: True: sizes, and numbers among the arguments, are symbolic from the start; False:
        they are always static; None: those that changed between calls become symbolic.
    dynamic_shapes: what is known of the arguments' sizes, by parameter: `Dim`, ``Dim.AUTO``, ...;
        see `weft.Dim`. Arguments that it does not mention follow `dynamic`.
    backend: a name of `weft.list_backends()`, or any ``backend(gm, example_inputs) -> callable``.
    mode: "default"; "reduce-overhead" (CUDA graphs); "max-autotune" (candidates measured, and
        CUDA graphs); "max-autotune-no-cudagraphs". CUDA graphs have no effect on CPUs.
    options: settings of `weft.config` for this call only; they win over `mode`. (torch.compile's
        `guard_filter_fn` is accepted; weft keeps all guards.)
    disable: return `model` as it is.

    Raises NotCallable, UnknownBackend, UnknownMode, UnknownOption or BadValue at once.
    """
    if not isinstance(disable, bool):
        raise BadValue(f"disable must be True or False, got {disable!r}")
    settings = _checked_options(fullgraph, dynamic, mode, options)
    settings = replace(settings, dynamic_shapes=dynamic_shapes)
    chosen = _resolve_backend(backend)
    if model is None:
        return functools.partial(_compile, options=settings, backend=chosen, disable=disable)
    return _compile(model, settings, chosen, disable)


def _checked_options(
    fullgraph: bool, dynamic: bool | None, mode: Mode | None, options: Mapping[str, object] | None
) -> CompileOptions:
    """The `CompileOptions` of `compile`'s arguments; raises if one of them is not valid."""
    if not isinstance(fullgraph, bool):
        raise BadValue(f"fullgraph must be True or False, got {fullgraph!r}")
    if not (dynamic is None or isinstance(dynamic, bool)):
        raise BadValue(f"dynamic must be None, True or False, got {dynamic!r}")
    if mode is not None and mode not in MODES:
        raise UnknownMode(mode, MODES)
    if options is not None and not isinstance(options, Mapping):
        raise BadValue(f"options must be a dict of settings, got {type(options).__name__}")
    own = dict(options or {})
    if GUARD_FILTER in own:
        keep_guards(own.pop(GUARD_FILTER))
    overrides = {**MODES[mode or "default"], **check_options(own)}
    requested_passes(overrides.get("passes", ()))
    return CompileOptions(fullgraph, dynamic, mode, overrides)


def _resolve_backend(backend: str | Backend) -> Backend:
    """The backend of that name, or the user's callable; errors of the latter become
    BackendError."""
    chosen = backends.resolve(backend)
    return chosen if backends.is_own(chosen) else UsersBackend(chosen)


def _compile(model: object, options: CompileOptions, backend: Backend, disable: bool) -> object:
    if not callable(model):
        raise NotCallable(model)
    if disable or config.disable:
        return model
    torch_version.warn_of_newer(users_level())
    model = unmarked(model)
    if isinstance(model, CompiledModule):
        wrapper = _compiled_module(model._orig_mod, options, backend)
        wrapper.take_hooks(model)
        return wrapper
    if isinstance(model, torch.nn.Module):
        return _compiled_module(model, options, backend)
    return _compile_callable(model, options, backend)


@final
@dataclass(frozen=True, slots=True)
class _Compilation:
    """How one `weft.compile` call compiles modules (see `module.Compilation`)."""

    options: CompileOptions
    backend: Backend

    def __call__(
        self, module: torch.nn.Module
    ) -> tuple[Callable[..., object], Callable[..., object]]:
        forward = _compile_callable(module.forward, self.options, self.backend)
        return forward, _compile_callable(module, self.options, self.backend)

    def own_call(self, module: torch.nn.Module) -> Callable[..., object]:
        """The module's call with hooks, compiled."""
        call: Callable[..., Any] = _compile_callable(
            module._call_impl, _with_shapes(module, self.options, bound=True), self.backend)
        return call

    def function(self, function: Callable[..., object]) -> Callable[..., Any]:
        """A function or method, compiled likewise."""
        options = replace(self.options, dynamic_shapes=None)
        compiled: Callable[..., Any] = _compile_callable(function, options, self.backend)
        return compiled

    def arguments(self) -> dict[str, Any]:
        """The settings as arguments of torch.compile."""
        own = backends.is_own(self.backend)
        return {"backend": "weft" if own else self.backend, "fullgraph": self.options.fullgraph,
                "dynamic": self.options.dynamic,
                "options": dict(self.options.overrides) if own else None}

    def __deepcopy__(self, memo: Mapping[int, object]) -> _Compilation:
        return self


def _compiled_module(module: torch.nn.Module, options: CompileOptions, backend: Backend
                     ) -> CompiledModule:
    _with_shapes(module, options)  # raise now, not at the first call
    return CompiledModule(module, _Compilation(options, backend))


def _compile_callable(
    fn: Any, options: CompileOptions, backend: Backend, subject: capture.Subject | None = None
) -> Any:
    """The compiled form of a callable; `subject`: what it runs, if it is known.

    Functions and methods are compiled directly, other callables through a Python function that
    calls them. Generators and coroutines are returned as they are: the interpreter suspends and
    resumes their frames.
    """
    original = fn = capture.original_function(fn)
    options = _with_shapes(fn, options)
    subject = subject or capture.subject_of(fn)
    if isinstance(fn, MethodType) and isinstance(fn.__func__, FunctionType):
        return MethodType(_compile_callable(fn.__func__, options, backend, subject), fn.__self__)
    if not isinstance(fn, FunctionType):
        fn = _as_function(fn)
    if fn.__code__.co_flags & _SUSPENDABLE:
        return fn
    compiled = capture.compile_function(fn, options, backend, subject)
    mark_wrapper(compiled, original)
    return compiled


def _under_forced_backend(compiled: object) -> Any:
    """What runs instead of a compiled function while PyTorch's stance forces a backend upon all."""
    return capture.compiled_by(compiled, torch_stance().backend, _resolve_backend)


set_redirect(_under_forced_backend)


def _with_shapes(fn: Any, options: CompileOptions, *, bound: bool = False) -> CompileOptions:
    """The options with `dynamic_shapes` checked against the function's parameters; `bound`: its
    code has a first parameter (``self``) besides."""
    dimensions = options.dynamic_shapes
    if dimensions is None or isinstance(dimensions, DynamicShapes):
        return options
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    checked = DynamicShapes(
        dimensions, signature(target), bound=bound or isinstance(fn, MethodType))
    return replace(options, dynamic_shapes=checked)


def _as_function(target: Callable[..., object]) -> FunctionType:
    """A Python function that calls `target`: a builtin, a class, a partial, an object."""

    def call(*args: object, **kwargs: object) -> Any:
        return target(*args, **kwargs)

    functools.update_wrapper(call, target, updated=())
    assert isinstance(call, FunctionType)
    return call


def compile_inplace(module: M, **settings: Any) -> M:
    """Compile a module without wrapping it: its calls are compiled from now on.

    Takes `compile`'s keyword arguments and returns `module` itself; `state_dict` is unchanged. Deep
    copies and pickles of the module are compiled in place as well. `uncompile_inplace` ends it.
    """
    if not isinstance(module, torch.nn.Module):
        raise BadValue(f"compile_inplace needs a torch.nn.Module, got {type(module).__name__}",
                       do="use weft.compile for functions")
    compiled = compile(module, **settings)
    leave_calls(module)
    if isinstance(compiled, CompiledModule):  # not if that is turned off
        compile_calls(module, compiled.compilation)
    return module


def uncompile_inplace(module: M) -> M:
    """Let a module's calls run uncompiled again, after `compile_inplace` or `Module.compile`.

    Returns `module` itself. What `weft.compile(module)` returned is not changed.
    """
    if not isinstance(module, torch.nn.Module):
        raise BadValue(f"uncompile_inplace needs a torch.nn.Module, got {type(module).__name__}")
    leave_calls(module)
    return module


def optimize(backend: str | Backend = _DEFAULT_BACKEND, **settings: Any) -> Callable[[F], F]:
    """`weft.optimize(backend)(fn)`: a decorator, `compile` with the backend first."""
    decorator: Callable[[F], F] = compile(backend=backend, **settings)
    return decorator


def explain(fn: Callable[..., Any], **settings: Any) -> Callable[..., Explanation]:
    """`weft.explain(fn)(*args)` compiles `fn` anew, runs it, and returns what happened."""
    if not callable(fn):
        raise NotCallable(fn, "weft.explain")

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        with events.collect() as seen, capture.alone():
            compile(fn, **settings)(*args, **kwargs)
        return Explanation.from_events(seen, name=getattr(fn, "__qualname__", type(fn).__name__))

    return explained


def stats() -> dict[str, Any]:
    """The counters of this process since its start or the last `reset`; see
    `diagnostics.statistics`."""
    return statistics.snapshot(cache_entries=capture.cache_entries())


def reset() -> None:
    """Forget all compiled code and statistics; the disk cache stays."""
    capture.reset()
    events.reset()
    failures.forget_warnings()


for _of_weft in (stats, reset):  # compiled code calls them between its graphs
    vars(_of_weft)[FORBIDDEN] = True
