"""A default device that is set when a compiled function is called.

Place in the pipeline: between `compiler.py` and the interpreter. `torch.set_default_device("cuda")`
and `with torch.device("cuda"):` are torch function modes: while one is active, every call of a
torch function runs Python code that adds `device=` to the functions that make tensors. The captured
graph has the device in its nodes instead, and runs with the mode set aside::

    torch.set_default_device("cuda")
    compiled()                       # guard: torch.get_default_device() == "cuda:0"
                                     # graph: torch.zeros(3, device="cuda:0")
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import torch

from weft._torch import (
    DeviceContext,
    DisableTorchFunction,
    device_constructors,
    pop_torch_function_mode,
    push_torch_function_mode,
    torch_function_mode_at,
    torch_function_modes,
)
from weft.capture.core.base import Kwargs
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import METHODS, NONE, ConstantValue, is_none
from weft.graph_call import GraphCall

if TYPE_CHECKING:
    from weft.capture.core.base import SymbolicValue
    from weft.capture.core.protocols import Interpreter


def only_devices() -> bool:
    """Whether all active torch function modes only set the default device."""
    return all(isinstance(torch_function_mode_at(i), DeviceContext)
               for i in range(torch_function_modes()))


def _active_devices(_: object) -> tuple[str, ...]:
    modes = (torch_function_mode_at(i) for i in range(torch_function_modes()))
    return tuple(str(getattr(mode, "device", mode)) for mode in modes)


def enter_devices(tx: Interpreter, devices: tuple[str, ...]) -> None:
    """Start the interpretation under these default devices (outermost first), and guard them."""
    if not devices:
        return
    source = tx.tree.object(torch, "torch").call(_active_devices, "torch.get_default_device()")
    tx.guards.add(source, "eq", devices)
    for device in devices:
        tx.modes.functions.append(tx.wrap_fixed(DeviceContext(device), "default device"))
    tx.modes.outer = list(tx.modes.functions)


def _enter(tx: Interpreter, device: ConstantValue) -> SymbolicValue:
    """`with torch.device("cuda"):` inside the program."""
    mode = DeviceContext(device.value)
    tx.modes.functions.append(tx.wrap_fixed(mode, "default device"))
    return device


def _leave(tx: Interpreter, device: ConstantValue) -> SymbolicValue:
    tx.modes.functions.pop()
    return NONE


METHODS[torch.device, "__enter__"] = _enter
METHODS[torch.device, "__exit__"] = _leave


def mode_changes(tx: Interpreter) -> tuple[int, list[SymbolicValue]]:
    """How many modes the program left, innermost first, and the modes that it then entered."""
    before, after = tx.modes.outer, tx.end.functions
    pairs = zip(before, after, strict=False)
    kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], pairs))
    return len(before) - kept, after[kept:]


def ignores(mode: SymbolicValue, target: object) -> bool:
    """Whether the mode does nothing for calls of `target`."""
    is_device = mode.python_type() is DeviceContext
    return is_device and (target not in device_constructors() or target in _ASK_NO_MODE)


_ASK_NO_MODE: Final = frozenset({torch.range})
"""Constructors whose C code calls no mode."""


def with_default_device(tx: Interpreter, target: Any, kwargs: Kwargs) -> Kwargs:
    """The named arguments of a constructor that a rule does by other operations, with the device
    that an active mode would have set."""
    modes = [mode for mode in tx.modes.functions if not ignores(mode, target)]
    if any(mode.python_type() is not DeviceContext for mode in modes):
        raise graph_break("unknown-operation", f"{target.__name__} in a torch function mode")
    device = kwargs.get("device", NONE)
    return {**kwargs, "device": modes[-1].getattr(tx, "device")} if (
        modes and is_none(device)) else kwargs


@contextmanager
def modes_set_aside() -> Iterator[tuple[str, ...]]:
    """Deactivate the active modes, which the interpreter imitates; gives their devices."""
    devices = _active_devices(None)
    modes = [pop_torch_function_mode() for _ in devices]
    try:
        yield devices
    finally:
        for mode in reversed(modes):
            push_torch_function_mode(mode)


def without_modes(graph: GraphCall) -> GraphCall:
    """The graph's callable, run without torch function modes: its nodes have the devices."""
    run = graph.call

    def call(*args: object) -> Any:
        with DisableTorchFunction():
            return run(*args)

    return replace(graph, call=call)


__all__: Final = [
    "enter_devices", "ignores", "mode_changes", "modes_set_aside", "only_devices",
    "with_default_device", "without_modes",
]
