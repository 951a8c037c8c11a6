"""Rules for marked functions: weft's and torch.compiler's markers, stances, error modes.

Place in the pipeline: see `handlers/__init__`; the markers are in `markers.py` and
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
    counts_modules_for_dynamo,
    is_scripting,
    region_call,
)
from weft.capture.breaks import graph_break
from weft.capture.handlers.held_objects import holding, split_arguments
from weft.capture.source import Source
from weft.capture.values.base import MISSING, Args, Kwargs, OutsideObject, SymbolicValue
from weft.capture.values.constant import NONE, constant, evaluate_call
from weft.capture.values.objects.classes import constructor
from weft.capture.values.objects.functions import MARKED, Rule, rule
from weft.capture.values.registry import wraps
from weft.capture.values.tensors.tensor import record
from weft.markers import DISABLED, is_allowed_in_graph, is_compiling
from weft.stances import error_mode, set_error_mode, set_stance

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter

_ORIGINAL: Final = "_torchdynamo_orig_callable"
_COMPILER: Final = str(Path("torch", "_dynamo", "eval_frame.py"))
_CONSTANT: Final = "_dynamo_marked_constant"
_SEEN_THROUGH: Final = ("torch.optim.",)
"""Homes of functions that PyTorch keeps from torch.compile and that are ordinary programs."""

_REFUSES_COMPILERS: Final = ("torch.distributed.nn.functional",)
"""Homes of functions that raise where they are compiled; the graph breaks at their collectives."""


@rule(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, is_compiling)
def _is_compiling(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    home = tx.frame and tx.frame.globals.original.get("__name__")
    return constant(home not in _REFUSES_COMPILERS)


@rule(region_call)
def _call_region(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """A nested_compile_region is inlined: equal kernels are compiled once in any case."""
    return tx.call(args[0], args[1:], kwargs)


@rule(call_scripted)
def _scripted(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """A function compiled by torch.jit is captured as the Python function that it was made from."""
    function = args[0].real()
    original = getattr(function, "_torchdynamo_inline", None)
    if original is None:
        raise graph_break("unknown-c-function", f"a call of {function!r}")
    tx.modes.scripted += 1
    try:
        return tx.wrap_fixed(original, "a scripted function").call(tx, args[1:], kwargs)
    finally:
        tx.modes.scripted -= 1


@rule(is_scripting)
def _is_scripting(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """True in a function compiled by torch.jit, whose Python function says otherwise."""
    return constant(tx.modes.scripted > 0)


@rule(call_script_method)
def _script_method(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """A module compiled by torch.jit has its code, and may have other tensors, in C++."""
    raise graph_break("unknown-c-function", "a call of a module that torch.jit compiled")


@final
class CompiledFunctionValue(OutsideObject):
    """A compiled function called inside another one: captured as its original function."""

    __slots__ = ()

    def dict_key(self, tx: Interpreter) -> Any:
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
def _wrap_compiled(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    tx.guards.identity(source, obj)
    return CompiledFunctionValue(obj, source)


def _mark_of(function: types.FunctionType) -> Rule | None:
    """The rule of a marked function, or None."""
    attributes = function.__dict__
    if attributes:
        if _is_compiled_by_torch(function):
            return functools.partial(_inlined, attributes[_ORIGINAL])
        if attributes.get(DISABLED) is True or "__wrapped__" in attributes:
            return _disabled(function)
        if attributes.get(_CONSTANT) is True:
            return functools.partial(_constant_result, function)
    if counts_modules_for_dynamo(function):
        return lambda tx, args, kwargs: NONE
    return functools.partial(_allowed, function) if is_allowed_in_graph(function) else None


MARKED.append(_mark_of)


def _disabled(function: Any) -> Rule | None:
    if _is_late_disable(function):
        return _seen_through(function.__wrapped__) or functools.partial(_break, function)
    if function.__dict__.get(DISABLED) is not True:
        return None
    original = function.__dict__.get(_ORIGINAL)
    return _seen_through(original) or functools.partial(_break, function)


def _is_late_disable(function: Any) -> bool:
    """Whether it is a function of torch that disables compilation at its first call."""
    return function.__code__ is _LATE_DISABLE


_LATE_DISABLE: Final = compile_markers._disable_dynamo(lambda: None).__code__


def _seen_through(original: Any) -> Rule | None:
    home = getattr(original, "__module__", None)
    if not isinstance(original, types.FunctionType) or not isinstance(home, str):
        return None
    if not home.startswith(_SEEN_THROUGH):
        return None
    return functools.partial(_inlined, original)


def _inlined(original: Any, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return tx.wrap_fixed(original, getattr(original, "__qualname__", "function")).call(
        tx, args, kwargs)


def _is_compiled_by_torch(function: types.FunctionType) -> bool:
    """Whether torch.compile gave it: calling it would put torch's hook on frames over ours."""
    marks = function.__dict__
    return (_ORIGINAL in marks and marks.get(DISABLED) is not True
            and function.__code__.co_filename.endswith(_COMPILER))


def _break(function: Any, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    raise graph_break("disabled", f"{function.__qualname__} is marked as not to be captured")


def _constant_result(function: Any, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """Call the function now: the program promises that the result stays the same."""
    result = evaluate_call(tx, function, args, kwargs)
    if result is MISSING:
        raise graph_break("unknown-value", f"{function.__qualname__} of values that are no "
                                           "constants, marked as giving a constant")
    return tx.wrap_fixed(result, f"{function.__name__}()")


def _allowed(function: Any, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    args, kwargs, held = split_arguments(tx, args, kwargs, function.__name__)
    target = holding(function, function.__name__, held) if held else function
    return record(tx, target, args, kwargs)


@constructor(set_stance)
def _set_stance(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    raise graph_break("state", "weft.set_stance")


@rule(error_mode)
def _error_mode(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return constant(error_mode())


@rule(set_error_mode)
def _set_error_mode(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """The mode is in force while capturing; the replacement sets it as the program does."""
    set_error_mode(args[0].constant())
    return NONE
