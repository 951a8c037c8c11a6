"""Writes a loop IR kernel as Triton source text.

Place in the pipeline: `target.py` chooses a `Tiling`, this module spells the kernel for it,
`compile.py` turns the text into a GPU binary. The text is complete and readable: it can be run by
hand.

Softmax over rows of 768, for example, gives (persistent: the row is one tile):

    @triton.jit
    def softmax(b0, b1):
        pid = tl.program_id(0)
        xindex = pid * 1 + tl.arange(0, 1)[:, None]
        rindex = tl.arange(0, 1024)[None, :]
        rmask = rindex < 768
        i0 = xindex
        r0 = rindex
        v0 = tl.load(b0 + (768*i0 + r0), rmask, other=0)
        v1 = tl.reduce(tl.where(rmask, v0, float('-inf')), 1, p.nan_max, keep_dims=True)
        ...

A row that does not fit is looped over; each *phase* is one such loop. The phase of a node is the
number of reductions that must be finished before it: values of earlier phases are computed again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, final

from weft.codegen.ir.dtypes import HALF_TYPES, DType, compute_type
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
    Store,
    number_of_points,
    operands,
    reduction_depths,
)
from weft.codegen.triton.multiples import power_of_two, quotients
from weft.codegen.triton.spelling import (
    POINTER,
    TYPE,
    spell_cast,
    spell_const,
    spell_literal,
    spell_op,
    spell_quotient,
)
from weft.codegen.triton.split_reductions import identity_value
from weft.codegen.triton.tiling import Axis, Tiling
from weft.shapes.algebra.expr import Expr, subs, symbol
from weft.shapes.algebra.printing import fits_int32, triton_text

HEADER: Final = """\
import triton
import triton.language as tl
import weft.codegen.triton.prelude as p


"""

_NUMBER: Final = re.compile(r"^k\d+_(?=[A-Za-z_])")
"""The number of a kernel in its graph, at the end of its name."""

_INT_LIMITS: Final = {"i64": 63, "i32": 31, "i16": 15, "i8": 7}


@final
@dataclass(frozen=True)
class TritonSource:
    """A kernel's text and what is needed to compile and launch it.

    The text does not depend on the graph - buffers are b0, b1, …, the name has no number -, so that
    the equal kernels of a model's layers are compiled once.

    signature: Triton type of each parameter, in order; pointers: the number of buffers among them;
    programs: size of the one-dimensional grid; multiples: of sizes, (position, power of two);
    divisors: values of sizes that indices are divided by. For each the kernel has two parameters
    behind the sizes, its reciprocal (`weft._cuda.reciprocal`): a GPU has no integer division.
    """

    name: str
    text: str
    signature: tuple[str, ...]
    pointers: int
    programs: Expr | int
    num_warps: int
    multiples: tuple[tuple[int, int], ...] = ()
    divisors: tuple[Expr, ...] = ()


def number_names(kernel: Kernel) -> frozenset[str]:
    """The parameters among `Kernel.sizes` that are the bits of doubles."""
    bits = [node.args[0] for node in kernel.nodes
            if isinstance(node, Op) and node.name == "double_of"]
    return frozenset(str(node.expr) for node in bits if isinstance(node, IndexValue))


def emit(
    kernel: Kernel, tiling: Tiling, name: str, *, narrow: bool | None = None,
    multiples: frozenset[tuple[str, int]] = frozenset(),
) -> TritonSource:
    """The Triton source of `kernel`; raises `Unsupported` if Triton lacks one of its operators.

    narrow: whether its sizes and indices fit in 32 bits (None: decided by their bounds); multiples:
    names of sizes, and the powers of two that divide them.
    """
    powers = dict(multiples)
    source = _Emitter(kernel, tiling, name, narrow, powers, quotients(kernel, powers)).emit()
    at = [(i, powers[str(size)]) for i, size in enumerate(kernel.sizes, source.pointers)
          if str(size) in powers]
    return replace(source, multiples=tuple(at))


@dataclass
class _Emitter:
    kernel: Kernel
    tiling: Tiling
    name: str
    narrow: bool | None = None
    powers: dict[str, int] = field(default_factory=dict)
    quotients: dict[Expr, Expr] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    divisors: list[Expr] = field(default_factory=list)
    indent: str = "    "
    eviction: str = ""
    """Cache hint of inner-level loads: rows that a later phase reads again should stay in the L2
    cache.
    """

    def __post_init__(self) -> None:
        self.names: dict[int, str] = {}
        self.rank = len(self.tiling.axes)
        self.symbol_axis = {
            str(v.symbol): axis.name for axis in self.tiling.axes for v in axis.variables
        }
        self.axes_of: dict[int, frozenset[str]] = {}
        for node in self.kernel.nodes:
            self.axes_of[node.id] = self._axes(node)
        self.memory_type = {b.name: b.dtype for b in self.kernel.buffers}
        self.pointers = {b.name: f"b{i}" for i, b in enumerate(self.kernel.buffers)}

    # --- the parts of a kernel, in order
    # -------------------------------------------------------------

    def emit(self) -> TritonSource:
        numbers = number_names(self.kernel)
        signature = [POINTER[b.dtype] for b in self.kernel.buffers] + [
            "i32" if self.narrow and str(size) not in numbers else "i64"
            for size in self.kernel.sizes
        ]
        programs = self._prologue()
        if self.tiling.persistent:
            self._straight_line()
        else:
            self._phases()
        reciprocals = [f"d{i}{part}" for i in range(len(self.divisors)) for part in ("", "_shift")]
        parameters = [*self.pointers.values(), *map(str, self.kernel.sizes), *reciprocals]
        signature += ["i32"] * len(reciprocals)
        name = _NUMBER.sub("", self.name)
        head = f"@triton.jit\ndef {name}({', '.join(parameters)}):\n"
        text = HEADER + head + "\n".join(self.lines) + "\n"
        return TritonSource(
            name,
            text,
            tuple(signature),
            len(self.kernel.buffers),
            programs,
            self.tiling.num_warps,
            divisors=tuple(self.divisors),
        )

    def _prologue(self) -> Expr | int:
        """Program id to tile coordinates to loop variables; returns the number of programs."""
        wide = "" if self._narrow() else ".to(tl.int64)"
        for size, multiple in self.quotients.items():
            (part,) = multiple.symbols
            self._line(f"{part} = {size} // {multiple.coeff(part)}")
        self._line(f"pid = tl.program_id(0){wide}")
        programs: Expr | int = 1
        tiled = [a for a in reversed(self.tiling.axes) if a.name != "r"]
        single = len(tiled) == 1 and not self.tiling.z_variables
        for axis in tiled:
            blocks = (axis.extent + (axis.block - 1)) // axis.block
            tile = "pid" if single else f"(pid % {self._group(blocks)})"
            start = tile if axis.block == 1 else f"{tile} * {axis.block}"
            self._axis(axis, f"{start} + {self._arange(axis)}")
            if not single:
                self._line(f"pid = pid // {self._group(blocks)}")
            programs = programs * blocks
        self._decode("pid", self.tiling.z_variables)
        programs = programs * number_of_points(self.tiling.z_variables)
        r_axis = self.tiling.axis("r")
        if r_axis is not None and self.tiling.persistent:
            self._axis(r_axis, self._arange(r_axis))
        return programs

    def _narrow(self) -> bool:
        """Whether all indices fit in 32 bits."""
        if self.narrow is not None:
            return self.narrow
        indices = [n.index for n in self.kernel.nodes if isinstance(n, Load)]
        indices += [s.index for s in self.kernel.stores]
        indices += [a.extent + a.block for a in self.tiling.axes]
        return all(fits_int32(i) for i in indices)

    def _arange(self, axis: Axis) -> str:
        text = f"tl.arange(0, {axis.block})"
        if self.rank == 1:
            return text
        return text + ("[:, None]" if axis is self.tiling.axes[0] else "[None, :]")

    def _axis(self, axis: Axis, value: str) -> None:
        """Define the axis' flat index, its mask and its loop variables."""
        index = f"{axis.name}index"
        self._line(f"{index} = {value}")
        if axis.needs_mask:
            self._line(f"{axis.name}mask = {index} < {self._text(axis.extent)}")
        self._decode(index, axis.variables, axis)

    def _decode(
        self, flat: str, variables: tuple[LoopVar, ...], axis: Axis | None = None
    ) -> None:
        """Split a flat index (of a tile's axis, or one number) into its loop variables, the last
        one fastest."""
        run = 1 if axis is None else min(axis.block, self._run(variables))
        for variable in reversed(variables[1:]):
            extent, rest = self._group(variable.extent), f"{flat}_"
            if isinstance(variable.extent, int) or axis is None or not self._narrow():
                self._line(f"{variable.symbol} = {flat} % {extent}")
                self._line(f"{rest} = {flat} // {extent}")
            else:
                quotient = spell_quotient(flat, self._divisor(variable.extent))
                if run > 1:
                    quotient = f"tl.max_constancy({quotient}, {self._shape({axis.name}, run)})"
                self._line(f"{rest} = ({quotient}).to(tl.int32)")
                self._line(f"{variable.symbol} = {flat} - {rest} * {extent}")
            flat = rest
        if variables:
            self._line(f"{variables[0].symbol} = {flat}")

    def _run(self, variables: tuple[LoopVar, ...]) -> int:
        """The number of neighbours that differ in the fastest variable only. Triton would see it in
        a division (not in a product with a reciprocal), and needs it to load whole vectors."""
        return power_of_two(variables[-1].extent, self.powers) if variables else 1

    def _divisor(self, value: Expr) -> str:
        """The name of the parameters for a division by `value`."""
        if value not in self.divisors:
            self.divisors.append(value)
        return f"d{self.divisors.index(value)}"

    def _straight_line(self) -> None:
        """Pointwise kernels and reductions whose row is one tile: nodes in order."""
        for node in self.kernel.nodes:
            self._node(node)
        for store in self.kernel.stores:
            self._store(store)

    def _phases(self) -> None:
        """One loop over the inner variables for each phase."""
        phases = reduction_depths(self.kernel)
        reduces = [n for n in self.kernel.nodes if isinstance(n, Reduce)]
        inner_stores = [s for s in self.kernel.stores if s.inner]
        last = max(phases.values(), default=0)
        for phase in range(last + 1):
            self._outer_nodes(phase, phases)
            sinks = [r for r in reduces if phases[r.value.id] == phase]
            stores = [s for s in inner_stores if self._store_phase(s, phases) == phase]
            if sinks or stores:
                self.eviction = "evict_first" if phase == last else "evict_last"
                self._loop(sinks, stores)
                self.eviction = ""
        for store in self.kernel.stores:
            if not store.inner:
                self._store(store)

    def _store_phase(self, store: Store, phases: dict[int, int]) -> int:
        return max(phases[n.id] for n in store.operands())

    def _outer_nodes(self, phase: int, phases: dict[int, int]) -> None:
        for node in self.kernel.nodes:
            if not node.inner and not isinstance(node, Reduce) and phases[node.id] == phase:
                self._node(node)

    def _loop(self, sinks: list[Reduce], stores: list[Store]) -> None:
        axis = self.tiling.axis("r")
        assert axis is not None
        for sink in sinks:
            self._accumulator(sink)
        self._line(f"for rstart in range(0, {self._text(axis.extent)}, {axis.block}):")
        outer_indent, self.indent = self.indent, self.indent + "    "
        outer_names = dict(self.names)
        self._axis(axis, f"rstart + {self._arange(axis)}")
        roots = [s.value for s in sinks]
        roots += [n for s in stores for n in s.operands()]
        for node in self._needed_nodes(roots):
            self._node(node)
        for sink in sinks:
            self._accumulate(sink)
        for store in stores:
            self._store(store)
        self.indent, self.names = outer_indent, outer_names
        for sink in sinks:
            self._finish(sink)

    def _needed_nodes(self, roots: Iterable[Node]) -> list[Node]:
        """The inner-level nodes (and their masks) that `roots` are computed from, in order."""
        wanted: set[int] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node.inner and node.id not in wanted:
                wanted.add(node.id)
                stack.extend(operands(node))
        return [n for n in self.kernel.nodes if n.id in wanted]

    # --- nodes
    # -------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        text = _SPELL[type(node)](self, node)  # type: ignore[operator]
        name = str(node.symbol) if isinstance(node, Indirect) else f"v{node.id}"
        self.names[node.id] = name
        self._line(f"{name} = {text}")
        if isinstance(node, Indirect) and node.check:
            self._check_index(node)

    def _const(self, node: Const) -> str:
        return spell_const(node.value, node.dtype, self.rank)

    def _index_value(self, node: IndexValue) -> str:
        value = self._flat(node.expr)
        if isinstance(value, int):
            return spell_const(value, "i64", self.rank)
        return f"({self._text(value)}).to(tl.int64)"

    def _indirect(self, node: Indirect) -> str:
        value = self.names[node.value.id]
        if not node.wrap:
            return f"{value}.to(tl.int64)"
        size = self._text(node.size)
        return f"tl.where({value} < 0, {value} + {size}, {value}).to(tl.int64)"

    def _check_index(self, node: Indirect) -> None:
        """An index out of range ends the kernel with a device-side assertion, as in eager."""
        name = str(node.symbol)
        valid = f"(({name} >= 0) & ({name} < {self._text(node.size)}))"
        masks = self._masks(self.axes_of[node.id], node.mask)
        for mask in masks:
            valid = f"({valid} | ({mask} == 0))"
        self._line(f'tl.device_assert({valid}, "index out of range in self")')

    def _load(self, node: Load) -> str:
        axes = self.axes_of[node.id]
        masks = self._masks(axes, node.mask)
        index = self._index(node.index)
        if masks and (node.mask is not None or not self._index_axes(node)):
            index = self._spread(index, node.index, axes)
        text = f"tl.load({self.pointers[node.buffer]} + ({index})"
        if masks:
            text += f", {' & '.join(masks)}, other={spell_literal(node.other)}"
        if self.eviction and node.inner:
            text += f", eviction_policy='{self.eviction}'"
        text += ")"
        memory = self.memory_type[node.buffer]
        return f"{text}.to(tl.float32)" if memory in HALF_TYPES else text

    def _op(self, node: Op) -> str:
        args = [self.names[a.id] for a in node.args]
        if node.name == "cast":
            return spell_cast(args[0], node.args[0].dtype, node.dtype)
        if node.name in ("shl", "shr"):
            return self._shift(node, args)
        return spell_op(node.name, node.args[-1].dtype, args)

    def _shift(self, node: Op, args: list[str]) -> str:
        value, count = args
        bits = _INT_LIMITS.get(node.dtype, 7) + 1
        inside = f"(({count} >= 0) & ({count} < {bits}))"
        if node.name == "shl":
            return f"tl.where({inside}, {value} << tl.where({inside}, {count}, 0), 0)"
        last = f"tl.where({value} < 0, -1, 0).to({value}.dtype)" if node.dtype != "u8" else "0"
        return f"tl.where({inside}, {value} >> tl.where({inside}, {count}, 0), {last})"

    def _reduce(self, node: Reduce) -> str:
        """A reduction over one tile that holds the whole row."""
        axis = self.tiling.axis("r")
        assert axis is not None
        value = f"tl.broadcast_to({self.names[node.value.id]}, {self._shape_all()})"
        dtype = node.value.dtype
        if node.kind in ("argmax", "argmin"):
            return self._arg_reduce(node.kind, value, self._position(), dtype)
        identity = _identity(node.kind, dtype)
        if axis.needs_mask:
            value = f"tl.where(rmask, {value}, {identity})"
        return _combine(node.kind, value, node.dtype)

    def _arg_reduce(self, kind: str, value: str, position: str, dtype: DType) -> str:
        pick = "p.pick_max" if kind == "argmax" else "p.pick_min"
        axis = self.tiling.axis("r")
        assert axis is not None
        if axis.needs_mask:
            worst = _identity("max" if kind == "argmax" else "min", dtype)
            value = f"tl.where(rmask, {value}, {worst})"
            position = f"tl.where(rmask, {position}, {2**62})"
        return f"tl.reduce(({value}, {position}), 1, {pick}, keep_dims=True)[1]"

    def _position(self) -> str:
        return f"tl.broadcast_to(rindex.to(tl.int64), {self._shape_all()})"

    # --- looped reductions
    # --------------------------------------------------------------------------------

    def _accumulator(self, node: Reduce) -> None:
        name, dtype = f"a{node.id}", node.value.dtype
        if node.kind in ("argmax", "argmin"):
            worst = _identity("max" if node.kind == "argmax" else "min", dtype)
            self._line(f"{name} = tl.full({self._shape_all()}, {worst}, {TYPE[dtype]})")
            self._line(f"{name}_at = tl.full({self._shape_all()}, {2**62}, tl.int64)")
            return
        identity = _identity(node.kind, dtype)
        self._line(f"{name} = tl.full({self._shape_all()}, {identity}, {TYPE[dtype]})")

    def _accumulate(self, node: Reduce) -> None:
        name, value = f"a{node.id}", self.names[node.value.id]
        axis = self.tiling.axis("r")
        assert axis is not None
        if node.kind in ("argmax", "argmin"):
            pick = "p.pick_max" if node.kind == "argmax" else "p.pick_min"
            value = f"tl.broadcast_to({value}, {self._shape_all()})"
            self._line(f"b, b_at = {pick}({name}, {name}_at, {value}, {self._position()})")
            mask = "rmask" if axis.needs_mask else "True"
            if axis.needs_mask:
                self._line(f"b = tl.where({mask}, b, {name})")
                self._line(f"b_at = tl.where({mask}, b_at, {name}_at)")
            self._line(f"{name} = b")
            self._line(f"{name}_at = b_at")
            return
        updated = _COMBINE_ELEMENTWISE[node.kind].format(name, value)
        if axis.needs_mask:
            updated = f"tl.where(rmask, {updated}, {name})"
        self._line(f"{name} = {updated}")

    def _finish(self, node: Reduce) -> None:
        name = f"a{node.id}"
        self.names[node.id] = f"v{node.id}"
        if node.kind in ("argmax", "argmin"):
            pick = "p.pick_max" if node.kind == "argmax" else "p.pick_min"
            text = f"tl.reduce(({name}, {name}_at), 1, {pick}, keep_dims=True)[1]"
        else:
            text = _combine(node.kind, name, node.dtype)
        self._line(f"v{node.id} = {text}")

    # --- stores, indices, masks
    # ----------------------------------------------------------------------

    def _store(self, store: Store) -> None:
        axes = frozenset(a.name for a in self.tiling.axes if store.inner or a.name != "r")
        shape = self._shape(axes)
        index = self._spread(self._index(store.index), store.index, axes)
        value = f"tl.broadcast_to({self.names[store.value.id]}, {shape})"
        memory = self.memory_type[store.buffer]
        if compute_type(memory) != memory:
            value = f"{value}.to({TYPE[memory]})"
        masks = self._masks(axes, store.mask)
        mask = f", {' & '.join(masks)}" if masks else ""
        function = "tl.atomic_add" if store.mode == "add" else "tl.store"
        self._line(f"{function}({self.pointers[store.buffer]} + {index}, {value}{mask})")

    def _flat(self, index: Expr | int) -> Expr | int:
        """An index whose variables that are contiguous in memory are the flat index, which Triton
        knows to be contiguous."""
        for axis in self.tiling.axes:
            index = _flatten_index(index, axis)
        return subs(index, self.quotients)

    def _index(self, index: Expr | int) -> str:
        return triton_text(self._flat(index))

    def _text(self, value: Expr | int) -> str:
        return triton_text(subs(value, self.quotients))

    def _group(self, value: Expr | int) -> str:
        return str(value) if isinstance(value, int) else f"({self._text(value)})"

    def _spread(self, text: str, index: Expr | int, axes: frozenset[str]) -> str:
        """An index as a tile (Triton cannot broadcast a literal)."""
        shape = self._shape(axes)
        if isinstance(self._flat(index), int):
            return f"tl.full({shape}, {text}, tl.int64)"
        return f"tl.broadcast_to({text}, {shape})"

    def _masks(self, axes: frozenset[str], mask: Node | None) -> list[str]:
        masks = [f"{a.name}mask" for a in self.tiling.axes if a.name in axes and a.needs_mask]
        return masks if mask is None else [*masks, self.names[mask.id]]

    def _shape(self, axes: Collection[str], size: int | None = None) -> str:
        """A shape that has the axes' blocks, or `size`, along `axes`, and 1 elsewhere."""
        sizes = [(size or a.block) if a.name in axes else 1 for a in self.tiling.axes]
        return f"[{', '.join(map(str, sizes))}]"

    def _shape_all(self) -> str:
        return self._shape(frozenset(a.name for a in self.tiling.axes))

    def _index_axes(self, node: Load) -> frozenset[str]:
        return self._expr_axes(node.index).union(*(self.axes_of[n.id] for n in node.indirect))

    def _expr_axes(self, expr: Expr | int) -> frozenset[str]:
        if isinstance(expr, int):
            return frozenset()
        axes = (self.symbol_axis.get(str(s)) for s in expr.symbols)
        return frozenset(a for a in axes if a is not None)

    def _axes(self, node: Node) -> frozenset[str]:
        """The tile axes along which a node varies."""
        axes = frozenset().union(*(self.axes_of[o.id] for o in operands(node)))
        if isinstance(node, Load):
            axes |= self._expr_axes(node.index)
        elif isinstance(node, IndexValue):
            axes |= self._expr_axes(node.expr)
        elif isinstance(node, Reduce):
            axes = frozenset(a.name for a in self.tiling.axes if a.name != "r")
        return axes

    def _line(self, text: str) -> None:
        self.lines.append(self.indent + text)


_SPELL: Final = {
    Const: _Emitter._const,
    IndexValue: _Emitter._index_value,
    Indirect: _Emitter._indirect,
    Load: _Emitter._load,
    Op: _Emitter._op,
    Reduce: _Emitter._reduce,
}

_COMBINE_ELEMENTWISE: Final = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "p.nan_max({0}, {1})",
    "min": "p.nan_min({0}, {1})",
    "any": "{0} | {1}",
    "all": "{0} & {1}",
}


def _combine(kind: str, value: str, dtype: DType) -> str:
    """Reduce a tile along its last dimension, keeping it as size one."""
    if kind == "sum":
        return f"tl.sum({value}, 1, keep_dims=True).to({TYPE[dtype]})"
    if kind == "prod":
        return f"tl.reduce({value}, 1, p.multiply, keep_dims=True)"
    if kind == "any":
        return f"tl.max({value}.to(tl.int32), 1, keep_dims=True) != 0"
    if kind == "all":
        return f"tl.min({value}.to(tl.int32), 1, keep_dims=True) != 0"
    if dtype == "bool":
        return f"tl.{kind}({value}.to(tl.int32), 1, keep_dims=True) != 0"
    if dtype in ("f32", "f64"):
        return f"tl.reduce({value}, 1, p.nan_{kind}, keep_dims=True)"
    return f"tl.{kind}({value}, 1, keep_dims=True).to({TYPE[dtype]})"


def _flatten_index(index: Expr | int, axis: Axis) -> Expr | int:
    """`i0*n + i1 + rest` as `xindex + rest`, where n is the extent of i1."""
    if isinstance(index, int) or len(axis.variables) < 2:
        return index
    last = index.coeff(axis.variables[-1].symbol)
    if last is None or last == 0:
        return index
    rest: Expr | int = index
    step = last
    for variable in reversed(axis.variables):
        if index.coeff(variable.symbol) != step:
            return index
        rest = rest - step * variable.symbol
        step = step * variable.extent
    flat = symbol(f"{axis.name}index", 0, axis.extent - 1, "loop")
    return rest + last * flat


def _identity(kind: str, dtype: DType) -> str:
    """The neutral element of a reduction, as Triton text."""
    return spell_literal(identity_value(kind, dtype))


def _is_plain(expr: Expr | int) -> bool:
    return isinstance(expr, int)
