"""Padding at the ends of rows, so that a GPU's matrix product can read them in whole vectors.

Place in the pipeline: on graphs that become kernels. cuBLAS reads half-precision
matrices whose rows do not start at multiples of 16 bytes with slow kernels: the gradient of a
language model's scores over 50257 words takes 2.4 and 2.2 ms in its two products on an H200, and
0.4 ms in each with rows of 50264. The layout of what our kernels compute is ours to choose::

    scores = softmax_backward(…)     # (4096, 50257), strides (50264, 1)
    mm(scores, weight);  mm(scores.t(), x)

and for an input a copy (0.3 ms) pays. Results of the graph keep eager's strides.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import torch
from torch.fx import GraphModule, Node

from weft.runtime.aligned_matmul import ALIGNMENT, is_worth_pieces
from weft.shapes.algebra.layout import row_major
from weft.shapes.graph_facts import aten_facts, note

aten = torch.ops.aten

MIN_PRODUCTS: Final = 1 << 30
"""Multiplications of a matrix product below which the alignment hardly matters."""
_MATRICES: Final = {
    aten.mm.default: (0, 1), aten.addmm.default: (1, 2), aten.bmm.default: (0, 1),
    aten.baddbmm.default: (1, 2),
}
_VIEWS: Final = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.permute.default,
    aten.t.default, aten.transpose.int, aten.unsqueeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.alias.default,
})


def pad_rows(gm: GraphModule) -> bool:
    """Note the strides of the nodes whose rows are padded, if they become memory."""
    noted = False
    for node in gm.graph.nodes:
        if node.target not in _MATRICES or not _is_large(node):
            continue
        for matrix in (node.args[position] for position in _MATRICES[node.target]):
            root = _root(matrix)
            if aten_facts(root).strides is None and _may_be_padded(root, matrix):
                strides = _padded_strides(tuple(root.meta["val"].shape))
                note(root, replace(aten_facts(root), strides=strides))
                noted = True
    return noted


def _is_large(node: Node) -> bool:
    """Whether it is a half-precision product on a GPU, of known sizes, with enough work."""
    result = node.meta["val"]
    if result.device.type != "cuda" or result.dtype not in (torch.float16, torch.bfloat16):
        return False
    depth = node.all_input_nodes[-1].meta["val"].shape[-2]  # the right matrix is the last operand
    sizes = (*result.shape, depth)
    return all(type(n) is int for n in sizes) and math.prod(sizes) >= MIN_PRODUCTS


def _root(node: Node) -> Node:
    """The node that this one is a view of, or itself."""
    while node.target in _VIEWS:
        (node,) = node.all_input_nodes
    return node


def _may_be_padded(node: Node, matrix: Node) -> bool:
    """Whether the node's rows can be padded and are the rows (or columns) of `matrix`."""
    value = node.meta.get("val")
    if node.op == "get_attr" or not isinstance(value, torch.Tensor) or value.dim() < 2:
        return False
    shape = tuple(value.shape)
    if not all(type(n) is int for n in shape) or shape[-1] % ALIGNMENT == 0:
        return False
    if node.op == "placeholder" and not is_worth_pieces(shape[-1]):
        return False  # nor a copy
    steps = sorted(matrix.meta["val"].stride()[-2:])
    if steps != [1, shape[-1]]:
        return False  # the kernel of a 1 x 1 convolution, say: its last dimensions are 1
    return value.stride() == row_major(shape) and not _is_returned(node)


def _is_returned(node: Node) -> bool:
    """Whether it, or a view of it, is a result of the graph."""
    return any(u.op == "output" or (u.target in _VIEWS and _is_returned(u)) for u in node.users)


def _padded_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    row = -(-shape[-1] // ALIGNMENT) * ALIGNMENT
    return (*[n * row for n in row_major(shape[:-1])], 1)
