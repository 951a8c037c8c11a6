"""Algebraic simplification: removes operators that do nothing or that undo each other.

    before:  a = aten.t(x);  b = aten.t(a);  c = aten.mul(b, 1);  d = aten.relu(c)
    after:   d = aten.relu(x)

A rule gets a node and returns the node that may replace it, or None (perhaps with simpler
operands). It must preserve dtype, sizes and strides: the driver checks them. A node that a graph
output needs as a *copy* (clone) is kept; so is one whose replacement would be a graph input (aot's
outputs must not alias).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from weft._torch import FakeTensor, OpOverload
from weft.passes.eliminate_dead_code import eliminate_dead_code
from weft.registrar import registrar
from weft.shapes.algebra.expr import IntExpr
from weft.shapes.algebra.views import Permute, viewed_strides
from weft.shapes.graph_facts import aten_facts
from weft.shapes.symnode import certainly_equal, expr_of

aten = torch.ops.aten

Rule = Callable[[Node], Node | None]
RULES: Final[dict[OpOverload, Rule]] = {}

_rule = registrar(RULES)


def simplify(gm: GraphModule) -> bool:
    """Apply the rules once, in graph order (arguments are simplified before their users)."""
    changed = False
    for node in gm.graph.nodes:
        rule = RULES.get(node.target) if node.op == "call_function" else None
        operands = node.args
        simpler = rule(node) if rule is not None else None
        changed |= node.args is not operands
        if simpler is not None and _same(simpler, node) and not _is_output(node):
            node.replace_all_uses_with(simpler)
            changed = True
    if changed:
        eliminate_dead_code(gm)
    return changed


def _same(a: Node, b: Node) -> bool:
    """Whether two nodes' tensors have the same metadata."""
    x, y = a.meta["val"], b.meta["val"]
    if x is y:
        return True
    if not isinstance(x, FakeTensor) or not isinstance(y, FakeTensor):
        return False
    return (
        x.dtype == y.dtype and x.device == y.device
        and certainly_equal(x.size(), y.size()) and certainly_equal(x.stride(), y.stride())
    )


def _is_output(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _arg(node: Node, i: int) -> Any:
    return node.args[i] if len(node.args) > i else None


def _source(node: Node) -> Node | None:
    first = _arg(node, 0)
    return first if isinstance(first, Node) else None


@_rule(aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
def _times_one(node: Node) -> Node | None:
    """x * 1, x / 1; not of complex numbers, where 0 * inf of the other parts is NaN."""
    unchanged = _is_constant(_arg(node, 1), 1) and not node.meta["val"].dtype.is_complex
    return _source(node) if unchanged else None


@_rule(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _plus_zero(node: Node) -> Node | None:
    """x + 0 for integers, x - 0, x + -0.0; not x + 0.0 or x - -0.0, which turn -0.0 into 0.0."""
    zero, dtype = _arg(node, 1), node.meta["val"].dtype
    if not _is_constant(zero, 0) or dtype.is_complex:
        return None
    adds, negative = "add" in str(node.target), math.copysign(1.0, zero) < 0
    return _source(node) if adds is negative or not dtype.is_floating_point else None


@_rule(aten.pow.Tensor_Scalar)
def _power_one(node: Node) -> Node | None:
    """x ** 1."""
    return _source(node) if _is_constant(_arg(node, 1), 1) else None


def _is_constant(value: object, wanted: int) -> bool:
    return type(value) in (int, float) and value == wanted


@_rule(
    aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default,
    aten.expand.default, aten._to_copy.default, aten.clone.default, aten.slice.Tensor,
    aten.contiguous.default, aten.squeeze.dims, aten.squeeze.dim, aten.squeeze.default,
)
def _unchanged(node: Node) -> Node | None:
    """In a functional graph, copies and views of the whole tensor are not needed."""
    return None if aten_facts(node).copies_input else _source(node)


@_rule(aten.cat.default)
def _concatenation(node: Node) -> Node | None:
    """Pieces without elements are left out (`torch.block_diag` makes some), as long as the others
    have the result's type."""
    pieces: Any = node.args[0]
    filled = [p for p in pieces if not any(type(n) is int and n == 0 for n in p.meta["val"].shape)]
    if all(p.meta["val"].dtype != node.meta["val"].dtype for p in filled):
        return None
    if len(filled) < len(pieces):
        node.args = (filled, *node.args[1:])
    return filled[0] if len(filled) == 1 else None


@_rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(node: Node) -> Node | None:
    """A view whose result is the operand itself; a view of a view becomes one view."""
    source = _source(node)
    if source is None or _same(source, node):
        return source
    if source.target in (aten.view.default, aten._unsafe_view.default):
        inner = _source(source)
        assert inner is not None
        if _same(inner, node):
            return inner
        if _has_view(inner.meta["val"], node.meta["val"]):
            node.replace_input_with(source, inner)
    return None


def _has_view(tensor: FakeTensor, view: FakeTensor) -> bool:
    """Whether `tensor.view(view.size())` has the strides of ``view``, those of size 1 too."""
    before, after = _numbers(tensor.size()), _numbers(view.size())
    if 0 in before:
        return False
    return viewed_strides(before, _numbers(tensor.stride()), after) == _numbers(view.stride())


def _numbers(extents: Sequence[Any]) -> tuple[IntExpr, ...]:
    return tuple(expr_of(n) for n in extents)


@_rule(aten.t.default)
def _double_t(node: Node) -> Node | None:
    source = _source(node)
    return _source(source) if source is not None and source.target is node.target else None


@_rule(aten.transpose.int)
def _double_transpose(node: Node) -> Node | None:
    source = _source(node)
    if source is None or source.target is not node.target:
        return None
    rank = node.meta["val"].dim()
    outer = {d % rank for d in node.args[1:] if isinstance(d, int)}
    inner = {d % rank for d in source.args[1:] if isinstance(d, int)}
    return _source(source) if outer == inner else None


@_rule(aten.permute.default)
def _double_permute(node: Node) -> Node | None:
    """Permutations that cancel, and the identity permutation."""
    source, outer = _source(node), _permutation(node)
    assert source is not None
    if outer.is_identity:
        return source
    if source.target is not node.target:
        return None
    return _source(source) if _permutation(source).then(outer).is_identity else None


def _permutation(node: Node) -> Permute:
    order = node.args[1]
    assert isinstance(order, (list, tuple))
    return Permute(tuple(d % len(order) for d in order if isinstance(d, int)))


_VECTORS: Final[dict[Any, tuple[int, int, Any]]] = {
    aten._linalg_svd.default: (1, 2, False),
    aten._linalg_eigh.default: (0, 2, "L"),
}
"""Decompositions: which result is their values, which argument asks for vectors, and the default of
the one before it."""


@_rule(*_VECTORS)
def _only_values(node: Node) -> Node | None:
    """Singular values and eigenvalues (of norms, ranks, condition numbers) without the vectors,
    which take most of the time, if nothing reads these."""
    values, asks, before = _VECTORS[node.target]
    is_read = any(user.users and user.args[1] != values for user in node.users)
    if is_read or _arg(node, asks) is False or node.kwargs:
        return None
    matrix, option = node.args[0], _arg(node, 1)
    node.args = (matrix, before if option is None else option, False)
    return None
