"""Rules for marked functions: weft's and torch.compiler's markers, stances, error modes.

Place in the pipeline: see `weft.capture.library`; the markers are in `markers.py` and
`stances.py`.
"""

from __future__ import annotations

import functools
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import torch

from weft._frame import CompiledFunction
from weft._torch import (
    call_script_method,
    call_scripted,
    compile_markers,
    is_scripting,
    region_call,
)
from weft.capture.core.base import MISSING, Args, Kwargs, OutsideObject, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, ConstantValue, constant, evaluate_call, is_none
from weft.capture.core.registry import wraps
from weft.capture.core.rules import RuleFunction, breaking
from weft.capture.core.source import Source
from weft.capture.library.classes.classes import constructor
from weft.capture.library.functions.functions import (
    MARKED,
    MARKED_INSIDE,
    MARKED_METHODS,
    FunctionValue,
    inline,
    rule,
)
from weft.capture.library.subgraphs.held_objects import holding, split_arguments
from weft.capture.library.tensors.context_polyfills import NullContext
from weft.capture.library.tensors.tensor import record
from weft.config import MODES
from weft.markers import is_allowed_in_graph, is_compiling
from weft.stances import error_mode, error_on_graph_break, set_error_mode, set_stance
from weft.torch_marks import (
    CONSTANT,
    DISABLED,
    FORBIDDEN,
    INLINED,
    ORIGINAL,
    control_of,
    counts_modules,
    disabled_text,
    is_compiler,
    is_disallowed,
    is_leaf,
)

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_COMPILER: Final = str(Path("torch", "_dynamo", "eval_frame.py"))
_SEEN_THROUGH: Final = ("torch.optim.",)
"""Homes of functions that PyTorch keeps from torch.compile and that are ordinary programs."""

_REFUSES_COMPILERS: Final = ("torch.distributed.nn.functional",)
"""Homes of functions that raise where they are compiled; the graph breaks at their collectives."""


@rule(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, is_compiling)
def _is_compiling(tx: Interpreter) -> SymbolicValue:
    home = tx.frame and tx.frame.globals.original.get("__name__")
    return constant(home not in _REFUSES_COMPILERS)


@rule(region_call)
def _call_region(tx: Interpreter, function: SymbolicValue, /, *args: SymbolicValue,
                 **kwargs: SymbolicValue) -> SymbolicValue:
    """A nested_compile_region is inlined: equal kernels are compiled once in any case."""
    return tx.call(function, [*args], kwargs)


@rule(call_scripted)
def _scripted(tx: Interpreter, scripted: SymbolicValue, /, *args: SymbolicValue,
              **kwargs: SymbolicValue) -> SymbolicValue:
    """A function compiled by torch.jit is captured as the Python function that it was made from."""
    function = scripted.real()
    original = getattr(function, INLINED, None)
    if original is None:
        raise graph_break("unknown-c-function", f"a call of {function!r}")
    tx.modes.scripted += 1
    try:
        return tx.wrap_fixed(original, "a scripted function").call(tx, [*args], kwargs)
    finally:
        tx.modes.scripted -= 1


@rule(is_scripting)
def _is_scripting(tx: Interpreter) -> SymbolicValue:
    """True in a function compiled by torch.jit, whose Python function says otherwise."""
    return constant(tx.modes.scripted > 0)


rule(call_script_method)(breaking(  # its code is in C++, and it may have other tensors there
    "unknown-c-function", "a call of a module that torch.jit compiled"))


@final
class CompiledFunctionValue(OutsideObject):
    """A compiled function called inside another one: captured as its original function."""

    __slots__ = ()

    def dict_key(self, tx: Interpreter) -> object:
        return tx.identities.key(self, self.object)

    def __repr__(self) -> str:
        return f"compiled function {self.object.__name__}"

    def _function(self, tx: Interpreter) -> SymbolicValue:
        return tx.wrap_fixed(self.object.__wrapped__, self.object.__name__)

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self._function(tx).call(tx, args, kwargs)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        function = self._function(tx)
        return function if name == "__wrapped__" else function.getattr(tx, name)


@wraps(CompiledFunction)
def _wrap_compiled(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    tx.guards.identity(source, obj)
    return CompiledFunctionValue(obj, source)


@final
class AllowedMethodValue(OutsideObject):
    """A bound method that is one operation of the graph."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"method {self.object.__qualname__}"

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return _allowed(self.object, tx, *args, **kwargs)


MARKED_METHODS.append(
    lambda method, source: AllowedMethodValue(method, source) if is_allowed_in_graph(method)
    else None)


def _mark_of(function: types.FunctionType) -> RuleFunction | None:
    """The rule of a marked function, or None."""
    attributes = function.__dict__
    if attributes:
        if _is_compiled_by_torch(function):
            return functools.partial(_inlined, attributes[ORIGINAL])
        if attributes.get(DISABLED) is True or "__wrapped__" in attributes:
            return _disabled(function)
        if attributes.get(CONSTANT) is True:
            return functools.partial(_constant_result, function)
        if attributes.get(FORBIDDEN) is True:
            return breaking("forbidden", f"a call of {function.__qualname__}")
    return _rule_by_id(function)


MARKED.append(_mark_of)


def _rule_by_id(function: types.FunctionType) -> RuleFunction | None:
    """The rule of a function that a control has noted elsewhere, or that is a control itself."""
    name = control_of(function) or ""
    if name in _WRAPPING:
        return functools.partial(_wrapped_now, function)
    control = CONTROLS.get(name)
    if control is not None:
        return control
    if is_compiler(function):
        return _compile
    if is_disallowed(function):
        return functools.partial(_asks_for_break, function)
    if is_leaf(function):
        return _break(function)
    if counts_modules(function):
        return lambda tx, /, *args, **kwargs: NONE
    return functools.partial(_allowed, function) if is_allowed_in_graph(function) else None


def _config_patch(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
                  ) -> SymbolicValue:
    """Settings of torch.compile for a while say nothing to weft: a context without effect."""
    return tx.wrap_fixed(NullContext, "NullContext").call(tx, [], {})


def _config_decorator(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
                      ) -> SymbolicValue:
    """The same, or what it decorates."""
    decorated = [*args, *kwargs.values()]
    return decorated[0] if decorated and not is_none(decorated[0]) else _config_patch(tx)


def _error_context(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
                   ) -> SymbolicValue:
    return tx.wrap_fixed(error_on_graph_break, "error_on_graph_break").call(
        tx, [*args, *kwargs.values()], {})


_marks_for_good: Final = breaking(
    "state", "a mark that torch.compile's controls keep in their own tables")


_WRAPPING: Final = ("allow_in_graph", "nonstrict_trace")
"""Controls that mark the function that they return; they may run once, while capturing."""


def _wrapped_now(control: types.FunctionType, tx: Interpreter, /, function: SymbolicValue
                 ) -> SymbolicValue:
    """A control applied inside, to a function of the program: its result is one operation of the
    graph, as if it had been applied outside."""
    if not isinstance(function, FunctionValue):
        raise graph_break("state", f"{control.__name__} of {function!r}")
    return tx.wrap_fixed(control(function.real()), control.__name__)


_PLAIN_BACKENDS: Final = (None, "inductor", "weft", "eager", "aot_eager")


def _compile(tx: Interpreter, /, model: SymbolicValue = NONE, **settings: SymbolicValue
             ) -> SymbolicValue:
    """`torch.compile(f)` inside of a compiled function is `f`, which is captured with it. With
    settings that may be mistaken the graph breaks, and the call decides."""
    values = {name: value.constant() if isinstance(value, ConstantValue) else MISSING
              for name, value in settings.items()}
    if (values.pop("backend", None) not in _PLAIN_BACKENDS
            or values.pop("mode", None) not in (None, *MODES)
            or not all(value is None or isinstance(value, bool) for value in values.values())):
        raise graph_break("unknown-c-function", "a call of torch.compile with settings")
    return tx.wrap_fixed(_same, "torch.compile()") if is_none(model) else model


def _same(model: object) -> Any:
    return model


CONTROLS: Final[dict[str, RuleFunction]] = {
    "disable_nested_graph_breaks": _config_decorator,
    "disallow_in_graph": _marks_for_good,
    "dont_skip_tracing": _config_decorator,
    "error_on_graph_break": _error_context,
    "leaf_function": _marks_for_good,
    "patch_dynamo_config": _config_patch,
    "substitute_in_graph": _marks_for_good,
}
"""The rules of functions of torch._dynamo.decorators, which weft does not import, by name."""


def _asks_for_break(function: Any, tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
                    ) -> SymbolicValue:
    if tx.frame is not None and _is_seen_through(tx.frame.globals.original.get("__name__")):
        return NONE  # for the sake of torch.compile: its optimizers ask for breaks
    words = [a.constant() for a in (*args, *kwargs.values()) if isinstance(a, ConstantValue)]
    asked = f"{function.__qualname__}({', '.join(map(repr, words))})"
    raise graph_break("user", asked)


def _disabled_inside(function: FunctionValue) -> RuleFunction:
    """Of a function that the program marks between its own lines."""
    return breaking("disabled", f"{function.name} is marked as not to be captured")


MARKED_INSIDE[DISABLED] = _disabled_inside


def _disabled(function: Any) -> RuleFunction | None:
    if _is_late_disable(function):
        return _seen_through(function.__wrapped__) or _break(function)
    if function.__dict__.get(DISABLED) is not True:
        return _rule_by_id(function)
    original = function.__dict__.get(ORIGINAL)
    return _seen_through(original) or _break(function)


def _is_late_disable(function: Any) -> bool:
    """Whether it is a function of torch that disables compilation at its first call."""
    return function.__code__ is _LATE_DISABLE


_LATE_DISABLE: Final = compile_markers._disable_dynamo(lambda: None).__code__


def _is_seen_through(module: object) -> bool:
    return isinstance(module, str) and module.startswith(_SEEN_THROUGH)


def _seen_through(original: object) -> RuleFunction | None:
    if not isinstance(original, types.FunctionType) or not _is_seen_through(original.__module__):
        return None
    return functools.partial(_inlined, original)


def _inlined(original: object, tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
             ) -> SymbolicValue:
    return tx.wrap_fixed(original, getattr(original, "__qualname__", "function")).call(
        tx, [*args], kwargs)


def _is_compiled_by_torch(function: types.FunctionType) -> bool:
    """Whether torch.compile gave it: calling it would put torch's hook on frames over ours."""
    marks = function.__dict__
    return (ORIGINAL in marks and marks.get(DISABLED) is not True
            and function.__code__.co_filename.endswith(_COMPILER))


def _break(function: object) -> RuleFunction:
    return breaking("disabled", disabled_text(function))


def _constant_result(function: Any, tx: Interpreter, /, *args: SymbolicValue,
                     **kwargs: SymbolicValue) -> SymbolicValue:
    """Call the function now: the program promises that the result stays the same."""
    result = evaluate_call(tx, function, [*args], kwargs)
    if result is MISSING:  # of other values it is captured
        return inline(tx, function, [*args], kwargs)
    return tx.wrap_fixed(result, f"{function.__name__}()")


def _allowed(function: Any, tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
             ) -> SymbolicValue:
    shared, named, held = split_arguments(tx, [*args], kwargs, function.__name__)
    target = holding(function, function.__name__, held) if held else function
    return record(tx, target, shared, named)


constructor(set_stance)(breaking("state", "weft.set_stance"))


@rule(error_mode)
def _error_mode(tx: Interpreter) -> SymbolicValue:
    return constant(error_mode())


@rule(set_error_mode)
def _set_error_mode(tx: Interpreter, wanted: SymbolicValue) -> SymbolicValue:
    """The mode is in force while capturing; the replacement sets it as the program does."""
    set_error_mode(wanted.constant())
    return NONE
