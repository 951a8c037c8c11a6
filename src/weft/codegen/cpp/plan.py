"""Decides how one kernel is written in C++: vectorised loop, lanes, loop nests, row buffers.

Place in the pipeline: the writers (`emit.py`) print what a `Plan` says and decide nothing.

A kernel's outer variables are flattened into *points*, which threads share. One variable is
vectorised: an inner one (its lanes are folded by each reduction: softmax over contiguous rows) or
an outer one (each lane is a point: pointwise kernels, sums over leading dimensions). The inner
loops are run several times, each time as a *nest*: nest 0 needs no reduction, nest 1 needs those of
nest 0, and so on. Inner values that are expensive and needed by several nests are stored in a row
buffer, which stays in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Final, final

from weft.codegen.cpp.loop_splitting import Segment, segments, settled
from weft.codegen.cpp.scatter_conflicts import combining, is_apart, owners
from weft.codegen.cpp.tiles import Tile, choose_tile, tile_cost
from weft.codegen.ir.dtypes import ITEM_SIZE
from weft.codegen.ir.loop_ir import (
    Const,
    IndexValue,
    Indirect,
    Kernel,
    Load,
    LoopVar,
    Node,
    Op,
    Reduce,
    operands,
    reduction_depths,
    stride,
)
from weft.codegen.ir.loop_nests import LoopNest, inner_nodes, loop_nests
from weft.codegen.ir.scalar_ops import COMPARISONS
from weft.shapes.algebra.bounds import upper_bound
from weft.shapes.algebra.expr import Expr, IntExpr, subs, symbols
from weft.shapes.algebra.printing import fits_int32

ASSUMED_EXTENT: Final = 512
"""Trip count that the cost model assumes for loops of unknown size."""
BLOCK_ELEMENTS: Final = 4096
"""Points of a vectorised outer loop that a thread takes at a time."""
STRIP_TRIPS: Final = 256
"""Additions to one accumulator before it is flushed: keeps long float sums accurate."""
FEW_POINTS: Final = 16
"""Points up to which a long reduction is divided between threads."""
SHUFFLED_STEPS: Final = (2, 3, 4)
"""Steps between lanes up to which whole vectors are loaded and shuffled (`strided.h`)."""
BACKWARDS: Final = -1
"""The step of flipped rows, whose vectors are reversed (`strided.h`)."""
FAR: Final = 16
"""Steps between lanes from which each lane has a cache line of its own."""
MAX_CHUNKS: Final = 64
CHUNK_WORK: Final = 16384
"""Smallest chunk, in elements."""
ROW_BUFFER_BYTES: Final = 128 << 10
SHORT_ROW: Final = 1024
"""Assumed length of a row of unknown length when row buffers are allocated."""
SWEPT_COLUMNS: Final = (256, 1024)
"""Least and most columns whose sums are carried through all rows at a time: processors fetch ahead
in runs of a kilobyte, but hardly in shorter ones (256 rows of 1024: 0.7 against 3.3 ms)."""
FEW_ROWS: Final = 8
"""Rows up to which going down one vector of columns at a time costs nothing."""
SWEPT_ROWS: Final = 4
"""Rows at a time, between which these sums stay in registers."""
MOST_SUMS: Final = 8
"""Registers that hold the sums of neighbouring columns."""
KEEP_COST: Final = 6
"""Cost of recomputing a value above which it is kept in a row buffer."""

HEAVY: Final = {
    **dict.fromkeys(
        ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid", "tanh", "erf",
         "erfc", "normal_cdf", "sin", "cos", "tan", "asin", "acos", "atan"), 8),
    **dict.fromkeys(
        ("sinh", "cosh", "asinh", "acosh", "atanh", "lgamma", "pow",
         "atan2", "hypot", "nextafter", "floordiv", "mod", "fmod", "philox", "philox_normal"), 40),
    **dict.fromkeys(("div", "sqrt", "rsqrt", "reciprocal"), 3),
}
"""Relative cost of operators that are not simple instructions."""
DEAR: Final = 8
"""The cost of an operator that is worth smaller vectors."""
LEAST_LANES: Final = 4
WIDENED: Final = frozenset(
    {"shl", "shr", "floordiv", "truncdiv", "mod", "fmod", "pow", "divisor"})
"""Operators that compute in 32 bits or more with smaller integers too (include/integer.h)."""
MANY_VECTORS: Final = 8
"""Vectors from which the rest of a row behind them hardly counts."""


@final
@dataclass(frozen=True)
class Access:
    """One load (its node's id) or store (its position): its index and level."""

    index: IntExpr
    indirect: tuple[Indirect, ...]
    inner: bool
    load: int = -1
    store: int = -1

    def is_tiled(self, tile: Tile | None) -> bool:
        return tile is not None and (self.load in tile.loads or self.store in tile.stores)


@final
@dataclass
class Plan:
    """Everything that the writers need to know about a kernel."""

    kernel: Kernel
    vector: LoopVar | None
    vector_inner: bool
    lanes: int
    parts: int
    varying: frozenset[int]  # ids of nodes that differ between lanes
    points: tuple[LoopVar, ...]
    loops: tuple[LoopVar, ...]
    nests: list[LoopNest]
    nest_of: dict[int, int]  # outer-level node or reduction -> after how many nests it is known
    narrow: frozenset[int]  # ids of index values that 32 bits hold wherever they are used
    segments: list[Segment] = field(default_factory=list)  # of the vectorised loop, if cut
    settled: frozenset[int] = frozenset()  # nodes that the cuts make unnecessary
    branches: tuple[LoopVar, list[Segment]] | None = None  # parts of the points that differ
    tile: Tile | None = None
    split: LoopVar | None = None  # the inner variable whose range threads share
    row_capacity: int = 0  # inner points that row buffers hold, where their number is not known
    swept: bool = False  # row by row: reductions of neighbouring points are carried in arrays
    owners: dict[int, Indirect] = field(default_factory=dict)  # see `scatter_conflicts.py`
    one_thread: bool = False

    @property
    def step(self) -> int:
        """Points of the vectorised loop per iteration."""
        return self.lanes * self.parts

    @property
    def block(self) -> int:
        """The number of points of a vectorised outer loop in one block; 0: it is not divided."""
        if self.vector is None or self.vector_inner:
            return 0
        if self.tile is not None:
            return self.tile.width
        extent = self.vector.extent
        size = self.step if self.kernel.inner else max(self.step, BLOCK_ELEMENTS)
        if self.swept:
            least, most = SWEPT_COLUMNS
            size = -(-min(most, max(least, trips(extent) // FEW_POINTS)) // self.step) * self.step
        return 0 if isinstance(extent, int) and extent <= size else size

    @property
    def edges(self) -> list[IntExpr]:
        """Where runs of the vectorised loop begin and end, except those at multiples of a vector's
        length."""
        if self.vector is None:
            return []
        borders = [self.vector.extent, *(e for s in self.segments for e in (s.start, s.stop))]
        return [e for e in dict.fromkeys(borders) if e % self.step != 0]

    @property
    def in_two(self) -> bool:
        """Whether there is a second body for rows that are whole vectors.

        It is worth it if rows may be short and each point has many: then the rest of a row costs
        more than its instructions.
        """
        if not (self.vector_inner and self.loops) or self.split is not None:
            return False
        edges, sizes = self.edges, set(self.kernel.sizes)
        return bool(edges) and all(isinstance(e, Expr) and e.symbols <= sizes for e in edges)

    def varies(self, node: Node) -> bool:
        return node.id in self.varying

    def is_known_at_points(self, node: Node) -> bool:
        """Is it the same for all lanes and inner loops, and known before these?"""
        return not (node.inner or self.varies(node) or self.nest_of[node.id])


def make_plan(kernel: Kernel, vector_bytes: int, *, keep_rows: bool = True) -> Plan:
    """The cheapest plan according to the cost model; without row buffers if they are not wanted."""
    vector, varying = _choose_vector(kernel, vector_bytes)
    vector_inner = vector is not None and vector in kernel.inner
    nest_of = reduction_depths(kernel)
    plan = Plan(
        kernel, vector, vector_inner, 1, 1, varying,
        points=tuple(v for v in kernel.outer if v is not vector),
        loops=tuple(v for v in kernel.inner if v is not vector),
        nests=[], nest_of=nest_of, narrow=narrow_indices(kernel, varying),
    )
    if vector is not None:
        _cut(plan, vector, vector_bytes)
        plan.tile = choose_tile(kernel, vector, varying)
        if plan.tile is not None:
            plan.points = tuple(v for v in plan.points if v is not plan.tile.rows)
    plan.nests = _nests(plan, keep_rows)
    plan.split = _split_variable(plan)
    plan.swept = _is_swept(plan)
    _share_combining_stores(plan)
    plan.branches = _branches(plan)
    return plan


def _branches(plan: Plan) -> tuple[LoopVar, list[Segment]] | None:
    """A variable of points, and its ranges in which all its comparisons are known. All lanes share
    it, so a branch around the loops is enough: where a point of `stack` is one operand's, the
    others are not computed."""
    if plan.kernel.inner or plan.segments or plan.tile is not None or plan.owners:
        return None
    branching = ((v, segments(plan.kernel, v)) for v in plan.points)
    return next((pair for pair in branching if pair[1]), None)


def _share_combining_stores(plan: Plan) -> None:
    """How threads share points with scatter conflicts."""
    stores, points = combining(plan.kernel), list(plan.points)
    if plan.block and plan.vector is not None:
        points.append(plan.vector)
    if all(is_apart(store, points) for store in stores):
        return
    plan.one_thread = True
    if plan.tile is None and plan.split is None:
        plan.owners = owners(plan.kernel, plan.is_known_at_points)
        plan.one_thread = not plan.owners


def _cut(plan: Plan, vector: LoopVar, vector_bytes: int) -> None:
    """Choose lanes and registers. The loop is cut at comparisons if it is longer than one
    iteration, or if its parts fill smaller vectors and what they compute is expensive."""
    kernel = plan.kernel
    plan.segments = segments(kernel, vector)
    plan.settled = settled(plan.segments)
    plan.lanes = _lanes(kernel, plan.varying - plan.settled, vector_bytes, vector)
    plan.parts = _parts(plan, vector)
    if plan.step >= trips(vector.extent):
        smaller = _common_lanes(plan)
        if smaller and any(_is_heavy(n) for n in kernel.nodes):
            plan.lanes, plan.parts = smaller, 1
            return
        plan.segments, plan.settled = [], frozenset()
        plan.lanes = _lanes(kernel, plan.varying, vector_bytes, vector)
        plan.parts = _parts(plan, vector)


def _common_lanes(plan: Plan) -> int:
    """The lanes of a smaller vector that divides all parts of the loop; 0 if there is none."""
    lanes, edges = plan.lanes // 2, [part.stop for part in plan.segments]
    while lanes >= LEAST_LANES and any(edge % lanes != 0 for edge in edges):
        lanes //= 2
    return lanes if edges and lanes >= LEAST_LANES else 0


# ---- the vectorised variable ---------------------------------------------------------------------


def accesses(kernel: Kernel) -> Iterator[Access]:
    """All loads and stores."""
    for node in kernel.nodes:
        if isinstance(node, Load):
            yield Access(node.index, node.indirect, node.inner, node.id)
    for k, store in enumerate(kernel.stores):
        yield Access(store.index, store.indirect, store.inner, store=k)


def varying_nodes(kernel: Kernel, variable: Expr) -> frozenset[int]:
    """Ids of the nodes that differ along `variable`."""
    ids: set[int] = set()
    for node in kernel.nodes:
        own = symbols(node.index) if isinstance(node, Load) else (
            symbols(node.expr) if isinstance(node, IndexValue) else ())
        if variable in own or any(o.id in ids for o in operands(node)):
            ids.add(node.id)
    return frozenset(ids)


def _choose_vector(
    kernel: Kernel, vector_bytes: int
) -> tuple[LoopVar | None, frozenset[int]]:
    best: tuple[float, LoopVar | None, frozenset[int]] = (float("inf"), None, frozenset())
    inner_symbols = {v.symbol for v in kernel.inner}
    for variable in (*reversed(kernel.inner), *reversed(kernel.outer)):
        varying = _reductions_end(kernel, varying_nodes(kernel, variable.symbol),
                                  variable.symbol in inner_symbols)
        cost = _cost(kernel, variable, varying, vector_bytes)
        if cost < best[0]:
            best = (cost, variable, varying)
    scalar_cost = sum(_node_weight(n) for n in kernel.nodes) + len(kernel.stores)
    return (best[1], best[2]) if best[0] < 1.5 * scalar_cost else (None, frozenset())


def _reductions_end(kernel: Kernel, varying: frozenset[int], inner: bool) -> frozenset[int]:
    """With an inner vector variable, a reduction and what follows are equal in all lanes."""
    if not inner:
        return varying
    ids: set[int] = set()
    for node in kernel.nodes:
        if node.id in varying and node.inner:
            ids.add(node.id)
    return frozenset(ids)


def trips(extent: IntExpr) -> int:
    """The trip count of a loop, assumed if unknown."""
    return extent if isinstance(extent, int) else ASSUMED_EXTENT


def _cost(kernel: Kernel, v: LoopVar, varying: frozenset[int], vector_bytes: int) -> float:
    """The estimated cost of one point of the whole domain if `v` is vectorised."""
    lanes = _lanes(kernel, varying, vector_bytes, v)
    inner_total = max(1, prod(trips(x.extent) for x in kernel.inner))
    extent = max(1, trips(v.extent))
    waste = -(-extent // lanes) * lanes / extent

    def share(inner: bool, varies: bool) -> float:
        """How often something is done per point, times its lanes' waste."""
        weight = 1.0 if inner or not kernel.inner else 1 / inner_total
        if varies:
            return weight * waste
        return weight if v in kernel.inner and not inner else weight / extent

    total = 0.0
    tile = choose_tile(kernel, v, varying)
    for access in accesses(kernel):
        varies = access.load < 0 or access.load in varying
        if varies and access.is_tiled(tile):
            cost = tile_cost(tile, v, vector_bytes)
        else:
            cost = _access_cost(access, v.symbol, varying, lanes) if varies else 1.0
        total += share(access.inner, varies) * cost
    for node in kernel.nodes:
        if isinstance(node, Op):
            varies = node.id in varying
            weight = HEAVY.get(node.name, 1)
            total += share(node.inner, varies) * (weight / lanes if varies else weight)
    if v in kernel.inner:  # every point folds its lanes
        folds = sum(isinstance(n, Reduce) for n in kernel.nodes)
        total += 8 * folds / inner_total
    return total


def _access_cost(access: Access, v: Expr, varying: frozenset[int], lanes: int) -> float:
    if any(i.id in varying for i in access.indirect):
        return 2.0
    step = stride(access.index, v)
    if isinstance(step, int) and step in (0, 1):
        return 1 / lanes
    if step in SHUFFLED_STEPS:
        return min(1.5, 2 * step / lanes)
    if step == BACKWARDS:
        return 2 / lanes
    if step is None:
        return 1.5 if _stays_near(access.index, v, lanes) else 3.0
    return 1.5 if isinstance(step, int) and abs(step) < FAR else 2.5


def _stays_near(index: IntExpr, v: Expr, lanes: int) -> bool:
    """Whether neighbours along `v` are in a few cache lines (the quotient of an enlarged image)."""
    others = dict.fromkeys(symbols(index) - {v}, ASSUMED_EXTENT)
    try:
        first, last = (subs(index, {**others, v: at}) for at in (0, lanes - 1))
    except ZeroDivisionError:  # by a difference of sizes
        return False
    return isinstance(first, int) and isinstance(last, int) and abs(last - first) < 2 * lanes


def _is_heavy(node: Node) -> bool:
    return isinstance(node, Op) and HEAVY.get(node.name, 1) >= DEAR


def _node_weight(node: Node) -> float:
    if isinstance(node, Op):
        return HEAVY.get(node.name, 1)
    return 1.0 if isinstance(node, Load) else 0.0


def _lanes(kernel: Kernel, varying: frozenset[int], vector_bytes: int, vector: LoopVar) -> int:
    """The number of lanes with which the widest varying type fills a register; of types of less
    than 32 bits (see `_least_bytes`) where the loop is long or whole vectors."""
    widest = 1
    narrow = narrow_indices(kernel, varying)
    for node in kernel.nodes:
        if node.id in varying:
            widest = max(widest, 4 if node.id in narrow else _bytes(node))
        if isinstance(node, Reduce):
            dtype = position_type(kernel, node) if node.kind.startswith("arg") else node.dtype
            widest = max(widest, ITEM_SIZE[dtype])
    # Stored values are widened even where all lanes have the same, unless lanes are folded.
    wide = [s for s in kernel.stores if s.inner or vector not in kernel.inner]
    widest = max([widest, *(ITEM_SIZE[store.value.dtype] for store in wide)])
    return vector_bytes // max(widest, _least_bytes(vector, vector_bytes // widest, vector_bytes))


def _least_bytes(vector: LoopVar, lanes: int, vector_bytes: int) -> int:
    """How wide lanes are at least: 32 bits where a row ends within a vector soon, since its rest
    costs an instruction for each element, and with AVX-512, whose masks (include/vectors.h) have
    32 bits."""
    extent = vector.extent
    is_long = isinstance(extent, int) and (extent >= MANY_VECTORS * lanes or extent % lanes == 0)
    return 1 if is_long and vector_bytes <= 32 else 4


def _bytes(node: Node) -> int:
    """The size of a node's lanes while it is computed."""
    widened = isinstance(node, Op) and node.name in WIDENED
    return max(4 if widened else 1, ITEM_SIZE[node.dtype])


def narrow_indices(kernel: Kernel, varying: frozenset[int]) -> frozenset[int]:
    """Index values that fit in 32 bits and are only cast or compared: with other such values, or
    with what all lanes share (which is limited to 32 bits, beyond all of them)."""
    narrow = {n.id for n in kernel.nodes if isinstance(n, IndexValue) and fits_int32(n.expr)}
    if not narrow:
        return frozenset()
    other_uses = [n for s in kernel.stores for n in (s.value, *s.indirect)]
    for node in kernel.nodes:
        if not (isinstance(node, Op) and node.name in COMPARISONS):
            is_cast = isinstance(node, Op) and node.name == "cast" and node.dtype != "bool"
            other_uses += () if is_cast else operands(node)
    narrow -= {n.id for n in other_uses}
    pairs = [n.args for n in kernel.nodes if isinstance(n, Op) and n.name in COMPARISONS]
    while True:
        wrong = {a.id for pair in pairs for a in pair
                 if not all(_fits(b, narrow) or b.id not in varying for b in pair)}
        if wrong.isdisjoint(narrow):
            return frozenset(narrow)
        narrow -= wrong


def _fits(node: Node, narrow: set[int]) -> bool:
    if isinstance(node, Const):
        return node.dtype == "i64" and fits_int32(int(node.value))
    return node.id in narrow


def position_type(kernel: Kernel, node: Reduce) -> str:
    """The type in which argmax and argmin hold positions."""
    count: IntExpr = 1
    for variable in kernel.inner:
        count = count * variable.extent
    small = upper_bound(count) < 2**31
    return "i32" if small and ITEM_SIZE[node.value.dtype] <= 4 else "i64"


def _parts(plan: Plan, vector: LoopVar) -> int:
    """Registers per value: several hide latency in light reductions and fill cache lines."""
    ops = [n for n in plan.kernel.nodes if n.id in plan.varying and not isinstance(n, Const)]
    weight = sum(_node_weight(n) for n in ops)
    light = 4 if plan.kernel.inner else 2
    wanted = light if weight <= 6 else 2 if weight <= 14 and plan.vector_inner else 1
    extent = vector.extent
    if isinstance(extent, int):
        registers = -(-extent // plan.lanes)
        if wanted == light and _fits_registers(plan, registers):
            return registers
        while wanted > 1 and (registers % wanted and registers < 8 * wanted):
            wanted //= 2
    return wanted


def _fits_registers(plan: Plan, registers: int) -> bool:
    """Whether the sums of all columns (neighbouring points) fit in registers while rows are
    read."""
    sums = [n for n in plan.kernel.nodes if isinstance(n, Reduce)]
    one_run = all(plan.nest_of[n.id] == 1 for n in sums)
    return not plan.vector_inner and one_run and 0 < len(sums) * registers <= MOST_SUMS


def _split_variable(plan: Plan) -> LoopVar | None:
    """The inner loop to divide between threads if there are too few points, or None."""
    if plan.tile is not None or len(plan.nests) != 1:
        return None
    if plan.nests[0].stores or not plan.nests[0].reductions:
        return None
    counts = [v.extent for v in plan.points]
    if plan.vector is not None and not plan.vector_inner:
        extent = plan.vector.extent
        counts.append(-(-extent // plan.step) if isinstance(extent, int) else extent)
    if not all(isinstance(c, int) for c in counts) or prod(map(trips, counts)) > FEW_POINTS:
        return None
    sizes = [v.extent for v in plan.kernel.inner]
    if all(isinstance(e, int) for e in sizes) and prod(map(trips, sizes)) < 2 * CHUNK_WORK:
        return None
    variables = [*plan.loops, *([plan.vector] if plan.vector and plan.vector_inner else [])]
    return max(variables, key=lambda v: trips(v.extent), default=None)


def _is_swept(plan: Plan) -> bool:
    """Whether rows are read of which only the reductions of neighbouring points are needed.

    An example is a gradient's column sums: going down one vector of columns at a time would touch
    one cache line of each row, whose distance is often a power of two.
    """
    if plan.vector is None or plan.vector_inner or plan.tile is not None or plan.segments:
        return False
    if not plan.kernel.inner or len(plan.nests) != 1 or plan.split is not None:
        return False
    if prod(trips(v.extent) for v in plan.kernel.inner) <= FEW_ROWS:
        return False
    wide = all(plan.varies(r.value) for r in plan.nests[0].reductions)
    extent = plan.vector.extent
    return wide and trips(extent) > plan.step


# ---- loop nests ----------------------------------------------------------------------------------


def _nests(plan: Plan, keep_rows: bool) -> list[LoopNest]:
    """The loop nests, with the row buffers that spare later ones expensive values."""
    kernel = plan.kernel
    nests = loop_nests(kernel, plan.nest_of)
    if keep_rows and len(nests) > 1:
        _keep_dear_values(plan, nests)
        for nest in nests:
            nest.nodes = nest.needed(kernel)
    return nests


def _keep_dear_values(plan: Plan, nests: list[LoopNest]) -> None:
    """Fill `kept` and `reused`: what a later nest needs from an earlier one and is expensive to
    recompute.

    Rows of unknown length are assumed to be short: the target checks that at each call.
    """
    space = ROW_BUFFER_BYTES
    extents = [v.extent for v in plan.kernel.inner]
    known = all(isinstance(e, int) for e in extents)
    lanes = 1 if plan.vector_inner or plan.vector is None else plan.step
    row = (prod(map(trips, extents)) if known else SHORT_ROW) * lanes
    kept: dict[int, Node] = {}
    closures = [inner_nodes(nest.roots()) for nest in nests]
    for later in range(1, len(nests)):
        for node in _frontier(nests[later], closures, later):
            size = row * ITEM_SIZE[node.dtype]
            if node.id not in kept and (size > space or _recompute_cost(plan, node) < KEEP_COST):
                continue
            if node.id not in kept:
                space -= size
                kept[node.id] = node
                first = next(i for i, c in enumerate(closures) if node.id in c)
                nests[first].kept.append(node)
            nests[later].reused.append(node)
    if kept and not known:
        point = sum(ITEM_SIZE[node.dtype] for node in kept.values()) * lanes
        plan.row_capacity = ROW_BUFFER_BYTES // point


def _frontier(nest: LoopNest, closures: list[dict[int, Node]], later: int) -> list[Node]:
    """The shared nodes that this nest uses directly."""
    shared = {i for closure in closures[:later] for i in closure} & closures[later].keys()
    users = [n for n in closures[later].values() if n.id not in shared]
    used = {o.id: o for n in users for o in operands(n)}
    used |= {n.id: n for n in nest.roots()}
    return [n for i, n in used.items() if i in shared and not isinstance(n, Const | Indirect)]


def _recompute_cost(plan: Plan, node: Node) -> float:
    total = 0.0
    for other in inner_nodes([node]).values():
        if isinstance(other, Load):
            access = Access(other.index, other.indirect, True, other.id)
            total += 8.0 if _is_gathered(plan, access) else 1.5
        else:
            total += _node_weight(other)
    return total


def _is_gathered(plan: Plan, access: Access) -> bool:
    if plan.vector is None or access.is_tiled(plan.tile):
        return False
    return _access_cost(access, plan.vector.symbol, plan.varying, plan.lanes) > 1
