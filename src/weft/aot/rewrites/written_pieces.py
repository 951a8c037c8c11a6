"""A tensor that is written piece by piece becomes one concatenation.

Place in the pipeline: after decomposition. `for t in range(n): out[:, t] = h` is, in
functional form, a chain of n tensors, each the one before with one position replaced. An element
of the last is then found by n tests, and the code is n formulas long::

    y1 = select_scatter(y0, a, 1, 0);  y2 = select_scatter(y1, b, 1, 1);  ...;  yn
    →   yn = stack([a, b, ...], 1)

What reads a part that many writes did not touch reads the tensor before them (the backward of the
loop is a chain of zeros, whose pieces are read one by one)::

    select(select_scatter(y, v, 1, 2), 1, 0)   →   select(y, 1, 0)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import torch
from torch.fx import Graph, GraphModule, Node

from weft._torch import OpOverload
from weft.aot.evaluate import Evaluator
from weft.aot.graph import memory_owner
from weft.aot.views import restride
from weft.shapes.graph_nodes import add_node
from weft.shapes.symnode import certainly_equal

aten = torch.ops.aten

MOST_TESTED: Final = 4
"""A chain of at most this many writes stays a formula, as a concatenation of as many pieces is."""

_WRITES: Final = (aten.select_scatter.default, aten.slice_scatter.default)
_READS: Final = (aten.select.int, aten.slice.Tensor)


@final
@dataclass(frozen=True, slots=True)
class _Part:
    """The positions from `start` to `end` of a dimension of `whole`, read or written by `node`."""

    node: Node
    whole: Node
    dim: int
    start: int
    end: int

    def touches(self, other: _Part) -> bool:
        return self.start < other.end and other.start < self.end


def join_written_pieces(gm: GraphModule) -> bool:
    """Replace long chains of writes, and reads of them; leaves dead code behind."""
    graph, changed = gm.graph, False
    for node in graph.nodes:
        if (read := _part(node, _READS)) is not None and read.whole.target in _WRITES:
            changed |= _read_past_writes(read)
    for node in reversed(list(graph.nodes)):
        chain = _chain(node)
        if len(chain) > MOST_TESTED:
            with graph.inserting_before(node):
                node.replace_all_uses_with(_Joiner(graph, node).join(chain))
            changed = True
    return changed


def _part(node: Node, targets: tuple[OpOverload, ...]) -> _Part | None:
    """What a node reads or writes of its first operand, if the positions are known numbers."""
    if node.target not in targets or node.kwargs:
        return None
    whole, *rest = node.args
    where: Any = rest[targets is _WRITES :]
    assert isinstance(whole, Node)
    sizes = whole.meta["val"].size()
    dim = where[0] if where else 0
    size = sizes[dim]
    if type(size) is not int or not all(n is None or type(n) is int for n in where[1:]):
        return None
    if node.target in (aten.select.int, aten.select_scatter.default):
        start = where[1] % size
        return _Part(node, whole, dim % len(sizes), start, start + 1)
    bounds = [*where[1:], None, None, None][:3]
    start, end, step = slice(*bounds).indices(size)
    return _Part(node, whole, dim % len(sizes), start, max(start, end)) if step == 1 else None


def _read_past_writes(read: _Part) -> bool:
    """Let a node read the tensor before the writes that do not touch its part, if these are
    many; whether that was done."""
    whole, passed = read.whole, 0
    while (write := _part(whole, _WRITES)) is not None:
        if write.dim != read.dim or write.touches(read) or not _same_strides(write.whole, whole):
            break
        whole, passed = write.whole, passed + 1
    if passed <= MOST_TESTED or _owner(whole).op == "placeholder":
        return False
    read.node.replace_input_with(read.whole, whole)
    return True


def _same_strides(a: Node, b: Node) -> bool:
    return certainly_equal(a.meta["val"].stride(), b.meta["val"].stride())


def _chain(node: Node) -> list[_Part]:
    """The writes that end with this node, the last one first, if no other write follows it.

    Nothing else reads the tensors between them. Writes to a graph's input are left alone: they may
    be done in its own memory (`passes/write_parts.py`).
    """
    last = _part(node, _WRITES)
    if last is None or any(_goes_on(last, user) for user in node.users):
        return []
    chain = [last]
    while (before := _part(chain[-1].whole, _WRITES)) is not None and _is_link(before, last):
        chain.append(before)
    return [] if _owner(chain[-1].whole).op == "placeholder" else chain


def _owner(node: Node) -> Node:
    """What owned the tensor's memory before it was written."""
    while (owner := memory_owner(node)).target in _WRITES:
        before = owner.args[0]
        assert isinstance(before, Node)
        node = before
    return owner


def _goes_on(last: _Part, user: Node) -> bool:
    after = _part(user, _WRITES)
    return after is not None and after.whole is last.node and _is_link(last, after)


def _is_link(write: _Part, last: _Part) -> bool:
    """Whether a write is one of a chain, but not its end."""
    return write.dim == last.dim and len(write.node.users) == 1


@final
class _Joiner:
    """Appends the nodes of one concatenation, in front of the last write."""

    def __init__(self, graph: Graph, last: Node) -> None:
        self.graph, self.last = graph, last
        self.evaluator = Evaluator.current()

    def join(self, chain: list[_Part]) -> Node:
        """A node with the value of the last write."""
        dim, value = chain[0].dim, self.last.meta["val"]
        runs = list(_runs(chain, value.size(dim)))
        if all(write is not None and _selects(write) for write, _, _ in runs):
            sources = [write.node.args[1] for write, _, _ in runs if write is not None]
            joined = self._emit(aten.stack.default, sources, dim)
        else:
            base = chain[-1].whole
            pieces = [self._piece(write, base, dim, start, end) for write, start, end in runs]
            joined = self._emit(aten.cat.default, pieces, dim)
        return restride(self._emit, joined, value.stride())

    def _piece(self, write: _Part | None, base: Node, dim: int, start: int, end: int) -> Node:
        """The elements of a run: of what was written there, or of the tensor before."""
        if write is None:
            return self._emit(aten.slice.Tensor, base, dim, start, end)
        source = write.node.args[1]
        assert isinstance(source, Node)
        if _selects(write):
            return self._emit(aten.unsqueeze.default, source, dim)
        if (start, end) == (write.start, write.end):
            return source
        return self._emit(aten.slice.Tensor, source, dim, start - write.start, end - write.start)

    def _emit(self, op: OpOverload, *args: object, **kwargs: object) -> Node:
        value = self.evaluator.run(op, args, kwargs).value
        return add_node(self.graph, op, args, kwargs, {**self.last.meta, "val": value})


def _selects(write: _Part) -> bool:
    return write.node.target is aten.select_scatter.default


def _runs(chain: list[_Part], size: int) -> Iterator[tuple[_Part | None, int, int]]:
    """Neighbouring positions with the same last write (None: not written), and where they lie."""
    cuts = sorted({0, size, *(w.start for w in chain), *(w.end for w in chain)})
    owners: list[_Part | None] = [None] * (len(cuts) - 1)
    for write in reversed(chain):
        first, last = bisect_left(cuts, write.start), bisect_left(cuts, write.end)
        owners[first:last] = [write] * (last - first)
    ends = [k for k in range(1, len(owners)) if owners[k] is not owners[k - 1]]
    for first, last in pairwise([0, *ends, len(owners)]):
        yield owners[first], cuts[first], cuts[last]
