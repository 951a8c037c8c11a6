"""Rules for operators that take no symbolic sizes: polyfills of operators that do.

Place in the pipeline: see `weft.capture.library`; the polyfills are in `size_polyfills.py`. Without
such a rule, guards fix the sizes of the call (`MemoFakeMode`), and each size is compiled anew. The
functions here say when a polyfill is asked; one that does not support the arguments returns
NotImplemented::

    torch.linspace(0, 1, x.size(0))    # arange and arithmetic, for any size
    torch.linspace(0, 1, 8)            # the operator itself
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F

from weft._torch import are_functorch_transforms_active, nn_functions
from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import ONE, constant, evaluate
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.functions.functions import rule
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.tensors.operations_on_fakes import name_of
from weft.capture.library.tensors.tensor import (
    TensorValue,
    plain_integers,
    record,
    tensor_method,
)
from weft.capture.library.torch_functions import size_polyfills
from weft.shapes.symnode import is_hinted

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

Applies = Callable[..., bool]
Choices = list[tuple[Any, Applies]]
"""Polyfills, and tests of their arguments that say whether they are asked."""


def _register(target: object, choices: Choices) -> None:
    """The rule of a function, or of the tensors' method of that name."""

    def call(tx: Interpreter, /, *values: SymbolicValue, **named: SymbolicValue) -> SymbolicValue:
        args, kwargs = plain_integers(tx, name_of(target), [*map(tx.force, values)], named)
        for polyfill, applies in choices:
            if _binds(polyfill, args, kwargs) and applies(tx, *args, **kwargs):
                result = tx.call_python(polyfill, args, kwargs)
                if not (result.is_constant and result.constant() is NotImplemented):
                    return result
        return record(tx, target, args, kwargs)

    if isinstance(target, str):
        tensor_method(target)(call)
    else:
        rule(target)(call)


_signature: Final = cache(signature)


def _binds(polyfill: object, args: Args, kwargs: Kwargs) -> bool:
    """Whether the polyfill has parameters for these arguments."""
    try:
        _signature(polyfill).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _always(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> bool:
    return True


def _symbolic_number(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> bool:
    """Some argument, or item of one, is a symbolic number."""
    return any(isinstance(value, SymbolicNumberValue)
               for value in _each(tx, *args, *kwargs.values()))


def _symbolic_sizes(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> bool:
    """Some tensor has symbolic sizes."""
    return any(type(n) is not int for value in _each(tx, *args, *kwargs.values())
               if isinstance(value, TensorValue) for n in value.example.shape)


def _each(tx: Interpreter, *args: SymbolicValue) -> Iterator[SymbolicValue]:
    """The arguments and the items of sequences among them."""
    for arg in args:
        value = tx.force(arg)
        yield value
        if isinstance(value, ListValue | TupleValue):
            yield from map(tx.force, value.iterate(tx))


def _symbolic_steps(tx: Interpreter, start: SymbolicValue, end: SymbolicValue,
                    steps: SymbolicValue, **options: SymbolicValue) -> bool:
    return isinstance(tx.force(steps), SymbolicNumberValue)


def _pooled_in_other_ways(tx: Interpreter, input: SymbolicValue, *args: SymbolicValue,
                          **options: SymbolicValue) -> bool:
    """Symbolic sizes, or a layout that eager would not keep."""
    return isinstance(input, TensorValue) and (
        _symbolic_sizes(tx, input) or 1 in input.example.shape
        or not input.example.is_contiguous())


def _more_than_correction(tx: Interpreter, input: SymbolicValue, *,
                          correction: SymbolicValue = ONE) -> bool:
    """Real numbers, more observations than the correction: ATen reads a tensor to test that."""
    if not isinstance(input, TensorValue) or not correction.is_constant:
        return False
    if not input.example.is_floating_point() or input.example.dim() not in (1, 2):
        return False
    enough = input.example.shape[-1] - correction.constant() > 0
    return is_hinted(enough) and bool(evaluate(tx, lambda: bool(enough)))


_BY_DATA: Final = constant(-1)


def _one_hot(tx: Interpreter, input: SymbolicValue, num_classes: SymbolicValue = _BY_DATA) -> bool:
    """The number of classes depends on data: not given, or -1."""
    if not (num_classes.is_constant and num_classes.constant() == -1):
        return False
    if not isinstance(input, TensorValue) or input.example.dtype is not torch.int64:
        return False
    empty = any(type(n) is int and n == 0 for n in input.example.shape)
    return tx.shapes.data_dependent and not empty


def _one_hot_of(tx: Interpreter, input: SymbolicValue, num_classes: SymbolicValue) -> bool:
    """The number of classes is symbolic."""
    whole = isinstance(input, TensorValue) and input.example.dtype is torch.int64
    return whole and isinstance(tx.force(num_classes), SymbolicNumberValue)


def _one_hot_on_cpu(tx: Interpreter, input: SymbolicValue, num_classes: SymbolicValue) -> bool:
    """The kernel checks the classes, and that their number is positive."""
    classes = tx.force(num_classes)
    plain = (isinstance(input, TensorValue) and input.example.dtype is torch.int64
             and input.example.device.type == "cpu" and not are_functorch_transforms_active())
    number = classes.constant() if plain and classes.is_constant else None
    if type(number) is not int or number == -1:
        return False
    if number < 1:  # which fakes take
        raise graph_break("operator-failed", "one_hot: there are no classes")
    return True


_TABLE: Final[tuple[tuple[Any, Any, Applies], ...]] = (
    (torch.linspace, size_polyfills.linspace, _symbolic_steps),
    (torch.max_pool1d, size_polyfills.max_pool1d, _pooled_in_other_ways),
    (torch.cov, size_polyfills.cov, _more_than_correction),
    (torch.corrcoef, size_polyfills.corrcoef, _always),
    (torch.block_diag, size_polyfills.block_diag, _symbolic_sizes),
    (torch.kron, size_polyfills.kron, _symbolic_sizes),
    (F.one_hot, size_polyfills.one_hot, _one_hot),
    (F.one_hot, size_polyfills.one_hot_of, _one_hot_of),
    (F.one_hot, size_polyfills.checked_one_hot, _one_hot_on_cpu),
    (nn_functions.pad_sequence, size_polyfills.pad_sequence, _symbolic_sizes),
    (torch.affine_grid_generator, size_polyfills.affine_grid_generator, _symbolic_number),
    (torch.adaptive_avg_pool1d, size_polyfills.adaptive_avg_pool1d, _symbolic_number),
    (torch.diagonal, size_polyfills.diagonal, _symbolic_number),
    ("diagonal", size_polyfills.diagonal, _symbolic_number),
    (torch.triu_indices, size_polyfills.triu_indices, _symbolic_number),
    (torch.tril_indices, size_polyfills.tril_indices, _symbolic_number),
    (torch.fft.fftfreq, size_polyfills.fft_fftfreq, _symbolic_number),
    (torch.fft.rfftfreq, size_polyfills.fft_rfftfreq, _symbolic_number),
    (torch.hann_window, size_polyfills.hann_window, _symbolic_number),
    (torch.hamming_window, size_polyfills.hamming_window, _symbolic_number),
    (torch.combinations, size_polyfills.combinations, _symbolic_sizes),
    (torch.vander, size_polyfills.vander, _symbolic_sizes),
    (torch.gradient, size_polyfills.gradient, _symbolic_sizes),
    (torch.take_along_dim, size_polyfills.take_along_dim, _symbolic_sizes),
    ("take_along_dim", size_polyfills.take_along_dim, _symbolic_sizes),
    (torch.masked_select, size_polyfills.masked_select, _symbolic_sizes),
    ("masked_select", size_polyfills.masked_select, _symbolic_sizes),
    (torch.cumprod, size_polyfills.cumprod, _always),
    ("cumprod", size_polyfills.cumprod, _always),
    (torch.lerp, size_polyfills.lerp, _symbolic_number),
    ("lerp", size_polyfills.lerp, _symbolic_number),
    ("lerp_", size_polyfills.lerp_, _symbolic_number),
    (torch.pow, size_polyfills.pow, _symbolic_number),
    ("pow", size_polyfills.pow, _symbolic_number),
    (torch.linalg.matrix_norm, size_polyfills.matrix_norm, _symbolic_sizes),
    ("fill_diagonal_", size_polyfills.fill_diagonal_, _symbolic_sizes),
    ("unfold", size_polyfills.unfold, _symbolic_number),
)
"""A function or method, its polyfill, and for which arguments that is asked."""

_CHOICES: Final[dict[Any, Choices]] = {}
for _target, _polyfill, _applies in _TABLE:
    _CHOICES.setdefault(_target, []).append((_polyfill, _applies))
for _target, _choices in _CHOICES.items():
    _register(_target, _choices)
