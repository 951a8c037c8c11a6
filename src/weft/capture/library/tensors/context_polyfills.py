"""Context managers without an effect while capturing: profiler ranges, torch function switches.

Place in the pipeline: interpreted in place of torch's own (`library/standard/polyfill_rules.py`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import numpy


class NullContext:
    """Does nothing; takes any arguments; also a decorator."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> NullContext:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        pass

    def __call__(self, function: object) -> object:
        return function


def switch_subclasses(step: int) -> None:
    """Has a rule: `__torch_function__` of classes is off while the sum of all steps is not zero."""


class PlainTensors(NullContext):
    """`torch._C.DisableTorchFunctionSubclass`: operations see plain tensors."""

    def __enter__(self) -> PlainTensors:
        switch_subclasses(1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        switch_subclasses(-1)


def switch_functions(off: bool) -> None:
    """Has a rule: no `__torch_function__`, of classes or of modes, is asked from here on, or those
    that were asked before."""


class PlainFunctions(NullContext):
    """`torch._C.DisableTorchFunction`: operations see plain tensors and no modes."""

    def __enter__(self) -> PlainFunctions:
        switch_functions(True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        switch_functions(False)


def switch_inference(mode: bool | None) -> None:
    """Has a rule: inference mode is set to `mode` from here on; None restores the previous mode."""


class InferenceRegion(NullContext):
    """`torch._C._InferenceMode`."""

    def __init__(self, mode: bool) -> None:
        self.mode = mode

    def __enter__(self) -> InferenceRegion:
        switch_inference(self.mode)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        switch_inference(None)


def numpy_errors() -> tuple[tuple[str, str], ...]:
    """What NumPy does with floating-point errors, by kind."""
    return tuple(sorted((kind, str(action)) for kind, action in numpy.geterr().items()))


def set_numpy_errors(actions: tuple[tuple[str, str], ...]) -> None:
    """Has a rule: sets what NumPy does."""
    options: dict[str, Any] = dict(actions)
    numpy.seterr(**options)


class NumpyErrors(NullContext):
    """`numpy.errstate`."""

    def __init__(self, *, all: str | None = None, **actions: str | None) -> None:
        kinds = ("divide", "invalid", "over", "under")
        self.actions = {kind: actions.get(kind) or all for kind in kinds}

    def __enter__(self) -> NumpyErrors:
        self.before = numpy_errors()
        set_numpy_errors(tuple((kind, self.actions[kind] or action)
                               for kind, action in self.before))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        set_numpy_errors(self.before)


def addcdiv_(tensor: Any, first: Any, second: Any, value: Any) -> object:
    """`Tensor.addcdiv_` with a tensor as `value`, which the operator would read."""
    return tensor.add_(first / second * value)


def addcmul_(tensor: Any, first: Any, second: Any, value: Any) -> object:
    """`Tensor.addcmul_` with a tensor as `value`."""
    return tensor.add_(first * second * value)
