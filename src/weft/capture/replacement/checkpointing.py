"""Activation checkpointing: `torch.utils.checkpoint.checkpoint` called by a captured frame.

Place in the pipeline: used by the replacement at the graph break that such a call is. PyTorch's
checkpoint runs its function in the forward and again in the backward, and both runs must do the
same. So it is given the *compiled* function, and runs without the frame hook itself::

    x = checkpoint(layer, x, use_reentrant=False)      # as written
    x = Checkpointed(make)(layer, x, use_reentrant=False)   # as run: checkpoint(make(layer), ...)

The second run goes to the end of the function. If it stopped where the last tensor is saved, in the
middle of a compiled graph, it would lack the graph's writes (running statistics).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, final

from torch.nn import Module
from torch.utils.checkpoint import checkpoint

from weft._torch import has_global_module_hooks
from weft.markers import disable
from weft.torch_marks import is_disabled

_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


@final
class Checkpointed:
    """`checkpoint` with its function compiled by `make`."""

    def __init__(self, make: Callable[[FunctionType], Any]) -> None:
        self._make = make
        #: Entries live as long as one compiled function of their code does.
        self._kept: dict[CodeType, Any] = {}
        self._run = disable(checkpoint)

    def __call__(self, function: Any, *args: Any, **kwargs: Any) -> object:
        return self._run(self._compiled(function), *args, **{"early_stop": False, **kwargs})

    def _compiled(self, function: object) -> Any:
        if is_disabled(function):
            return function
        if isinstance(function, Module) and not _has_hooks(function):
            return self._compiled(function.forward)
        if isinstance(function, MethodType) and isinstance(function.__func__, FunctionType):
            return MethodType(self._compiled(function.__func__), function.__self__)
        if not isinstance(function, FunctionType):
            return function
        compiled = self._make(function)
        self._kept.setdefault(function.__code__, compiled)
        return compiled


_CODE: Final[CodeType] = inspect.unwrap(checkpoint).__code__


def runs_checkpoint(code: CodeType) -> bool:
    """Whether the code is `checkpoint` itself, whose frame is entered if its caller is not
    captured: it runs without the frame hook, as the backward will."""
    return code is _CODE


def is_checkpoint(function: object) -> bool:
    """Whether it is PyTorch's `checkpoint`."""
    return function is checkpoint


def _has_hooks(module: Module) -> bool:
    """Whether calling the module does more than calling its `forward`."""
    if has_global_module_hooks() or type(module).__call__ is not Module.__call__:
        return True
    return any(getattr(module, name) for name in _HOOKS)
