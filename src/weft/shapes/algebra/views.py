"""The algebra of views: for each kind its index map, and what it does to sizes and strides.

Place in the pipeline: fakes take the metadata of views from here (`fakes/view_rules.py`), lowering
the elements that a view of a formula, or of a buffer, has (`codegen/lowering/views.py`), aot and
passes inverses and compositions. Sizes are ints or expressions; nothing here asks for a guard::

    x.permute(1, 0)     Permute((1, 0))
    x[:, 2:]            Slice(1, 2, 1, size - 2)
    x.view(512, 768)    Reshape((4, 128, 768), (512, 768))

    >>> Permute((2, 0, 1)).strided(Layout((4, 5, 6), (30, 6, 1)))
    Layout(sizes=(6, 4, 5), strides=(1, 30, 6), offset=0)
    >>> Permute((2, 0, 1)).index(("i", "j", "k"))
    ['j', 'k', 'i']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, final

from weft.shapes.algebra.bounds import lower_bound
from weft.shapes.algebra.expr import IntExpr
from weft.shapes.algebra.layout import eq_known, row_major

Shape: TypeAlias = tuple[IntExpr, ...]
Index: TypeAlias = Sequence[IntExpr]


@final
class Layout(NamedTuple):
    """Where elements lie in memory; `offset` is the first one's place, in elements."""

    sizes: Shape
    strides: Shape
    offset: IntExpr = 0


class View(Protocol):
    """A map from a view to its base, in both of its forms."""

    def index(self, index: Index) -> Index:
        """The base's index of the view's element at `index`."""

    def strided(self, base: Layout) -> Layout | None:
        """The view of such a base; None if it is not affine, or not known to be."""


@final
@dataclass(frozen=True)
class Permute:
    """Dimension k of the view is dimension order[k] of the base."""

    order: tuple[int, ...]

    @staticmethod
    def swapping(rank: int, first: int, second: int) -> Permute:
        """Exchanges two dimensions.

        >>> Permute.swapping(3, 0, 2)
        Permute(order=(2, 1, 0))
        """
        order = list(range(rank))
        order[first], order[second] = order[second], order[first]
        return Permute(tuple(order))

    @property
    def is_identity(self) -> bool:
        """Whether all dimensions stay where they are."""
        return self.order == tuple(range(len(self.order)))

    def inverse(self) -> Permute:
        """The permutation that undoes this one.

        >>> Permute((2, 0, 1)).inverse()
        Permute(order=(1, 2, 0))
        """
        return Permute(tuple(self.order.index(d) for d in range(len(self.order))))

    def then(self, following: Permute) -> Permute:
        """This view, and `following` of it, as one."""
        return Permute(tuple(self.order[d] for d in following.order))

    def index(self, index: Index) -> Index:
        result: list[IntExpr] = [0] * len(self.order)
        for position, dim in enumerate(self.order):
            result[dim] = index[position]
        return result

    def strided(self, base: Layout) -> Layout | None:
        sizes, strides, offset = base
        return Layout(
            tuple(sizes[d] for d in self.order), tuple(strides[d] for d in self.order), offset)


@final
@dataclass(frozen=True)
class Slice:
    """start + step * index in one dimension (step may be negative: flip)."""

    dim: int
    start: IntExpr
    step: IntExpr
    size: IntExpr

    def index(self, index: Index) -> Index:
        moved = self.start + index[self.dim] * self.step
        return [moved if d == self.dim else i for d, i in enumerate(index)]

    def strided(self, base: Layout) -> Layout | None:
        if lower_bound(self.step) <= 0:
            return None  # torch tensors have no negative strides
        (sizes, strides, offset), d = base, self.dim
        return Layout(
            (*sizes[:d], self.size, *sizes[d + 1 :]),
            (*strides[:d], strides[d] * self.step, *strides[d + 1 :]),
            offset + self.start * strides[d],
        )


@final
@dataclass(frozen=True)
class Select:
    """Fixes one dimension."""

    dim: int
    position: IntExpr

    def index(self, index: Index) -> Index:
        return [*index[: self.dim], self.position, *index[self.dim :]]

    def strided(self, base: Layout) -> Layout | None:
        (sizes, strides, offset), d = base, self.dim
        return Layout((*sizes[:d], *sizes[d + 1 :]), (*strides[:d], *strides[d + 1 :]),
                      offset + self.position * strides[d])


@final
@dataclass(frozen=True)
class Expand:
    """Broadcasts to `shape` (new dimensions in front); repeated elements have strides of 0."""

    base: Shape
    shape: Shape

    def index(self, index: Index) -> Index:
        return broadcast_index(index, self.base)

    def strided(self, base: Layout) -> Layout | None:
        sizes, strides, offset = base
        new = len(self.shape) - len(sizes)
        steps = [0 if have == 1 and want != 1 else stride
                 for have, want, stride in zip(sizes, self.shape[new:], strides, strict=True)]
        for d in reversed(range(new)):
            around = self.shape[d + 1] * steps[0] if steps and self.shape[d] == 1 else 0
            steps.insert(0, around)
        return Layout(self.shape, tuple(steps), offset)


@final
@dataclass(frozen=True)
class Unsqueeze:
    """A new dimension of size 1 in front of dimension `dim`."""

    dim: int

    def index(self, index: Index) -> Index:
        return [*index[: self.dim], *index[self.dim + 1 :]]

    def strided(self, base: Layout) -> Layout | None:
        (sizes, strides, offset), d = base, self.dim
        step = sizes[d] * strides[d] if d < len(sizes) else 1
        return Layout((*sizes[:d], 1, *sizes[d:]), (*strides[:d], step, *strides[d:]), offset)


@final
@dataclass(frozen=True)
class Squeeze:
    """Leaves out dimensions of size 1, in ascending order."""

    dims: tuple[int, ...]

    def index(self, index: Index) -> Index:
        result = list(index)
        for d in self.dims:
            result.insert(d, 0)
        return result

    def strided(self, base: Layout) -> Layout | None:
        sizes, strides, offset = base
        kept = [d for d in range(len(sizes)) if d not in self.dims]
        return Layout(tuple(sizes[d] for d in kept), tuple(strides[d] for d in kept), offset)


@final
@dataclass(frozen=True)
class Reshape:
    """The same elements in row-major order under another shape."""

    base: Shape
    shape: Shape

    def index(self, index: Index) -> Index:
        result: list[IntExpr] = []
        for base_group, view_group in dimension_groups(self.base, self.shape):
            inside = [index[d] for d in view_group]
            flat = flatten_index(inside, [self.shape[d] for d in view_group])
            result += split_index(flat, [self.base[d] for d in base_group])
        return result

    def strided(self, base: Layout) -> Layout | None:
        strides = viewed_strides(base.sizes, base.strides, self.shape)
        return None if strides is None else Layout(self.shape, strides, base.offset)


@final
@dataclass(frozen=True)
class Diagonal:
    """The last dimension of the view runs along two of the base's."""

    rest: tuple[int, ...]
    first: int
    second: int
    row: int
    column: int

    def index(self, index: Index) -> Index:
        result: list[IntExpr] = [0] * (len(self.rest) + 2)
        for position, dim in enumerate(self.rest):
            result[dim] = index[position]
        result[self.first] = index[-1] + self.row
        result[self.second] = index[-1] + self.column
        return result

    def strided(self, base: Layout) -> Layout | None:
        return None  # its length needs a minimum; as a formula it is just as good


@final
@dataclass(frozen=True)
class Unfold:
    """Sliding windows: dimension `dim` counts windows, a new last dimension runs inside one."""

    dim: int
    step: int

    def index(self, index: Index) -> Index:
        result = list(index[:-1])
        result[self.dim] = result[self.dim] * self.step + index[-1]
        return result

    def strided(self, base: Layout) -> Layout | None:
        return None  # as a formula it is just as good


# -- strides of reshaped memory --------------------------------------------------------------------


def viewed_strides(
    sizes: Sequence[IntExpr], strides: Sequence[IntExpr], wanted: Sequence[IntExpr]
) -> Shape | None:
    """The strides of memory viewed as `wanted`, which holds as many elements, as PyTorch's
    `Tensor.view` has them; None where this is not known to come out even.

    Dimensions that lie behind each other in memory form a chunk, and each chunk is cut into wanted
    sizes from its inner end.

        >>> viewed_strides((4, 6), (6, 1), (2, 2, 6)), viewed_strides((4, 6), (1, 4), (24,))
        ((12, 6, 1), None)
    """
    if any(eq_known(size, 0) for size in sizes):
        return row_major(wanted)
    result: list[IntExpr] = [1] * len(wanted)
    d = len(wanted) - 1
    for elements, step in _chunks(sizes, strides):
        taken: IntExpr = 1
        while d >= 0 and (not eq_known(taken, elements) or eq_known(wanted[d], 1)):
            result[d] = step * taken
            taken = taken * wanted[d]
            d -= 1
        if not eq_known(taken, elements):
            return None
    return tuple(result) if d < 0 else None


def _chunks(
    sizes: Sequence[IntExpr], strides: Sequence[IntExpr]
) -> list[tuple[IntExpr, IntExpr]]:
    """Number of elements and inner stride of each chunk, from the innermost one."""
    chunks: list[tuple[IntExpr, IntExpr]] = []
    elements: IntExpr = 1
    step: IntExpr = strides[-1] if strides else 1
    for d in reversed(range(len(sizes))):
        elements = elements * sizes[d]
        if d and (eq_known(sizes[d - 1], 1) or eq_known(strides[d - 1], elements * step)):
            continue
        chunks.append((elements, step))
        elements, step = 1, strides[d - 1]
    return chunks or [(1, 1)]


# -- indices ---------------------------------------------------------------------------------------


def broadcast_index(index: Index, shape: Shape) -> Index:
    """The index into a value of `shape` that is broadcast to the shape of `index`."""
    tail = index[len(index) - len(shape) :]
    return [0 if size == 1 else i for i, size in zip(tail, shape, strict=True)]


def flatten_index(index: Index, shape: Index) -> IntExpr:
    """The row-major position."""
    flat: IntExpr = 0
    for i, size in zip(index, shape, strict=True):
        flat = flat * size + i
    return flat


def split_index(flat: IntExpr, shape: Index) -> list[IntExpr]:
    """The index of a row-major position (inverse of `flatten_index`)."""
    if len(shape) == 1:
        return [0] if shape[0] == 1 else [flat]
    result: list[IntExpr] = []
    for size in reversed(shape[1:]):
        result.append(flat % size)
        flat = flat // size
    result.append(0 if shape and shape[0] == 1 else flat)
    return result[::-1] if shape else []


def dimension_groups(left: Shape, right: Shape) -> list[tuple[list[int], list[int]]]:
    """Smallest runs of dimensions of the two shapes that have equal products, in order.

    >>> dimension_groups((4, 128, 768), (512, 12, 64))
    [([0, 1], [0]), ([2], [1, 2])]
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) or j < len(right):
        first, second = ([i], [j]) if i < len(left) and j < len(right) else ([], [])
        if not first:  # what is left are sizes of 1
            rest = list(range(i, len(left))), list(range(j, len(right)))
            if groups:
                groups[-1][0].extend(rest[0])
                groups[-1][1].extend(rest[1])
            else:
                groups.append(rest)
            break
        a, b = left[i], right[j]
        i, j = i + 1, j + 1
        while (a - b) != 0 and (i < len(left) or j < len(right)):
            if i < len(left) and (j == len(right) or _left_is_behind(a, b)):
                a = a * left[i]
                first.append(i)
                i += 1
            else:
                b = b * right[j]
                second.append(j)
                j += 1
        groups.append((first, second))
    return groups


def _left_is_behind(a: IntExpr, b: IntExpr) -> bool:
    """Whether the run with product `a` should grow before the one with product `b`."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return bool((b % a) == 0) if a != 0 else True
