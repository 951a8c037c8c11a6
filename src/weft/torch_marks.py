"""What a program says to torch.compile, read as facts, in the one place that knows where it stands.

Place in the pipeline: below `stances`, `markers` and capture, which ask here; C reads the stance
too (`csrc/frame/torch_stance.c`). weft never imports torch._dynamo. Marks on functions and tensors
are attributes; what else the controls of torch.compile write down is in modules that exist only if
the program, or something that it calls, has imported them::

    torch.compiler.disable(f)                   attributes of the function that it returns
    torch.compiler.allow_in_graph(f)            id(f) in a set of torch._dynamo.trace_rules
    torch.compiler.set_stance("force_eager")    one object in torch._dynamo.eval_frame
    torch._dynamo.mark_dynamic(x, 0)            attributes of the tensor
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Final, final

from weft._frame import CompiledFunction
from weft.dims import DimRange

DISABLED: Final = "_torchdynamo_disable"
"""Attribute of functions that must not be captured."""

RECURSIVE: Final = "_torchdynamo_disable_recursive"
"""Attribute of the same functions: True where what they call is meant too."""

REASON: Final = "_torchdynamo_disable_msg"
"""Attribute of the same functions: why, or None."""

ORIGINAL: Final = "_torchdynamo_orig_callable"
"""Attribute of functions that a control returns: what it was given."""

WRAPPER: Final = "_torchdynamo_wrapper_id"
"""Attribute of the same functions: their id, which tells them from functions that only took over
the attributes (`functools.wraps`)."""

CONSTANT: Final = "_dynamo_marked_constant"
"""Attribute of functions whose result stays the same."""

FORBIDDEN: Final = "_dynamo_forbidden"
"""Attribute of functions and classes that must not be called by compiled code."""

INLINED: Final = "_torchdynamo_inline"
"""Attribute of functions of another compiler: the Python function that they were made from."""


# -- functions ------------------------------------------------------------------------------------


def mark_of(fn: object, name: str) -> object:
    """The value of the mark on a callable, or None; a `__getattr__` of the program does not run."""
    marked = fn.__func__ if isinstance(fn, MethodType) else fn
    return inspect.getattr_static(marked, name, None)


def is_disabled(fn: object) -> bool:
    """Whether `weft.disable` or a control of torch.compile keeps this callable from capture."""
    return mark_of(fn, DISABLED) is True


def is_disabled_deeply(fn: object) -> bool:
    """Whether the functions that the marked callable calls are not captured either."""
    return is_disabled(fn) and mark_of(fn, RECURSIVE) is True


def disabled_text(fn: object) -> str:
    """What is said of a call of a disabled function, with the reason that the program gave."""
    reason = mark_of(fn, REASON)
    named = f"{getattr(fn, '__qualname__', fn)} is marked as not to be captured"
    return f"{named}: {reason}" if reason else named


def mark_wrapper(wrapper: object, original: object) -> None:
    """Let controls see through a function that stands for another one."""
    wrapper.__dict__.update({ORIGINAL: original, WRAPPER: id(wrapper)})


def unmarked(fn: Any) -> object:
    """The original of a function or module that a control returned: who compiles that explicitly
    means the original. Anything else as it is."""
    module = optimized_module()
    if module is not None and issubclass(type(fn), module):
        return unmarked(fn._orig_mod)
    while isinstance(fn, FunctionType | CompiledFunction) and ORIGINAL in fn.__dict__ and (
            fn.__dict__.get(WRAPPER) == id(fn)):
        fn = fn.__dict__[ORIGINAL]
    return fn


def optimized_module() -> type | None:
    """torch.compile's class of compiled modules, if something has imported it."""
    return _loaded("eval_frame").get("OptimizedModule")


def _loaded(module: str) -> Mapping[str, Any]:
    """The names in a module of torch._dynamo; none if nothing has imported it."""
    loaded = sys.modules.get(f"torch._dynamo.{module}")
    return {} if loaded is None else vars(loaded)


def _ids(name: str) -> Container[int]:
    ids: Container[int] = _loaded("trace_rules").get(name, ())
    return ids


def is_allowed(fn: object) -> bool:
    """Whether `torch.compiler.allow_in_graph` or `nonstrict_trace` marked a callable."""
    return id(fn) in _ids("_allowed_callable_ids")


def is_disallowed(fn: object) -> bool:
    """Whether the graph is to break at a call: `graph_break`, and after `disallow_in_graph`."""
    return id(fn) in _ids("_disallowed_callable_ids") or (
        isinstance(fn, FunctionType) and fn.__name__ == "graph_break"
        and fn.__module__ == "torch._dynamo.comptime")


def is_leaf(fn: object) -> bool:
    """Whether `leaf_function` marked a callable: it runs as it is."""
    return id(fn) in _ids("_leaf_function_ids")


def control_of(fn: object) -> str | None:
    """The name of the function of `torch._dynamo.decorators` that this is, or None."""
    name = getattr(fn, "__name__", None) if isinstance(fn, FunctionType) else None
    return name if name and _loaded("decorators").get(name) is fn else None


_COMPILERS: Final = frozenset({("torch", "compile"), ("weft.api", "compile")})


def is_compiler(fn: FunctionType) -> bool:
    """Whether it is `torch.compile`, what stands for it (a library's wrapper, `weft.install`), or
    `weft.compile`."""
    return (fn.__module__, fn.__qualname__) in _COMPILERS


def substitute(fn: object) -> Callable[..., object] | None:
    """The function that a program set for a C function with `torch.compiler.substitute_in_graph`,
    or None.

    torch.compile's own ones, there once something imported it, do not count.
    """
    functions = _loaded("variables.functions")
    if not functions:
        return None
    handler = functions["PolyfilledFunctionVariable"]._get_polyfill_handlers().get(fn)
    polyfill: Any = getattr(handler, "__torch_dynamo_polyfill__", handler)
    module = getattr(polyfill, "__module__", None)
    return None if str(module).startswith("torch._dynamo.") else polyfill


def counts_modules(fn: FunctionType) -> bool:
    """Whether a function only informs torch.compile about a new module.

    Once torch.compile has run in a process, `nn.Module.__init__` calls it.
    """
    return (fn.__qualname__ == "GenerationTracker.tag"
            and fn.__module__ == "torch._dynamo.mutation_guard")


# -- the process ----------------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class TorchStance:
    """What `torch.compiler.set_stance` has set, for the whole process."""

    name: str = "default"
    backend: str | Callable[..., Any] | None = None
    """The backend that is forced upon all compiled functions; None: their own."""


_DEFAULT: Final = TorchStance()


def torch_stance() -> TorchStance:
    """The present stance of torch.compile."""
    stance = _loaded("eval_frame").get("_stance")
    return _DEFAULT if stance is None else TorchStance(stance.stance, stance.backend)


def default_backend() -> str | Callable[..., object]:
    """The backend that torch.compile uses if none is named."""
    backend: str | Callable[..., Any] = _loaded("backends.registry").get(
        "_default_backend", "inductor")
    return backend


# -- tensors --------------------------------------------------------------------------------------

_DYNAMIC: Final = "_dynamo_dynamic_indices"
_RANGE: Final = "_dynamo_dynamic_range"
_WEAK: Final = "_dynamo_weak_dynamic_indices"
_STATIC: Final = "_dynamo_static_indices"
_UNBACKED: Final = "_dynamo_unbacked_indices"
_STRICT_UNBACKED: Final = "_dynamo_strict_unbacked_indices"
_UNBACKED_RANGE: Final = "_dynamo_unbacked_bounds"

TENSOR_MARKS: Final = (_DYNAMIC, _WEAK, _STATIC, _UNBACKED, _STRICT_UNBACKED)
"""Attributes of tensors that say something about their dimensions."""


def dimension_marks(attributes: Mapping[str, Any]) -> Iterator[tuple[int, DimRange | None]]:
    """The marked dimensions in the attributes of a tensor, None for static ones.

    Where a dimension has several marks, the last one counts.
    """
    for d in attributes.get(_WEAK, ()):
        yield d, DimRange(strict=False)
    for d in attributes.get(_STATIC, ()):  # weaker than `mark_dynamic`
        yield d, None
    limits = {r.dim: (r.min or 0, r.max) for r in attributes.get(_RANGE, ())}
    for d in attributes.get(_DYNAMIC, ()):
        yield d, DimRange(*limits.get(d, (0, None)))
    bounds = attributes.get(_UNBACKED_RANGE, {})
    for d in (*attributes.get(_UNBACKED, ()), *attributes.get(_STRICT_UNBACKED, ())):
        least, most = bounds.get(d, (None, None))
        yield d, DimRange(least or 0, most, unbacked=True)
