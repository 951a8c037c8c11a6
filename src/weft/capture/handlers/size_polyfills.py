"""Rules for operators that take no symbolic sizes: polyfills of operators that do.

Place in the pipeline: see `handlers/__init__`; the polyfills are in `polyfills/sizes.py`. Without
such a rule, guards fix the sizes of the call (`MemoFakeMode`), and each size is compiled anew. The
functions here say for which arguments a polyfill applies::

    torch.linspace(0, 1, x.size(0))    # arange and arithmetic, for any size
    torch.linspace(0, 1, 8)            # the operator itself
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F

from weft._torch import are_functorch_transforms_active, nn_functions
from weft.capture.polyfills import sizes
from weft.capture.values.base import Args, Kwargs, SymbolicValue, by_name
from weft.capture.values.constant import NONE, ConstantValue, constant, evaluate
from weft.capture.values.containers.sequences import ListValue, TupleValue
from weft.capture.values.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.values.objects.functions import rule
from weft.capture.values.tensors.tensor import TENSOR_METHODS, TensorValue, record
from weft.shapes.symnode import is_hinted

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter

Applies = Callable[["Interpreter", Args, Kwargs], bool]
Choices = list[tuple[Any, Applies]]
"""Polyfills, and for which arguments each is interpreted."""


def _register(target: Any, choices: Choices) -> None:
    """The rule of a function, or of the tensors' method of that name."""

    def call(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        args = [tx.force(arg) for arg in args]
        for polyfill, applies in choices:
            if applies(tx, args, kwargs):
                return tx.call_python(polyfill, args[: polyfill.__code__.co_argcount], kwargs)
        return record(tx, target, args, kwargs)

    if isinstance(target, str):
        TENSOR_METHODS[target] = lambda tx, tensor, args, kwargs: call(tx, [tensor, *args], kwargs)
    else:
        rule(target)(call)


def _symbolic_number(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Some size is symbolic, and no argument is given that the polyfill does not support."""
    given = [tx.force(arg) for arg in (*args, *kwargs.values())]
    items = [tx.force(n) for arg in given if isinstance(arg, ListValue | TupleValue)
             for n in arg.items]
    known = {"out", "layout", "requires_grad", "pin_memory"}.isdisjoint(kwargs)
    return known and any(isinstance(arg, SymbolicNumberValue) for arg in (*given, *items))


def _fill_diagonal(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """The tensor is a matrix, without wrapping."""
    return not kwargs and len(args) == 2 and _is_symbolic_of_rank(args[0], 2)


def _combinations(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Combinations of two."""
    r = by_name(args, kwargs, "input", "r").get("r", constant(2))
    pairs = r.is_constant and r.constant() == 2
    return pairs and bool(args) and _is_symbolic_of_rank(args[0], 1)


def _block_diag(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    if len(args) != 1 or not isinstance(args[0], ListValue | TupleValue):
        return False
    blocks = [tx.force(one) for one in args[0].iterate(tx)]
    tensors = [one for one in blocks if isinstance(one, TensorValue) and one.example.dim() <= 2]
    return len(tensors) == len(blocks) and any(map(_has_symbolic_sizes, tensors))


@rule(torch.block_diag)
def _block_diag_of(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    blocks = TupleValue(args)
    if not kwargs and _block_diag(tx, [blocks], {}):
        return tx.call_python(sizes.block_diag, [blocks])
    return record(tx, torch.block_diag, args, kwargs)


def _vander(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return bool(args) and _is_symbolic_of_rank(args[0], 1)


def _gradient(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Evenly spaced samples, one-sided differences at the ends."""
    x, spacing = args[0] if len(args) == 1 else None, kwargs.get("spacing", NONE)
    one = spacing is NONE or type(spacing.constant() if spacing.is_constant else None) in (
        int, float)
    if not one or set(kwargs) - {"spacing", "dim"} or not isinstance(x, TensorValue):
        return False
    return x.example.is_floating_point() and _has_symbolic_sizes(x)


def _tensors_of_symbolic_sizes(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Both operands are tensors, and there is no `out`."""
    pair = [x for x in args[:2] if isinstance(x, TensorValue)]
    return len(pair) == 2 and "out" not in kwargs and any(map(_has_symbolic_sizes, pair))


def _differentiable_products(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """A gradient may be needed, along a dimension that is symbolic or has more than a few steps."""
    x, dim = args[0] if args else None, kwargs.get("dim", args[1] if len(args) > 1 else NONE)
    if not isinstance(x, TensorValue) or set(kwargs) - {"dim"} or not dim.is_constant:
        return False
    fake = x.example
    if not (fake.requires_grad and torch.is_grad_enabled() and fake.dim()):
        return False
    place = dim.constant()
    return type(place) is int and -fake.dim() <= place < fake.dim() and (
        fake.dtype in (torch.float32, torch.float64))


def _symbolic_weight(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Real tensors and a symbolic weight."""
    weight = by_name(args, kwargs, "input", "end", "weight").get("weight", NONE)
    x = args[0] if args else None
    return isinstance(weight, SymbolicNumberValue) and "out" not in kwargs and (
        isinstance(x, TensorValue) and x.example.is_floating_point())


def _differentiable_power(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """A real tensor that needs a gradient, and a symbolic exponent."""
    tensors = [arg.example for arg in args if isinstance(arg, TensorValue)]
    numbers = [arg for arg in args if isinstance(arg, SymbolicNumberValue)]
    return len(tensors) == len(numbers) == 1 and not kwargs and torch.is_grad_enabled() and (
        tensors[0].requires_grad and tensors[0].is_floating_point())


def _plain_norm(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """A norm without singular values: sums of squares, or largest or smallest sums of rows or
    columns."""
    order = by_name(args, kwargs, "A", "ord").get("ord", constant("fro"))
    x = args[0] if args else None
    if not isinstance(x, TensorValue) or set(kwargs) - {"ord", "dim", "keepdim"}:
        return False
    plain = order.is_constant and order.constant() in ("fro", 1, -1, math.inf, -math.inf)
    return plain and x.example.is_floating_point() and _has_symbolic_sizes(x)


def _is_symbolic_of_rank(x: SymbolicValue, rank: int) -> bool:
    return isinstance(x, TensorValue) and x.example.dim() == rank and _has_symbolic_sizes(x)


def _linspace(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Symbolic steps between plain numbers, of a floating type."""
    given = by_name(args, kwargs, "start", "end", "steps")
    if not isinstance(given.get("steps"), SymbolicNumberValue) or len(args) > 3:
        return False
    if set(given) - {"start", "end", "steps", "dtype", "device", "requires_grad"}:
        return False
    dtype = given.get("dtype")
    kind = dtype.constant() if isinstance(dtype, ConstantValue) else None
    floating = kind is None or (kind.is_floating_point and kind.itemsize >= 4)
    return floating and not any(isinstance(given[n], TensorValue) for n in ("start", "end"))


def _kron(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    tensors = [a for a in args if isinstance(a, TensorValue)]
    return not kwargs and len(tensors) == 2 and any(map(_has_symbolic_sizes, tensors))


def _one_hot(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """The number of classes depends on data: not given, or -1."""
    classes = kwargs.get("num_classes", args[1] if len(args) > 1 else None)
    if classes is not None and not (classes.is_constant and classes.constant() == -1):
        return False
    index = args[0] if args else None
    if not isinstance(index, TensorValue) or index.example.dtype is not torch.int64:
        return False
    empty = any(type(n) is int and n == 0 for n in index.example.shape)
    return tx.shapes.data_dependent and not empty


def _one_hot_of(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """The number of classes is symbolic."""
    given = by_name(args, kwargs, "tensor", "num_classes")
    index = given.get("tensor")
    whole = isinstance(index, TensorValue) and index.example.dtype is torch.int64
    return whole and isinstance(tx.force(given.get("num_classes", NONE)), SymbolicNumberValue)


def _one_hot_on_cpu(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """The kernel checks the classes, and that their number is positive."""
    given = by_name(args, kwargs, "tensor", "num_classes")
    index, classes = given.get("tensor"), tx.force(given.get("num_classes", NONE))
    plain = (isinstance(index, TensorValue) and index.example.dtype is torch.int64
             and index.example.device.type == "cpu" and not are_functorch_transforms_active())
    return plain and classes.is_constant and type(classes.constant()) is int and (
        classes.constant() > 0)


def _pad_sequence(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Tensors of one type and symbolic lengths."""
    sequences = by_name(args, kwargs, "sequences").get("sequences", NONE)
    if not isinstance(sequences, ListValue | TupleValue):
        return False
    items = [tx.force(item) for item in sequences.iterate(tx)]
    fakes = [item.example for item in items if isinstance(item, TensorValue)]
    if not fakes or len(fakes) < len(items) or not all(fake.dim() for fake in fakes):
        return False
    same = len({(fake.dtype, fake.device) for fake in fakes}) == 1
    return same and any(type(fake.shape[0]) is not int for fake in fakes)


def _max_pool1d(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Symbolic sizes, or a layout that eager would not keep."""
    x = args[0] if args else kwargs.get("input")
    return isinstance(x, TensorValue) and (
        _has_symbolic_sizes(x) or not x.example.is_contiguous() or 1 in x.example.shape)


def _affine_grid(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    if len(args) != 3 or not isinstance(args[0], TensorValue):
        return False
    size = args[1].items if isinstance(args[1], ListValue | TupleValue) else ()
    return any(isinstance(tx.force(n), SymbolicNumberValue) for n in size)


def _cov(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Real numbers without weights, more observations than the correction: ATen reads a tensor to
    test that."""
    correction = kwargs.get("correction", constant(1))
    if not _is_real_matrix(args) or set(kwargs) - {"correction"} or not correction.is_constant:
        return False
    sizes = args[0].example.shape  # type: ignore[attr-defined]
    enough = sizes[-1] - correction.constant() > 0
    return is_hinted(enough) and bool(evaluate(tx, lambda: bool(enough)))


def _corrcoef(tx: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    return not kwargs and _is_real_matrix(args)


def _is_real_matrix(args: Args) -> bool:
    """A matrix or vector."""
    x = args[0] if len(args) == 1 else None
    return isinstance(x, TensorValue) and x.example.is_floating_point() and (
        1 <= x.example.dim() <= 2)


def _has_symbolic_sizes(tensor: TensorValue) -> bool:
    return any(type(n) is not int for n in tensor.example.shape)


_TABLE: Final[tuple[tuple[Any, Any, Applies], ...]] = (
    (torch.linspace, sizes.linspace, _linspace),
    (torch.max_pool1d, sizes.max_pool1d, _max_pool1d),
    (torch.cov, sizes.cov, _cov),
    (torch.corrcoef, sizes.corrcoef, _corrcoef),
    (torch.kron, sizes.kron, _kron),
    (F.one_hot, sizes.one_hot, _one_hot),
    (F.one_hot, sizes.one_hot_of, _one_hot_of),
    (F.one_hot, sizes.checked_one_hot, _one_hot_on_cpu),
    (nn_functions.pad_sequence, sizes.pad_sequence, _pad_sequence),
    (torch.affine_grid_generator, sizes.affine_grid_generator, _affine_grid),
    (torch.adaptive_avg_pool1d, sizes.adaptive_avg_pool1d, _symbolic_number),
    (torch.diagonal, sizes.diagonal, _symbolic_number),
    ("diagonal", sizes.diagonal, _symbolic_number),
    (torch.triu_indices, sizes.triu_indices, _symbolic_number),
    (torch.tril_indices, sizes.tril_indices, _symbolic_number),
    (torch.fft.fftfreq, sizes.fft_fftfreq, _symbolic_number),
    (torch.fft.rfftfreq, sizes.fft_rfftfreq, _symbolic_number),
    (torch.hann_window, sizes.hann_window, _symbolic_number),
    (torch.hamming_window, sizes.hamming_window, _symbolic_number),
    (torch.combinations, sizes.combinations, _combinations),
    (torch.vander, sizes.vander, _vander),
    (torch.gradient, sizes.gradient, _gradient),
    (torch.take_along_dim, sizes.take_along_dim, _tensors_of_symbolic_sizes),
    ("take_along_dim", sizes.take_along_dim, _tensors_of_symbolic_sizes),
    (torch.masked_select, sizes.masked_select, _tensors_of_symbolic_sizes),
    ("masked_select", sizes.masked_select, _tensors_of_symbolic_sizes),
    (torch.cumprod, sizes.cumprod, _differentiable_products),
    ("cumprod", sizes.cumprod, _differentiable_products),
    (torch.lerp, sizes.lerp, _symbolic_weight),
    ("lerp", sizes.lerp, _symbolic_weight),
    ("lerp_", sizes.lerp_, _symbolic_weight),
    (torch.pow, sizes.pow, _differentiable_power),
    ("pow", sizes.pow, _differentiable_power),
    (torch.linalg.matrix_norm, sizes.matrix_norm, _plain_norm),
    ("fill_diagonal_", sizes.fill_diagonal_, _fill_diagonal),
    ("unfold", sizes.unfold, _symbolic_number),
)
"""A function or method, its polyfill, and for which arguments that applies."""

_CHOICES: Final[dict[Any, Choices]] = {}
for _target, _polyfill, _applies in _TABLE:
    _CHOICES.setdefault(_target, []).append((_polyfill, _applies))
for _target, _choices in _CHOICES.items():
    _register(_target, _choices)
