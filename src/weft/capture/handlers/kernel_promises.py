"""Rules for operators whose kernels give other strides than their meta kernels say, or an error.

Place in the pipeline: see `handlers/__init__`. Capture writes into the graph what eager's kernel
does by itself, so that each later stage sees the layout that the program would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from weft._torch import nn_functions
from weft.capture.breaks import graph_break
from weft.capture.values.base import Args, Kwargs, SymbolicValue
from weft.capture.values.constant import constant, evaluate
from weft.capture.values.functions import rule
from weft.capture.values.sequences import ListValue, TupleValue
from weft.capture.values.symbolic_numbers import SymbolicNumberValue
from weft.capture.values.tensors import TensorValue, run
from weft.shapes.symnode import is_hinted

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter


@rule(nn_functions.pad)
def _pad(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """By nothing it is a copy that lies as the input does, else rows or channels-last."""
    args = [tx.force(arg) for arg in args]
    mode = args[2] if len(args) > 2 else kwargs.get("mode", constant("constant"))
    plain = len(args) > 1 and mode.is_constant and mode.constant() == "constant"
    if plain and _is_scattered(args[0]) and _pads_nothing(tx, args[1]):
        return run(tx, "call_method", "clone", args[:1], {})
    return run(tx, "call_function", nn_functions.pad, args, kwargs)


def _is_scattered(x: SymbolicValue) -> bool:
    return isinstance(x, TensorValue) and not x.example.is_contiguous()


def _pads_nothing(tx: Interpreter, widths: SymbolicValue) -> bool:
    """Whether all widths are zero in this call, guarded where some depend on sizes."""
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
    @rule(function)
    def handler(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        """The kernels refuse images without pixels."""
        if function is nn_functions.upsample_nearest2d:
            args = _exact_scales(tx, args)
        made = run(tx, "call_function", function, args, kwargs)
        if isinstance(made, TensorValue) and not evaluate(tx, lambda: _has_pixels(made.example)):
            raise graph_break("operator-failed", f"{function.__name__} of {made!r}")
        return made


def _exact_scales(tx: Interpreter, args: Args) -> Args:
    """To as many or twice as many pixels the kernel for images goes by the sizes, whatever the
    factors say (those for lines and volumes do not); the Python form, which symbolic sizes need,
    goes by the factors."""
    args = [tx.force(arg) for arg in args]
    image, factors = args[0], args[-1]
    if len(args) != 3 or not isinstance(image, TensorValue) or not isinstance(
            factors, TupleValue | ListValue):
        return args
    sizes = [tx.wrap_new(n) for n in image.example.shape[2:]]
    exact = [_exact_scale(tx, size, tx.force(factor))
             for size, factor in zip(sizes, factors.iterate(tx), strict=True)]
    return [*args[:2], TupleValue(exact)]


def _exact_scale(tx: Interpreter, size: SymbolicValue, factor: SymbolicValue) -> SymbolicValue:
    """The factor, or that of the sizes: guarded where the size is symbolic."""
    if not isinstance(size, SymbolicNumberValue) or not is_hinted(size.example):
        return factor
    length = tx.binary("mul", size, factor).method(tx, "__int__", [], {})
    for whole in (1, 2):
        if tx.binary("eq", length, tx.binary("mul", size, constant(whole))).truth(tx):
            return constant(float(whole))
    return factor


def _has_pixels(image: torch.Tensor) -> bool:
    """As far as it is known: sizes that depend on data are left to the operator."""
    return all(n > 0 for n in image.shape[2:] if is_hinted(n))


for _name in _RESIZING:
    _resizing(getattr(nn_functions, _name))


def _of_images(function: Any) -> None:
    @rule(function)
    def handler(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        """The CPU kernels keep channels-last memory, which the formulas lose."""
        args = [tx.force(arg) for arg in args]
        made = run(tx, "call_function", function, args, kwargs)
        given = args[0] if args else None
        if isinstance(given, TensorValue) and isinstance(made, TensorValue):
            x = given.example
            if x.device.type == "cpu" and x.dim() == 4 and _is_channels_last(x):
                form: Kwargs = {"memory_format": constant(torch.channels_last)}
                return run(tx, "call_method", "contiguous", [made], form)
        return made


def _is_channels_last(x: torch.Tensor) -> bool:
    form = torch.channels_last
    return x.is_contiguous(memory_format=form) and not x.is_contiguous()


_of_images(torch.channel_shuffle)
_of_images(nn_functions.max_unpool2d)
