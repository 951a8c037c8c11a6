"""Settings of the libraries below torch: `torch.backends.cudnn.enabled`, `sdpa_kernel(...)`, ...

Place in the pipeline: see `weft.capture.library`. A setting that is read is guarded. Setting one
that only chooses between kernels, or that allows less precision, is a node of the graph and takes
effect while capturing. Setting one that demands more precision ends the graph, as does anomaly mode
where autograd runs: it looks for NaN in each gradient.
"""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy
import torch

from weft._torch import kernel_choices, precision_settings
from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE
from weft.capture.core.state import Mode
from weft.capture.library.classes.classes import constructor
from weft.capture.library.functions.functions import rule
from weft.capture.library.tensors import context_polyfills
from weft.compiling import recursion_limit

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@cache
def _asking(where: tuple[object, ...]) -> Callable[[Any], object]:
    """A function that calls `where` and returns its value, for guards."""
    return operator.methodcaller("__call__", *where)


def _note(tx: Interpreter, mode: Mode) -> None:
    """Record that the capture depends on the setting's value at the start of the frame."""
    if tx.state.note(mode):
        name = mode.read.__name__
        source = tx.tree.object(mode.read, name).call(_asking(mode.where), f"{name}()")
        tx.guards.add(source, "eq", mode.now())


def _constants(tx: Interpreter, args: Iterable[SymbolicValue]) -> tuple[Any, ...]:
    objects = tx.constants(args)
    if objects is None:
        raise graph_break("state", "a setting of a library by values that are no constants")
    return tuple(objects)


def _reading(read: Callable[..., object], write: Callable[..., object]) -> None:
    @rule(read)
    def reading(tx: Interpreter, *where: SymbolicValue) -> SymbolicValue:
        mode = Mode(read, write, _constants(tx, where))
        _note(tx, mode)
        return tx.wrap_new(mode.now())


def _setting(read: Callable[..., object], write: Callable[..., object], *, chooses: bool) -> None:
    """The rules of a setting; `chooses` if results are the same with every value of it."""

    _reading(read, write)

    @rule(write)
    def writing(tx: Interpreter, first: SymbolicValue, /, *more: SymbolicValue) -> SymbolicValue:
        *where, value = _constants(tx, [first, *more])
        mode = Mode(read, write, tuple(where))
        _note(tx, mode)
        if value == mode.now():
            return NONE
        if not (chooses or value is True or value == tx.state.settings[mode]):
            raise graph_break("state", "a function that changes state outside of graphs")
        tx.mode_node(write, *where, value)
        with warnings.catch_warnings():  # the graph's call gives them
            warnings.simplefilter("ignore")
            write(*where, value)
        return NONE


def _state(read: Callable[..., object], asked: Callable[..., object] | None = None,
           where: tuple[object, ...] | None = None) -> None:
    """The rule of a function that reads what may change between calls and no guard compares
    anyway; `asked(*where)` is another function that says the same."""
    function = asked or read

    @rule(read)
    def reading(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
                ) -> SymbolicValue:
        asked_args = _constants(tx, [*args, *kwargs.values()]) if where is None else where
        name = function.__name__
        source = tx.tree.object(function, name).call(_asking(asked_args), f"{name}()")
        before = tx.state.at_start(function, asked_args)
        tx.guards.add(source, "is" if isinstance(before, torch.dtype) else "eq", before)
        return tx.wrap_new(function(*asked_args))


for _read in (torch.get_num_threads, torch.get_num_interop_threads, torch.get_autocast_dtype,
              torch.is_autocast_cache_enabled):
    _state(_read)
_state(torch.get_autocast_cpu_dtype, torch.get_autocast_dtype, ("cpu",))
_state(torch.get_autocast_gpu_dtype, torch.get_autocast_dtype, ("cuda",))
_state(sys.getrecursionlimit, recursion_limit)  # weft's own is higher while capturing

_NUMPY_ERRORS: Final = Mode(context_polyfills.numpy_errors, context_polyfills.set_numpy_errors)
_reading(_NUMPY_ERRORS.read, _NUMPY_ERRORS.write)


@rule(context_polyfills.set_numpy_errors)
def _set_numpy_errors(tx: Interpreter, wanted: SymbolicValue, /) -> SymbolicValue:
    (actions,) = _constants(tx, [wanted])
    if not {"ignore", "warn"}.issuperset(dict(actions).values()):
        raise graph_break("state", "errors of floating-point numbers that raise or call")
    _note(tx, _NUMPY_ERRORS)
    context_polyfills.set_numpy_errors(actions)  # graphs neither warn nor raise
    return NONE


@constructor(numpy.errstate)
def _errstate(tx: Interpreter, cls: type, /, *, call: SymbolicValue | None = None,
              **kwargs: SymbolicValue) -> SymbolicValue:
    if call is not None:
        raise graph_break("state", "errors of floating-point numbers that call")
    return tx.call_python(context_polyfills.NumpyErrors, [], kwargs)


for _pair in kernel_choices:
    _setting(*_pair, chooses=True)
for _pair in precision_settings:
    _setting(*_pair, chooses=False)


# -- anomaly mode ---------------------------------------------------------------------------------

_ANOMALY: Final = Mode(torch.is_anomaly_enabled, torch.set_anomaly_enabled)

_reading(_ANOMALY.read, _ANOMALY.write)
_reading(torch.is_anomaly_check_nan_enabled, _ANOMALY.write)


def check_anomaly_mode(tx: Interpreter) -> None:
    """Break the graph before autograd runs in anomaly mode."""
    _note(tx, _ANOMALY)
    if _ANOMALY.now():
        raise graph_break("state", "autograd in anomaly mode, which looks at each gradient's data")
