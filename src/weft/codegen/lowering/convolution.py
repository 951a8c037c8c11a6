"""Convolutions: channels-last memory on CPUs, biases on GPUs.

Place in the pipeline: part of `lowering/`. ATen's float32 convolutions of row-major (NCHW) tensors
reorder them internally. On channels-last (NHWC) memory they are faster, and 1 x 1 convolutions are
plain matrix products (up to four times faster through oneDNN). Formulas work with any layout, so
only the layouts of buffers change::

    conv(x: NCHW) → relu → conv     becomes     x as NHWC → conv → relu in NHWC → conv

Outputs of the graph get eager's layout again. A graph that returns many of its activations (the
forward half of training) is left alone, because each would be copied. In graphs with gradients,
`aot/rewrites/image_layout.py` decides.

On GPUs ATen adds the bias in a kernel of its own; here it is fused with what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from weft.codegen.lowering.depthwise import depthwise, is_depthwise
from weft.codegen.lowering.extern import call_aten
from weft.codegen.lowering.registry import (
    LoweringContext,
    NotLowered,
    in_channels_last,
    lowering,
)
from weft.codegen.values import ExternCall, Strided, Value
from weft.runtime.image_speed import MIN_PRODUCTS, is_mostly_weight
from weft.runtime.onednn import onednn_convolution, onednn_linear
from weft.shapes.algebra.layout import channels_last, row_major
from weft.shapes.algebra.views import Shape
from weft.shapes.symnode import hint

aten = torch.ops.aten


def prefers_channels_last(gm: GraphModule) -> bool:
    """Whether the graph has convolutions, but none of their gradients, and fewer images to convert
    (those that come from inputs and those that it returns) than convolutions."""
    convolutions = [n for n in gm.graph.nodes if n.target is aten.convolution.default
                    and not n.args[6]]
    [output] = [n for n in gm.graph.nodes if n.op == "output"]
    values = [n.meta.get("val") for n in output.all_input_nodes]
    images = sum(isinstance(v, torch.Tensor) and v.dim() == 4 for v in values)
    if not convolutions or images > 1 + len(convolutions) // 4 or any(
        n.target is aten.convolution_backward.default for n in gm.graph.nodes
    ):
        return False
    entering = {source for n in convolutions if (source := _row_major_source(n.args[0]))}
    leaving = sum(map(_is_of_convolution, output.all_input_nodes))
    return len(entering) + leaving <= len(convolutions)


def _row_major_source(node: Any) -> Node | None:
    """The row-major input that an image is computed from without a convolution, or None."""
    while node.op == "call_function" and node.target is not aten.convolution.default:
        node = max(node.all_input_nodes, key=_elements, default=None)
        if node is None:
            return None
    if node.op != "placeholder":
        return None
    return None if node.meta["val"].is_contiguous(memory_format=torch.channels_last) else node


def _is_of_convolution(node: Node) -> bool:
    """Whether it is a convolution's image, or views or formulas of one."""
    while node.op == "call_function" and node.target is not aten.convolution.default:
        like = [n for n in node.all_input_nodes if _elements(n) == _elements(node)]
        if not like:
            return False
        node = like[0]
    return node.op == "call_function"


def _elements(node: Node) -> int:
    value = node.meta.get("val")
    return hint(value.numel()) if isinstance(value, torch.Tensor) else 0


@lowering(aten.convolution.default)
def convolution(
    cx: LoweringContext, x: Value, weight: Value, bias: Value | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> Value:
    """ATen's convolution on channels-last memory, or a matrix product, if that is faster."""
    options = (stride, padding, dilation, transposed, output_padding, groups)
    if x.device.type == "cuda" and bias is not None:
        return _with_bias_added(cx, x, weight, bias, options)
    # (For images one pixel wide or high, ATen's kernels choose the layout by rules of their own.)
    if is_depthwise(x, weight, transposed, groups) and 1 not in cx.shape[2:]:
        if cx.graph.channels_last and len(cx.shape) == 4:
            cx.layouts[0] = channels_last(cx.shape)
        return depthwise(cx, x, weight, bias, stride, padding, dilation)
    if transposed or not _is_suitable(cx, x, weight, bias):
        raise NotLowered
    if may_be_packed(weight):
        cx.layouts[0] = channels_last(cx.shape)
        return _library_call(cx, channels_last_copy(cx, x), weight, bias, options)
    if _is_product(weight, stride, padding, groups) and onednn_linear() is not None:
        return _as_product(cx, channels_last_copy(cx, x), weight, bias)
    images = _count(x.shape) + _count(cx.shape)
    if is_mostly_weight(weight.shape, images) and not in_channels_last(weight):
        cx.layouts[0] = row_major(cx.shape)
        return _library_call(cx, _row_major_copy(cx, x), weight, bias, options)
    cx.layouts[0] = channels_last(cx.shape)
    return _library_call(cx, channels_last_copy(cx, x), weight, bias, options)


def may_be_packed(weight: Value) -> bool:
    """Whether it is a parameter of which oneDNN may get a form that was packed once
    (`calls/convolution_calls.py`)."""
    impl = weight.impl
    if not isinstance(impl, Strided) or not impl.buffer.is_state or onednn_convolution() is None:
        return False
    buffer = impl.buffer
    return (impl.shape, impl.strides, impl.offset) == (buffer.shape, buffer.strides, 0)


def _library_call(
    cx: LoweringContext, x: Value, weight: Value, bias: Value | None, options: tuple[object, ...]
) -> Value:
    [result] = call_aten(cx, (x, weight, bias, *options), {}, [0], False)
    cx.graph.extern_ops.append(str(cx.target))
    assert result is not None
    return result


def _with_bias_added(
    cx: LoweringContext, x: Value, weight: Value, bias: Value, options: tuple[object, ...]
) -> Value:
    """The convolution, then its bias as a pointwise addition."""
    result = _library_call(cx, x, weight, None, options)
    spatial = len(weight.shape) - 2
    column = _reshape(bias, (*bias.shape, *(1,) * spatial),
                      (*bias.realize().strides, *(0,) * spatial))
    return cx.pointwise(lambda a, b: a + b, result, column)


def _is_product(
    weight: Value, stride: Sequence[int], padding: Sequence[int], groups: int
) -> bool:
    """Whether a convolution with this kernel is a matrix product of all pixels."""
    steps = all(s == 1 for s in stride) and all(p == 0 for p in padding)
    return steps and groups == 1 and weight.shape[2:] == (1, 1)


def _as_product(cx: LoweringContext, x: Value, weight: Value, bias: Value | None) -> Value:
    """Pixels (rows) times weight: oneDNN's linear takes the weight without a copy."""
    outputs, channels = _count(weight.shape[:1]), _count(weight.shape[1:2])
    pixels = _count(cx.shape) // outputs
    matrices = [
        _reshape(x, (pixels, channels), (channels, 1)),
        _reshape(weight, (outputs, channels), weight.realize().strides[:2]),
    ]
    reads = [v.realize().buffer for v in (*matrices, bias) if v is not None]
    call = ExternCall(onednn_linear(), (*matrices, bias, "none", [], ""), {}, [], False,
                      cx.origins, reads)
    buffer = cx.graph.new_buffer(cx.dtype, (pixels, outputs), (outputs, 1), cx.device)
    buffer.definition = call
    call.outputs.append(buffer)
    cx.graph.record(call)
    cx.graph.extern_ops.append(str(cx.target))
    return Value(cx.shape, cx.dtype, Strided(buffer, cx.shape, channels_last(cx.shape), 0),
                 cx.device, cx.graph)


def _reshape(value: Value, shape: Shape, strides: Shape) -> Value:
    """The same memory with another shape."""
    placed = value.realize()
    view = Strided(placed.buffer, shape, strides, placed.offset)
    return Value(shape, value.dtype, view, value.device, value.owner)


def _is_suitable(cx: LoweringContext, x: Value, weight: Value, bias: Value | None) -> bool:
    values = [v for v in (x, weight, bias) if v is not None]
    if not torch.backends.mkldnn.enabled:
        return False
    if not cx.graph.channels_last or x.device.type != "cpu" or len(x.shape) != 4:
        return False
    if any(v.dtype != torch.float32 for v in values):
        return False
    sizes = [*cx.shape, *weight.shape]
    if not all(isinstance(n, int) for n in sizes):
        return False
    return _count(cx.shape) * _count(weight.shape[1:]) >= MIN_PRODUCTS


def _count(shape: Shape) -> int:
    """Elements of a shape without symbols."""
    total = 1
    for size in shape:
        assert isinstance(size, int)
        total *= size
    return total


def channels_last_copy(cx: LoweringContext, x: Value) -> Value:
    """`x` in channels-last memory: itself if it has that layout or is not in memory yet, else a
    copy."""
    return x if in_channels_last(x) else _copy(cx, x, channels_last(x.shape))


def _row_major_copy(cx: LoweringContext, x: Value) -> Value:
    wanted = row_major(x.shape)
    placed = isinstance(x.impl, Strided) and x.impl.strides == wanted
    return x if placed else _copy(cx, x, wanted)


def _copy(cx: LoweringContext, x: Value, wanted: Shape) -> Value:
    """`x` with these strides, without a copy if it is not in memory yet."""
    if x.buffer() is None and getattr(x.impl, "view", None) is None:
        x.layout = wanted
        return x
    return cx.lazy(x.shape, x.dtype, x.at, 0, 1, wanted)
