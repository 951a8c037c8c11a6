"""Convolutions work on channels-last memory, and 1 x 1 convolutions become matrix products.

Place in the pipeline: on the joint graph before it is split, and on graphs without a backward on
GPUs (on CPUs `codegen/lowering/convolution.py` does it). `runtime/image_speed.py` knows for which
convolutions it is faster::

    y = convolution(x, w)             x' = copy of x as NHWC;  y = convolution(x', w)
    z = relu(y)                       z = relu(y)                      # NHWC like its operand
    v = view(z, [n, -1])              v = view(copy of z as NCHW, [n, -1])

The metadata of what follows a convolution is computed again. An operator that is not known to
accept any layout gets its operands in the layout of the traced graph, and so does the output.
Values do not change.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import Any, Final, final

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from weft._torch import FakeTensor, OpOverload
from weft.aot.evaluate import Evaluator
from weft.aot.graph import AtenGraph
from weft.aot.operators import Kind, facts
from weft.aot.views import restride
from weft.runtime.image_speed import (
    MIN_PRODUCTS,
    is_mostly_weight,
    nhwc_is_faster,
    product_is_faster,
)
from weft.shapes.algebra.layout import channels_last
from weft.shapes.graph_facts import AtenFacts, aten_facts, graph_facts, marked
from weft.shapes.graph_nodes import add_node, results_of
from weft.shapes.tensor_layouts import is_dense

aten = torch.ops.aten

ANY_LAYOUT: Final = frozenset(
    {
        "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d",
        "avg_pool2d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward",
        "native_dropout", "sum", "mean", "var_mean", "var", "amax", "amin", "cat",
        "constant_pad_nd", "upsample_nearest2d", "upsample_bilinear2d", "_to_copy",
        "native_dropout_backward", "_native_batch_norm_legit_no_training", "native_group_norm",
        "reflection_pad2d", "replication_pad2d", "upsample_bicubic2d", "adaptive_max_pool2d",
    }
)
"""Operators beside the pointwise ones whose values do not depend on their operands' layout."""

VIEWS: Final = frozenset(
    {"view", "permute", "transpose", "unsqueeze", "squeeze", "expand", "slice", "select", "alias"}
)
"""Views that mean the same elements in any layout, or fail."""


def use_channels_last(gm: AtenGraph) -> bool:
    """Lay out the graph's images as NHWC, in place; returns whether that was done.

    Without gradients, only if the convolutions are on a GPU. Parts of a graph with branches would
    each save their own copy of an image.
    """
    facts = graph_facts(gm)
    if facts.is_trained and facts.is_part:
        return False
    convolutions = [n for n in gm.graph.nodes if n.target is aten.convolution.default]
    trained = any(n.target is aten.convolution_backward.default for n in gm.graph.nodes)
    if not (trained or facts.is_trained):
        convolutions = [n for n in convolutions if n.meta["val"].device.type == "cuda"]
    suitable = [n for n in convolutions if _is_suitable(n, trained)]
    if not suitable or sum(map(_products, suitable)) < MIN_PRODUCTS:
        return False
    results = results_of(gm.graph)
    copied = sum(_image_bytes(results[k]) for k in facts.inner)
    if copied * _MOST_COPIED > sum(_image_bytes(n) for n in convolutions):
        return False
    _Layout(gm.graph, trained).run()
    return True


def _is_suitable(node: Node, trained: bool) -> bool:
    """Whether a node is a plain 2-D convolution, or the gradient of one, that is faster on NHWC."""
    backward = node.target is aten.convolution_backward.default
    operands, rest = (node.args[:3], node.args[7:]) if backward else (node.args[:2], node.args[6:])
    images = [a.meta["val"] for a in operands if isinstance(a, Node)]
    if not backward:
        images.append(node.meta["val"])
    transposed, groups = rest[0], rest[2]
    if transposed or not all(map(_is_plain_image, images)):
        return False
    weight: Any = operands[-1]
    size = weight.meta["val"].size()
    return nhwc_is_faster(images[0].device, images[0].dtype, size, groups, trained)  # type: ignore[arg-type]


def _meet_nhwc(graph: Graph) -> set[Node]:
    """The images that are combined, directly or indirectly, with one of a convolution on NHWC by
    operators that accept any layout."""
    beside: dict[Node, set[Node]] = defaultdict(set)
    waiting: list[Node] = []
    for node in graph.nodes:
        if node.target in (aten.convolution.default, aten.convolution_backward.default):
            if _is_suitable(node, trained=True):
                waiting += [node, *node.all_input_nodes]
        elif _takes_any_layout(node):
            images = [n for n in (node, *node.all_input_nodes) if _makes_image(n)]
            for image in images:
                beside[image].update(images)
    combined: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in combined and _makes_image(node):
            combined.add(node)
            waiting.extend(beside[node])
    return combined


def _makes_image(node: Node) -> bool:
    """Whether an operator has an image among its results."""
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    return node.op == "call_function" and any(map(_is_plain_image, values))


def _takes_any_layout(node: Node) -> bool:
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    name = node.target._schema.name.split("::")[1]
    if torch.Tag.pointwise in node.target.tags or name in ANY_LAYOUT:
        return node.kwargs.get("memory_format") is None
    return facts(node.target).kind is Kind.VIEW and name in VIEWS


def _is_plain_image(value: object) -> bool:
    return (
        isinstance(value, FakeTensor)
        and value.dim() == 4
        and all(type(n) is int for n in value.size())
    )


def _image_bytes(node: Node) -> int:
    value = node.meta["val"]
    return value.nbytes if _is_plain_image(value) else 0


def _products(node: Node) -> int:
    """The number of multiplications of a convolution."""
    weight: Any = node.args[1]
    count: int = node.meta["val"].numel() * prod(weight.meta["val"].shape[1:])
    return count


_MOST_COPIED: Final = 4
"""Inner results have at most that part of the bytes of the convolutions' results: both layouts of
them are in memory until the backward."""

@final
class _Layout:
    """One walk over the graph, in which nodes get new operands and metadata as layouts change."""

    def __init__(self, graph: Graph, trained: bool) -> None:
        self.graph, self.trained = graph, trained
        self.evaluator = Evaluator.current()
        self.traced: dict[Node, Any] = {}  # changed nodes: the metadata they were traced with
        self.restored: dict[Node, Node] = {}
        self.images: dict[Node, Node] = {}
        self.meet_nhwc = _meet_nhwc(graph) if trained else set()

    def run(self) -> None:
        """Walk over the graph."""
        for node in list(self.graph.nodes):
            self.graph.inserting_before(node)
            if node.op == "output":
                node.args = map_arg(node.args, self._restored)
            elif node.op == "call_function":
                self._visit(node)

    def _visit(self, node: Node) -> None:
        hands_on = node in self.meet_nhwc and self._stays_nchw(node)
        if node.target is aten.convolution.default and _is_suitable(node, self.trained):
            self._convolution(node)
        elif node.target is aten.convolution_backward.default and _is_suitable(node, self.trained):
            self._convolution_backward(node)
        elif not self.traced.keys().isdisjoint(node.all_input_nodes):
            self._follow(node)
        if hands_on:
            self._hand_on(node)

    # -- convolutions ----------------------------------------------------------------------------

    def _convolution(self, node: Node) -> None:
        x, weight, bias, *options = node.args
        if _is_mostly_weight(weight, x, node):
            node.args = map_arg(node.args, self._restored)
            return
        image = self._image(x)
        if _is_product(weight, options):
            self._replace(node, self._product(image, weight, bias))
            return
        node.args = (image, self._kernel(weight), bias, *options)
        self._update(node)

    def _product(self, image: Node, weight: object, bias: object) -> Node:
        """A 1 x 1 convolution as a matrix product of its pixels."""
        batch, _, height, width = image.meta["val"].size()
        pixels, matrix = self._pixels(image), self._matrix(weight)
        columns = self._emit(aten.t.default, matrix)
        product = (
            self._emit(aten.mm.default, pixels, columns) if bias is None
            else self._emit(aten.addmm.default, bias, pixels, columns)
        )
        return self._as_image(product, (batch, height, width))

    def _convolution_backward(self, node: Node) -> None:
        gradient, x, weight, sizes, *options = node.args
        if _is_mostly_weight(weight, x, gradient):
            node.args = map_arg(node.args, self._restored)
            return
        gradient, image = self._image(gradient), self._image(x)
        if _is_product(weight, options):
            self._product_backward(node, gradient, image, weight)
            return
        node.args = (gradient, image, self._kernel(weight), sizes, *options)
        self._update(node)
        mask: Any = options[-1]
        if _is_on_gpu(weight) and mask[1]:
            self._take_kernels_gradient(node)

    def _take_kernels_gradient(self, node: Node) -> None:
        """The kernel's gradient is NHWC too; users that need another layout get a copy."""
        results = list(node.meta["val"])
        form = (results[1], list(results[1].size()), list(channels_last(results[1].size())))
        results[1] = self.evaluator.run(aten.new_empty_strided.default, form, {}).value
        node.meta["val"] = tuple(results)

    def _kernel(self, weight: object) -> Node:
        """On GPUs an NHWC copy of the kernel; the library would make one at half the speed."""
        return self._image(weight) if _is_on_gpu(weight) else self._restored(weight)

    def _product_backward(self, node: Node, gradient: Node, image: Node, weight: Any) -> None:
        """The gradients of a 1 x 1 convolution: those of a matrix product."""
        wanted: Any = node.args[-1]
        batch, _, height, width = image.meta["val"].size()
        rows, pixels, matrix = self._pixels(gradient), self._pixels(image), self._matrix(weight)
        results: list[Node | None] = [None, None, None]
        if wanted[0]:
            product = self._emit(aten.mm.default, rows, matrix)
            results[0] = self._as_image(product, (batch, height, width))
        if wanted[1]:
            product = self._emit(aten.mm.default, self._emit(aten.t.default, rows), pixels)
            results[1] = self._emit(aten.view.default, product, list(weight.meta["val"].size()))
        if wanted[2]:
            results[2] = self._emit(aten.sum.dim_IntList, rows, [0])
        for user in list(node.users):
            result = results[user.args[1]]  # type: ignore[index]
            if result is not None:
                self._replace(user, result)
        if not node.users:
            self.graph.erase_node(node)

    def _pixels(self, image: Node) -> Node:
        """An NHWC image as a matrix: one row of channels for each pixel."""
        channels = image.meta["val"].size(1)
        last = self._emit(aten.permute.default, image, [0, 2, 3, 1])
        return self._emit(aten.view.default, last, [-1, channels])

    def _matrix(self, weight: object) -> Node:
        """The weight of a 1 x 1 convolution as a matrix."""
        placed = self._restored(weight)
        size = list(placed.meta["val"].size()[:2])
        return self._emit(aten.view.default, placed, size)

    def _as_image(self, matrix: Node, size: Sequence[int]) -> Node:
        batch, height, width = size
        last = self._emit(aten.view.default, matrix, [batch, height, width, -1])
        return self._emit(aten.permute.default, last, [0, 3, 1, 2])

    def _stays_nchw(self, node: Node) -> bool:
        """Whether it is the image of a convolution, or its gradient, that is faster on NCHW."""
        call: Any = node
        wanted = aten.convolution.default
        if node.target is operator.getitem and node.args[1:] == (0,):
            call, wanted = node.args[0], aten.convolution_backward.default
        if call is None or call.target is not wanted or not _is_plain_image(node.meta["val"]):
            return False
        return not _is_suitable(call, self.trained)

    def _hand_on(self, node: Node) -> None:
        """Give the users an NHWC copy, because they combine it with such images: sums of images
        with different layouts cost ten times as much (batch norms beside grouped convolutions)."""
        users = list(node.users)
        self.graph.inserting_before(node.next)
        image = self._image(node)
        if image is not node:
            for user in users:
                user.replace_input_with(node, image)
            self.traced[image], self.restored[image] = node.meta["val"], node

    # -- what follows them -----------------------------------------------------------------------

    def _follow(self, node: Node) -> None:
        """Handle a node with operands in another layout."""
        if not (_takes_any_layout(node) and self._update(node)):
            node.args = map_arg(node.args, self._restored)
            node.kwargs = map_arg(node.kwargs, self._restored)

    def _update(self, node: Node) -> bool:
        """Compute the metadata again; returns whether the operator accepts its operands'
        layouts."""
        traced = node.meta["val"]
        try:
            value = self._metadata(node)
        except (RuntimeError, ValueError):
            return False
        if isinstance(value, FakeTensor):
            if not (isinstance(traced, FakeTensor) and is_dense(traced)):
                return bool(value.stride() == traced.stride())
            if value.stride() != traced.stride():
                self.traced[node] = traced
        elif isinstance(value, (tuple, list)):
            self.traced[node] = traced  # the metadata of its items is updated
        node.meta["val"] = value
        return True

    def _metadata(self, node: Node) -> object:
        if node.target is operator.getitem:
            source: Any = node.args[0]
            return source.meta["val"][node.args[1]]
        assert isinstance(node.target, OpOverload)
        return self.evaluator.run(node.target, node.args, node.kwargs).value

    def _restored(self, node: Any) -> Any:
        """A value in the layout of the traced graph."""
        traced = self.traced.get(node)
        if not isinstance(traced, FakeTensor):
            return node
        if node not in self.restored:
            image = restride(self._emit, node, traced.stride())
            if image.meta["val"].stride() != traced.stride():  # in dimensions of size 1
                form = list(traced.size()), list(traced.stride())
                image = self._emit(aten.as_strided.default, image, *form)
            self.restored[node] = image
        return self.restored[node]

    def _image(self, node: Any) -> Node:
        """A value in channels-last memory."""
        if node not in self.images:
            self.images[node] = restride(self._emit, node, channels_last(node.meta["val"].size()))
        return self.images[node]

    def _replace(self, node: Node, replacement: Node) -> None:
        """Let all users of `node` read `replacement`, which may have another layout."""
        traced = node.meta["val"]
        node.replace_all_uses_with(replacement)
        self.graph.erase_node(node)
        if replacement.meta["val"].stride() != traced.stride():
            self.traced[replacement] = traced

    def _emit(self, op: OpOverload, *args: object, **kwargs: object) -> Node:
        value = self.evaluator.run(op, args, kwargs).value
        node = next(a for a in args if isinstance(a, Node))
        alone = self.trained and op is aten.clone.default
        facts = aten_facts(node)
        of_image = AtenFacts(facts.phase, runs_again=facts.runs_again, alone=alone)
        meta = {"stack": node.meta.get("stack", ()), "val": value, **marked(of_image)}
        return add_node(self.graph, op, args, kwargs, meta)


def _is_on_gpu(node: Any) -> bool:
    return bool(node.meta["val"].device.type != "cpu")


def _is_product(weight: Any, options: Sequence[Any]) -> bool:
    """Whether a convolution with this kernel is a matrix product of all pixels, and faster as
    one."""
    stride, padding, _, _, _, groups = options[:6]
    value = weight.meta["val"]
    whole = all(s == 1 for s in stride) and all(p == 0 for p in padding)
    plain = whole and groups == 1 and tuple(value.size()[2:]) == (1, 1)
    return plain and product_is_faster(value.device, value.dtype)


def _is_mostly_weight(weight: Any, *images: Any) -> bool:
    value = weight.meta["val"]
    elements = sum(i.meta["val"].numel() for i in images)
    return value.device.type == "cpu" and is_mostly_weight(value.size(), elements)
