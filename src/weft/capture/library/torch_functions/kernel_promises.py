"""Rules for operators whose kernels differ from their meta kernels, in strides or in errors.

Place in the pipeline: see `weft.capture.library`. Capture writes what eager's kernel does into the
graph, so that each later stage sees the layout that the program would see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from weft._torch import nn_functions
from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, constant, evaluate, is_none, python_object
from weft.capture.core.rules import passed
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.functions.functions import rule
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue, operand
from weft.capture.library.standard import library_polyfills
from weft.capture.library.tensors.tensor import TensorValue, record
from weft.shapes.symnode import is_hinted
from weft.shapes.tensor_layouts import is_channels_last

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@rule(nn_functions.pad)
def _pad(tx: Interpreter, input: SymbolicValue, pad: SymbolicValue,
         mode: SymbolicValue | None = None, value: SymbolicValue | None = None) -> SymbolicValue:
    """Padding by zero copies the input with its strides; otherwise the result is row-major or
    channels-last."""
    x, widths = tx.force(input), tx.force(pad)
    kind = python_object(tx, constant("constant") if mode is None else mode)
    if kind == "constant" and _is_scattered(x) and _pads_nothing(tx, widths):
        return record(tx, "clone", [x])
    if kind == "circular" and _pads_whole_rows(tx, x, widths):
        return tx.call_python(library_polyfills.circular_pad, [x, widths])
    return record(tx, nn_functions.pad, [x, widths], passed(mode=mode, value=value))


def _pads_whole_rows(tx: Interpreter, x: SymbolicValue, widths: SymbolicValue) -> bool:
    """Whether a row-major tensor is padded along its last dimensions, by at most their sizes."""
    if not isinstance(x, TensorValue) or not isinstance(widths, TupleValue | ListValue):
        return False
    numbers = [tx.force(width) for width in widths.iterate(tx)]
    counts = [n.constant() if n.is_constant else None for n in numbers]
    sizes = [n for n in x.example.shape[::-1] for _ in (0, 1)]
    fits = all(type(n) is int and type(size) is int and 0 <= n <= size
               for n, size in zip(counts, sizes, strict=False))
    known_rank = 2 * x.example.dim() - len(counts) in (2, 4) and any(counts)
    return fits and known_rank and x.example.is_contiguous()


def _is_scattered(x: SymbolicValue) -> bool:
    return isinstance(x, TensorValue) and not x.example.is_contiguous()


def _pads_nothing(tx: Interpreter, widths: SymbolicValue) -> bool:
    """Whether all widths are zero in this call; guarded if some depend on sizes."""
    if not isinstance(widths, TupleValue | ListValue):
        return False
    numbers = [tx.force(width) for width in widths.iterate(tx)]
    hinted = all(is_hinted(getattr(number, "example", None)) for number in numbers)
    return hinted and not any(number.truth(tx) for number in numbers)


_RESIZING: Final = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d",
    "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)


def _resizing(function: Any) -> None:
    """A rule that raises for images without pixels, as the kernels do."""

    @rule(function)
    def handler(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
        sized = _by_sizes(tx, function, [tx.force(arg) for arg in args])
        image = record(tx, function, sized, kwargs)
        if isinstance(image, TensorValue) and not evaluate(tx, lambda: _has_pixels(image.example)):
            raise graph_break("operator-failed", f"{function.__name__} of {image!r}")
        return image


def _by_sizes(tx: Interpreter, function: Any, args: Args) -> Args:
    """Resize in ATen's form that takes sizes and a factor for each, instead of either of the two.

    PyTorch's form for either takes symbolic sizes only in Python, by a formula that gathers each
    pixel, and that differs from kernels that use the sizes: some in the backward, some in both
    passes.
    """
    if len(args) not in (3, 4) or not isinstance(args[0], TensorValue):
        return args
    if not is_none(args[1]):
        return args[:-1] if is_none(args[-1]) else args
    sizes, factors = args[0].example.shape[2:], args[-1]
    if not isinstance(factors, TupleValue | ListValue) or len(factors.items) != len(sizes):
        return args
    old = [tx.wrap_new(n) for n in sizes]
    scales = [tx.force(factor) for factor in factors.items]
    if any(operand(scale) is None for scale in scales):
        return args
    new = [tx.binary("mul", size, scale).method(tx, "__int__", [], {})
           for size, scale in zip(old, scales, strict=True)]
    if function.__name__ in _COPY_WHAT_STAYS:
        scales = _scales_of_kernels(tx, args[0].example, old, new, scales)
    return [args[0], ListValue(new), *args[2:-1], *scales]


def _scales_of_kernels(tx: Interpreter, image: torch.Tensor, old: Args, new: Args, scales: Args
                       ) -> Args:
    """The scales that the kernels use: they copy a dimension whose size stays, whatever the factor
    is (formulas do not). GPU kernels do so only if all sizes stay."""
    stays = [tx.binary("eq", a, b).truth(tx) if _is_hinted(a) else False
             for a, b in zip(old, new, strict=True)]
    if image.device.type != "cpu":
        stays = [all(stays)] * len(stays)
    return [NONE if same else scale for same, scale in zip(stays, scales, strict=True)]


_COPY_WHAT_STAYS: Final = frozenset({
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
})


def _is_hinted(size: SymbolicValue) -> bool:
    return is_hinted(size.example) if isinstance(size, SymbolicNumberValue) else True


def _has_pixels(image: torch.Tensor) -> bool:
    """Whether the image has pixels, as far as is known; the operator checks sizes that depend on
    data."""
    return all(n > 0 for n in image.shape[2:] if is_hinted(n))


for _name in _RESIZING:
    _resizing(getattr(nn_functions, _name))


def _of_images(function: object) -> None:
    """A rule that keeps channels-last memory, as the CPU kernels do and the formulas do not."""

    @rule(function)
    def handler(tx: Interpreter, input: SymbolicValue, *args: SymbolicValue,
                **kwargs: SymbolicValue) -> SymbolicValue:
        source = tx.force(input)
        image = record(tx, function, [source, *map(tx.force, args)], kwargs)
        if isinstance(source, TensorValue) and isinstance(image, TensorValue):
            x = source.example
            if x.device.type == "cpu" and x.dim() == 4 and is_channels_last(x):
                options: Kwargs = {"memory_format": constant(torch.channels_last)}
                return record(tx, "contiguous", [image], options)
        return image


@rule(torch.fused_moving_avg_obs_fake_quant)
def _observe(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
    """The first call, by channel, resizes the ranges and scales that it is given."""
    ranges = [r.example for r in map(tx.force, args[3:7]) if isinstance(r, TensorValue)]
    if any(r.shape.numel() == 0 for r in ranges):
        raise graph_break("operator-failed", "fused_moving_avg_obs_fake_quant of no ranges yet")
    return record(tx, torch.fused_moving_avg_obs_fake_quant, [*args], kwargs)


_of_images(torch.channel_shuffle)
_of_images(nn_functions.max_unpool2d)
