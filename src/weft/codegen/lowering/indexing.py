"""Gathering by computed indices, replaced slices, concatenation, padding, nearest upsampling.

Place in the pipeline: part of `lowering/`. An index read from a tensor becomes an `Indirect` symbol
in the load's index expression, with eager's wrap of negative values and its IndexError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, final

import torch

from weft.codegen.ir.dtypes import compute_type, from_torch
from weft.codegen.ir.loop_ir import Node
from weft.codegen.lowering.registry import LoweringContext, NotLowered, cost_of, lowering
from weft.codegen.lowering.views import normalize_dim, reshaped
from weft.codegen.values import Emitter, Lazy, Value
from weft.shapes.algebra.expr import IntExpr, floor_div
from weft.shapes.algebra.views import Index, Shape

aten = torch.ops.aten


def _cost(*values: Value) -> tuple[int, int]:
    cost, reads = cost_of(*values)
    return cost + len(values), reads


def _prepare_source(cx: LoweringContext, x: Value) -> None:
    """Realise what is gathered from, unless computing the gathered elements is cheaper."""
    impl = x.impl
    if not isinstance(impl, Lazy) or (impl.cost <= 4 and impl.reads <= 2):
        return
    if not _is_small_part(math.prod(cx.shape), math.prod(x.shape)):
        x.realize()


def _refuse_lone_gather(cx: LoweringContext, dim: int, *operands: Value) -> None:
    """Leave a gather within rows to ATen on CPUs, unless it is fused with something: an element
    costs less in ATen's loop than in a vector."""
    if dim == len(cx.shape) - 1 and cx.is_lone(*operands):
        raise NotLowered("a call of ATen's gather")


def _is_small_part(picked: IntExpr, all_elements: IntExpr) -> bool:
    """Whether at most a quarter is picked; a factor of unknown size is assumed to be large."""
    if isinstance(picked, int) and isinstance(all_elements, int):
        return 4 * picked <= all_elements
    ratio = floor_div(all_elements, picked)
    exact = ratio * picked - all_elements
    return exact == 0 and not (isinstance(ratio, int) and ratio < 4)


@lowering(aten.embedding.default)
def embedding(
    cx: LoweringContext, weight: Value, indices: Value, *_: object, **__: object
) -> Value:
    rank = len(indices.shape)
    _prepare_source(cx, weight)

    def formula(em: Emitter, index: Index) -> Node:
        row = em.indirect(indices.at(em, index[:rank]), weight.shape[0], wrap=False, check=True)
        return weight.at(em, [row, *index[rank:]])

    return cx.lazy(cx.shape, cx.dtype, formula, *_cost(weight, indices), cx.layouts[0])


@lowering(aten.index_select.default)
def index_select(cx: LoweringContext, x: Value, dim: int, indices: Value) -> Value:
    if not x.shape:
        raise NotLowered("index_select of a scalar")
    dim = normalize_dim(dim, len(x.shape))
    _refuse_lone_gather(cx, dim, x, indices)
    _prepare_source(cx, x)

    def formula(em: Emitter, index: Index) -> Node:
        at = [index[dim]] if indices.shape else []
        chosen = em.indirect(indices.at(em, at), x.shape[dim], wrap=False, check=True)
        return x.at(em, [chosen if d == dim else i for d, i in enumerate(index)])

    return cx.lazy(cx.shape, cx.dtype, formula, *_cost(x, indices), cx.layouts[0])


@lowering(aten.gather.default)
def gather(cx: LoweringContext, x: Value, dim: int, indices: Value, **_: object) -> Value:
    if not x.shape or not indices.shape:
        raise NotLowered("gather of scalars")
    dim = normalize_dim(dim, len(x.shape))
    _refuse_lone_gather(cx, dim, x, indices)
    _prepare_source(cx, x)

    def formula(em: Emitter, index: Index) -> Node:
        chosen = em.indirect(indices.at(em, index), x.shape[dim], wrap=False, check=True)
        return x.at(em, [chosen if d == dim else i for d, i in enumerate(index)])

    return cx.lazy(cx.shape, cx.dtype, formula, *_cost(x, indices), cx.layouts[0])


@lowering(aten.scatter.value, aten.scatter.src)
def scatter_one(cx: LoweringContext, x: Value, dim: int, indices: Value, source: Any) -> Value:
    """A scatter of one element in each line along `dim`: a comparison of positions."""
    dim = normalize_dim(dim, len(x.shape))
    line = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    if not x.shape or indices.shape != line:
        raise NotLowered("scatter of several elements in a line")
    if dim < len(x.shape) - 1 and cx.is_lone(x):
        raise NotLowered("few elements to write, many to compare")
    scalar = compute_type(from_torch(cx.dtype))

    def formula(em: Emitter, index: Index) -> Node:
        at = [0 if d == dim else i for d, i in enumerate(index)]
        chosen = em.indirect(indices.at(em, at), x.shape[dim], wrap=False, check=True)
        here = em.op("eq", em.index(index[dim]), em.index(chosen))
        new = source.at(em, at) if isinstance(source, Value) else em.number(source, scalar)
        return em.op("where", here, em.cast(new, scalar), x.at(em, index))

    values = [x, indices, *([source] if isinstance(source, Value) else [])]
    return cx.lazy(cx.shape, cx.dtype, formula, *_cost(*values), cx.layouts[0])


@lowering(aten.nll_loss_backward.default)
def nll_loss_backward(
    cx: LoweringContext, grad: Value, x: Value, target: Value, weight: Value | None,
    reduction: int, ignore: int, total_weight: Value,
) -> Value:
    """-weight[target] (over the total, for a mean) at the target's position, else 0."""
    scalar = compute_type(from_torch(cx.dtype))
    mean = reduction == 1

    def formula(em: Emitter, index: Index) -> Node:
        row = index[:-1]
        wanted = em.cast(target.at(em, row), "i64")
        slope = em.cast(grad.at(em, row if grad.shape else []), scalar)
        if mean:
            slope = em.op("div", slope, em.cast(total_weight.at(em, []), scalar))
        if weight is not None:
            slope = em.op("mul", slope, em.cast(weight.at(em, [index[-1]]), scalar))
        here = em.op("eq", em.index(index[-1]), wanted)
        kept = em.op("and_", here, em.op("ne", wanted, em.const(ignore, "i64")))
        return em.op("where", kept, em.op("neg", slope), em.const(0, scalar))

    return cx.lazy(cx.shape, cx.dtype, formula, 5, 2, cx.layouts[0])


@lowering(aten.index.Tensor, aten._unsafe_index.Tensor)
def index_tensor(cx: LoweringContext, x: Value, indices: list[Value | None]) -> Value:
    positions = Positions.of(indices, x.shape, check=cx.target is aten.index.Tensor)
    _prepare_source(cx, x)
    tensors = [v for v in indices if v is not None]
    return cx.lazy(
        cx.shape, cx.dtype, lambda em, index: x.at(em, positions.at(em, index)),
        *_cost(x, *tensors), cx.layouts[0],
    )


@final
@dataclass(frozen=True, slots=True)
class Positions:
    """Where the elements of `x[indices]` lie in an `x` of this shape.

    `point` is the joint shape of the tensors among the indices, whose dimensions are those from
    `start` on of the result.
    """

    indices: list[Value | None]
    shape: Shape
    point: Shape
    start: int
    check: bool

    @staticmethod
    def of(indices: list[Value | None], shape: Shape, *, check: bool) -> Positions:
        """Raises NotLowered for masks."""
        indexed = [d for d, v in enumerate(indices) if v is not None]
        tensors = [v for v in indices if v is not None]
        if not tensors or any(v.dtype in (torch.bool, torch.uint8) for v in tensors):
            raise NotLowered("mask index")
        together = indexed == list(range(indexed[0], indexed[0] + len(indexed)))
        point = _broadcast([v.shape for v in tensors])
        return Positions(indices, shape, point, indexed[0] if together else 0, check)

    @property
    def result_shape(self) -> Shape:
        """The shape of `x[indices]`."""
        rest = [n for n, v in zip_longest(self.shape, self.indices) if v is None]
        return (*rest[: self.start], *self.point, *rest[self.start :])

    def at(self, em: Emitter, index: Index) -> list[IntExpr]:
        """The index in `x` for one in the result."""
        end = self.start + len(self.point)
        rest = iter([*index[: self.start], *index[end:]])
        return [
            next(rest) if v is None else _indirect(em, v, index[self.start : end], n, self.check)
            for n, v in zip_longest(self.shape, self.indices)
        ]


def _broadcast(shapes: list[Shape]) -> Shape:
    """The joint shape, whose sizes are those that are not 1."""
    rank = max(map(len, shapes))
    padded = [(*(1,) * (rank - len(shape)), *shape) for shape in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))


def _indirect(em: Emitter, tensor: Value, point: Index, size: IntExpr, check: bool) -> IntExpr:
    """The symbol of a (broadcast) index tensor's element at `point`."""
    skip = len(point) - len(tensor.shape)
    own = [0 if n == 1 else i for n, i in zip(tensor.shape, point[skip:], strict=True)]
    return em.indirect(tensor.at(em, own), size, wrap=True, check=check)


@lowering(aten.cat.default)
def cat(cx: LoweringContext, tensors: list[Value], dim: int = 0) -> Value:
    rank = len(cx.shape)
    pieces = [v for v in tensors if not (len(v.shape) == 1 and v.shape[0] == 0 and rank != 1)]
    dim = normalize_dim(dim, rank)
    pieces = [v for v in pieces if v.shape[dim] != 0]
    if not pieces or len(pieces) > 4:
        raise NotLowered("long concatenation")
    return concatenate(cx, pieces, dim)


def concatenate(cx: LoweringContext, pieces: list[Value], dim: int) -> Value:
    """Choose the piece by position; each piece's loads are masked to its part."""
    ends: list[IntExpr] = []
    for piece in pieces:
        ends.append((ends[-1] if ends else 0) + piece.shape[dim])

    scalar = compute_type(from_torch(cx.dtype))

    def part(em: Emitter, index: Index, k: int) -> Node:
        start = ends[k - 1] if k else 0
        at = [i - start if d == dim else i for d, i in enumerate(index)]
        return em.cast(pieces[k].at(em, at), scalar)

    def from_piece(em: Emitter, index: Index, k: int) -> Node:
        if k == len(pieces) - 1:
            return part(em, index, k)
        before = em.op("lt", em.index(index[dim]), em.index(ends[k]))
        return em.choose(
            before, lambda: part(em, index, k), lambda: from_piece(em, index, k + 1))

    def formula(em: Emitter, index: Index) -> Node:
        return from_piece(em, index, 0)

    cost, reads = _cost(*pieces)
    return cx.lazy(cx.shape, cx.dtype, formula, cost + 2 * len(pieces), reads, cx.layouts[0])


@lowering(aten.stack.default)
def stack(cx: LoweringContext, tensors: list[Value], dim: int = 0) -> Value:
    if len(tensors) > 4:
        raise NotLowered("long concatenation")
    dim = normalize_dim(dim, len(cx.shape))
    pieces = [reshaped(v, (*v.shape[:dim], 1, *v.shape[dim:])) for v in tensors]
    return concatenate(cx, pieces, dim)


@lowering(aten.constant_pad_nd.default)
def constant_pad(cx: LoweringContext, x: Value, pad: list[Any], value: object = 0) -> Value:
    before: list[IntExpr] = [0] * len(x.shape)
    for k in range(len(pad) // 2):
        before[len(x.shape) - 1 - k] = pad[2 * k]
    padded = [
        d for d, (n, m) in enumerate(zip(x.shape, cx.shape, strict=True))
        if n != m or before[d] != 0
    ]
    if not isinstance(value, (bool, int, float)):
        raise NotLowered("padding value")

    def formula(em: Emitter, index: Index) -> Node:
        at = [i - before[d] for d, i in enumerate(index)]
        return x.at_or(em, at, em.within((at[d], x.shape[d]) for d in padded), value)

    cost, reads = _cost(x)
    return cx.lazy(cx.shape, cx.dtype, formula, cost + 2 * len(padded), reads, cx.layouts[0])


@lowering(aten.slice_scatter.default)
def slice_scatter(
    cx: LoweringContext, x: Value, source: Value, dim: int = 0, start: Any = None,
    end: object = None, step: int = 1,
) -> Value:
    """The tensor with the elements of a slice replaced by another tensor's."""
    dim = normalize_dim(dim, len(x.shape))
    first, count = cx.clamp_start(start, x.shape[dim]), source.shape[dim]

    def at(index: Index) -> list[IntExpr]:
        return [floor_div(i - first, step) if d == dim else i for d, i in enumerate(index)]

    def inside(em: Emitter, index: Index) -> Node | None:
        past = index[dim] - first
        taken = em.within([(past, count * step)])
        if step == 1:
            return taken
        hit = em.op("eq", em.index(past % step), em.const(0, "i64"))
        return hit if taken is None else em.op("and_", taken, hit)

    return _replace_where(cx, x, source, inside, at)


@lowering(aten.select_scatter.default)
def select_scatter(cx: LoweringContext, x: Value, source: Value, dim: int, position: Any) -> Value:
    """The tensor with the elements at one position of a dimension replaced by another tensor's."""
    dim = normalize_dim(dim, len(x.shape))
    place = cx.wrap_index(position, x.shape[dim])

    def inside(em: Emitter, index: Index) -> Node | None:
        return em.within([(index[dim] - place, 1)])

    return _replace_where(cx, x, source, inside, lambda index: [*index[:dim], *index[dim + 1 :]])


def _replace_where(
    cx: LoweringContext, x: Value, source: Value,
    inside: Callable[[Emitter, Index], Node | None], at: Callable[[Index], Sequence[IntExpr]],
) -> Value:
    """`source`, read at `at`, where the test is true; `x` elsewhere."""
    scalar = compute_type(from_torch(cx.dtype))

    def formula(em: Emitter, index: Index) -> Node:
        chosen = inside(em, index)
        if chosen is None:
            return em.cast(source.at(em, at(index)), scalar)
        return em.choose(
            chosen, lambda: em.cast(source.at(em, at(index)), scalar), lambda: x.at(em, index))

    cost, reads = _cost(x, source)
    return cx.lazy(cx.shape, cx.dtype, formula, cost + 2, reads, cx.layouts[0])


@lowering(
    aten.upsample_nearest1d.default, aten.upsample_nearest2d.default,
    aten.upsample_nearest3d.default,
)
def upsample_nearest(cx: LoweringContext, x: Value, size: object, *scales: Any) -> Value:
    spatial = x.shape[2:]
    factors = whole_factors(spatial, cx.shape[2:], scales)
    ratios = None if factors else _ratios(cx, spatial, scales)

    def formula(em: Emitter, index: Index) -> Node:
        if factors:
            at = [i // k for i, k in zip(index[2:], factors, strict=True)]
        else:
            assert ratios is not None
            at = [_scaled(em, *each) for each in zip(index[2:], ratios, spatial, strict=True)]
        return x.at(em, [*index[:2], *at])

    return cx.lazy(cx.shape, cx.dtype, formula, *_cost(x), cx.layouts[0])


def whole_factors(small: Shape, large: Shape, scales: Sequence[float | None]) -> list[int]:
    """The integers by which an image is enlarged; [] if a size or scale says something else."""
    factors: list[int] = []
    for n, m, scale in zip_longest(small, large, scales):
        factor = floor_div(m, n)
        if not (isinstance(factor, int) and factor and factor * n == m and scale in (None, factor)):
            return []
        factors.append(factor)
    return factors


def _ratios(cx: LoweringContext, source: Shape, scales: Sequence[float | None]) -> list[float]:
    """The float32 factors from positions in the result to positions in the image, as in ATen: from
    the scales, or from the sizes where a dimension keeps its size (on CPUs also where it
    doubles)."""
    ratios = []
    for n, m, scale in zip_longest(source, cx.shape[2:], scales):
        if not (isinstance(n, int) and isinstance(m, int) and m):
            raise NotLowered("upsampling of unknown sizes by a fraction")
        if len(source) == 2 and (m == n or (m == 2 * n and cx.device.type == "cpu")):
            ratios.append(n / m)
            continue
        ratio = torch.tensor(1 / scale) if scale else torch.tensor(float(n)) / m
        ratios.append(ratio.item())
    return ratios


def _scaled(em: Emitter, position: IntExpr, ratio: float, size: IntExpr) -> IntExpr:
    """The element of a row that is nearest to a result."""
    product = em.op("mul", em.cast(em.index(position), "f32"), em.const(ratio, "f32"))
    at = em.op("minimum", em.cast(product, "i64"), em.index(size - 1))
    return em.indirect(at, size, wrap=False, check=False)


@lowering(aten.roll.default)
def roll(cx: LoweringContext, x: Value, shifts: object, dims: Any = ()) -> Value:
    shifts = [shifts] if not isinstance(shifts, (list, tuple)) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims or any(not isinstance(s, int) for s in shifts):
        raise NotLowered("roll of the flattened tensor")
    moves = {normalize_dim(d, len(x.shape)): s for d, s in zip(dims, shifts, strict=True)}
    if len(moves) != len(dims) or not all(isinstance(x.shape[d], int) for d in moves):
        raise NotLowered("roll along one dimension twice, or of unknown size")
    offsets = {d: -s % x.shape[d] for d, s in moves.items()}
    last = len(x.shape) - 1
    turn = x.shape[last] - offsets.pop(last, 0)  # where the last dimension's first element lies

    def formula(em: Emitter, index: Index) -> Node:
        at = [(i + offsets[d]) % x.shape[d] if d in offsets else i for d, i in enumerate(index)]
        if turn == x.shape[last]:
            return x.at(em, at)
        return em.choose(
            em.op("lt", em.index(index[last]), em.index(turn)),
            lambda: x.at(em, [*at[:last], at[last] + x.shape[last] - turn]),
            lambda: x.at(em, [*at[:last], at[last] - turn]),
        )

    return cx.lazy(cx.shape, cx.dtype, formula, *_cost(x), cx.layouts[0])
