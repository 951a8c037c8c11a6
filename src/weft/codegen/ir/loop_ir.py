"""The loop IR: what a kernel computes, independent of the target that will spell it.

Place in the pipeline: `scheduling/schedule.py` makes `Kernel`s from lowered ATen nodes; `cpp/` and
`triton/` turn them into source text; `tools/kernel_interpreter.py` runs them with NumPy, the oracle
for both.

A `Kernel` is an iteration domain - outer (parallel) loop variables and inner (reduction) ones,
possibly none -, buffers, and a DAG of scalar nodes. A `Reduce` collapses *all* inner variables;
its result is an outer-level value which may be used again at inner level, so softmax over rows is
one kernel:

    def kernel(in0: f32, out0: f32):
        for i0 in parallel(4096):
            # inner: r0 in range(768)
            v0 = in0[768*i0 + r0]              # inner
            v1 = max(v0)                       # outer
            v2 = sub(v0, v1)                   # inner
            v3 = exp(v2)                       # inner
            v4 = sum(v3)                       # outer
            v5 = div(v3, v4)                   # inner
            out0[768*i0 + r0] = v5             # inner

Rules:
- Index expressions are `shapes.Expr` over loop variables, size symbols (`Kernel.sizes`) and
  symbols of `Indirect` nodes; they are flat element offsets from the buffer's data pointer.
- Node order is topological (operands first). Nodes are hash-consed by their `KernelBuilder`: two
  nodes of one kernel with equal contents are the same object, so `is` compares.
- `node.inner` says whether a value varies with the inner variables. A store is executed once per
  point of its level's domain: at outer level once per outer point, after the reductions it needs.
- Different points of the domain are independent: no kernel reads an element which another point
  writes (in-place buffers are read and written at the same index by the same point), except by
  stores of another mode than "assign". Those combine the value with what is there; points that
  change one element (a scatter conflict) do so in the order of the loops.
- bf16/f16 exist in memory only: loads give f32, stores round. A visible rounding in between is an
  explicit `round_bf16`/`round_f16` op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast, final

from weft.codegen.ir.dtypes import FLOAT_TYPES, INT_TYPES, ITEM_SIZE, DType, compute_type
from weft.codegen.ir.scalar_ops import COMBINING, OPS, REDUCTIONS
from weft.codegen.ir.simplify import literal, simplified
from weft.shapes.algebra.bounds import is_nonnegative
from weft.shapes.algebra.expr import Expr, IntExpr, symbol, symbols

Scalar: TypeAlias = int | float | bool


class InvalidKernel(Exception):
    """A kernel breaks a rule of the IR: a bug in weft."""


@final
@dataclass(eq=False, slots=True)
class Const:
    """A literal of a compute type."""

    id: int
    dtype: DType
    inner: bool
    value: Scalar


@final
@dataclass(eq=False, slots=True)
class IndexValue:
    """The value of an index expression (loop variables, sizes, indirect) as an i64 scalar."""

    id: int
    dtype: DType
    inner: bool
    expr: Expr
    indirect: tuple[Indirect, ...] = ()


@final
@dataclass(eq=False, slots=True)
class Indirect:
    """An integer value used inside index expressions, where `symbol` stands for it.

    With `wrap` a negative value gets `size` added first. With `check` a result outside [0, size)
    must end the kernel with eager's IndexError; points where `mask` is false are not checked (and
    the symbol is not used there). Without `check` the producer has proved the range.
    """

    id: int
    dtype: DType
    inner: bool
    symbol: Expr
    value: Node
    size: IntExpr
    wrap: bool
    check: bool
    mask: Node | None


@final
@dataclass(eq=False, slots=True)
class Load:
    """`buffer[index]` in the buffer's compute type. Where `mask` is false it is `other`, and memory
    is not read."""

    id: int
    dtype: DType
    inner: bool
    buffer: str
    index: IntExpr
    indirect: tuple[Indirect, ...]
    mask: Node | None
    other: Scalar


@final
@dataclass(eq=False, slots=True)
class Op:
    """A scalar operator of `scalar_ops.OPS`."""

    id: int
    dtype: DType
    inner: bool
    name: str
    args: tuple[Node, ...]


@final
@dataclass(eq=False, slots=True)
class Reduce:
    """A reduction of `value` over all inner variables, `kind` of `scalar_ops.REDUCTIONS`.

    `value` may itself be an outer-level value (sum of a constant). argmax/argmin yield the flat
    position in the inner domain (row-major in the order of `Kernel.inner`), dtype i64.
    """

    id: int
    dtype: DType
    inner: bool
    kind: str
    value: Node


Node: TypeAlias = Const | IndexValue | Indirect | Load | Op | Reduce


@final
@dataclass(eq=False, slots=True)
class Store:
    """`buffer[index] = value` at inner or outer level, where `mask` holds (pieces of rows on GPUs).

    With a mode of `scalar_ops.COMBINING` instead of "assign", the value is combined with what is
    there: `buffer[index] = add(buffer[index], value)`.
    """

    buffer: str
    index: IntExpr
    indirect: tuple[Indirect, ...]
    value: Node
    inner: bool
    mode: str = "assign"
    mask: Node | None = None

    def operands(self) -> tuple[Node, ...]:
        """The nodes that it needs."""
        return (self.value, *self.indirect, *([] if self.mask is None else [self.mask]))


@final
@dataclass(frozen=True, slots=True)
class LoopVar:
    """A loop variable running over range(extent). The last one of a list varies fastest."""

    symbol: Expr
    extent: IntExpr


@final
@dataclass(frozen=True, slots=True)
class BufferArg:
    """A buffer parameter; `mode` is "in", "out" or "inout" (read and written, or accumulated
    into).
    """

    name: str
    dtype: DType
    mode: str


@final
@dataclass(eq=False, slots=True)
class Kernel:
    """One loop nest. Parameters in order: `buffers`, then `sizes` as i64 scalars."""

    name: str
    outer: tuple[LoopVar, ...]
    inner: tuple[LoopVar, ...]
    buffers: tuple[BufferArg, ...]
    sizes: tuple[Expr, ...]
    nodes: tuple[Node, ...]
    stores: tuple[Store, ...]
    origins: tuple[str, ...] = ()

    def __str__(self) -> str:
        return print_kernel(self)


def operands(node: Node) -> tuple[Node, ...]:
    """The nodes that `node` directly depends on."""
    return _OPERANDS[type(node)](node)


def _mask_of(node: Load | Indirect) -> tuple[Node, ...]:
    return () if node.mask is None else (node.mask,)


_OPERANDS: Final[dict[type, Callable[[Any], tuple[Node, ...]]]] = {
    Const: lambda n: (),
    IndexValue: lambda n: n.indirect,
    Indirect: lambda n: (n.value, *_mask_of(n)),
    Load: lambda n: (*n.indirect, *_mask_of(n)),
    Op: lambda n: n.args,
    Reduce: lambda n: (n.value,),
}


@dataclass
class KernelBuilder:
    """Makes the nodes of one kernel, each distinct one once.

    >>> from weft.shapes.algebra.expr import loop_index
    >>> i0 = loop_index("i0", 16)
    >>> b = KernelBuilder(outer=(LoopVar(i0, 16),), inner=())
    >>> x = b.load("in0", "f32", i0)
    >>> b.store("out0", "f32", i0, b.op("exp", x))
    >>> kernel = b.build("exp_kernel")
    >>> len(kernel.nodes), len(kernel.stores)
    (2, 1)
    """

    outer: tuple[LoopVar, ...]
    inner: tuple[LoopVar, ...]
    nodes: list[Node] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    dtypes: dict[str, DType] = field(default_factory=dict)
    mask: Node | None = None
    other: Scalar = 0

    def __post_init__(self) -> None:
        self._table: dict[object, Node] = {}
        self._indirects: dict[Expr, Indirect] = {}
        self._inner_symbols = frozenset(v.symbol for v in self.inner)

    def _intern(self, kind: type, dtype: DType, inner: bool, *contents: object) -> Node:
        key = (kind, dtype, *contents)
        node = self._table.get(key)
        if node is None:
            node = cast(Node, kind(len(self.nodes), dtype, inner, *contents))
            self._table[key] = node
            self.nodes.append(node)
        return node

    def const(self, value: Scalar, dtype: DType) -> Node:
        """A literal; `value` is converted to the Python type of `dtype` (integers wrap)."""
        typed = _convert_scalar(value, dtype)
        key = (Const, dtype, repr(typed))  # repr tells -0.0 from 0.0 and joins NaNs
        node = self._table.get(key)
        if node is None:
            node = Const(len(self.nodes), dtype, False, typed)
            self._table[key] = node
            self.nodes.append(node)
        return node

    def number(self, value: Scalar | Expr, dtype: DType) -> Node:
        """A literal, or a number of the call."""
        if isinstance(value, Expr):
            return self.cast(self.index(value), dtype)
        return self.const(value, dtype)

    def index(self, expr: IntExpr) -> Node:
        """The value of an index expression, as i64."""
        if isinstance(expr, int):
            return self.const(expr, "i64")
        if expr in self._indirects:
            return self._indirects[expr]
        indirect = self._find_indirect(expr)
        return self._intern(IndexValue, "i64", self._varies(expr, indirect), expr, indirect)

    def load(self, buffer: str, dtype: DType, index: IntExpr) -> Node:
        """Load from a buffer of memory type `dtype`, under the current mask."""
        known = None if self.mask is None else literal(self.mask)
        if known is False:
            return self.const(self.other, compute_type(dtype))
        mask = self.mask if known is None else None
        self.dtypes[buffer] = dtype
        indirect = self._find_indirect(index)
        inner = self._varies(index, indirect) or (mask is not None and mask.inner)
        other = self.other if mask is not None else 0
        typed = _python_type(compute_type(dtype))(other)
        return self._intern(Load, compute_type(dtype), inner, buffer, index, indirect, mask, typed)

    def op(self, name: str, *args: Node, dtype: DType | None = None) -> Node:
        """Apply a scalar operator; `dtype` only for those whose result type is given."""
        result = OPS[name].result
        if result == "same":
            dtype = args[-1].dtype
        elif result != "given":
            dtype = _RESULT_TYPE[result]
        assert dtype is not None
        simpler = simplified(self, name, args, dtype)
        if simpler is not None:
            return simpler
        inner = any(a.inner for a in args)
        return self._intern(Op, dtype, inner, name, args)

    def cast(self, value: Node, dtype: DType) -> Node:
        """Convert to a compute type; nothing if it has it already."""
        return value if value.dtype == dtype else self.op("cast", value, dtype=dtype)

    def reduce(self, kind: str, value: Node) -> Node:
        """Collapse all inner variables."""
        if not value.inner and kind in ("max", "min", "any", "all"):
            return value
        dtype = "i64" if kind in ("argmax", "argmin") else value.dtype
        return self._intern(Reduce, dtype, False, kind, value)

    def indirect(self, value: Node, size: IntExpr, *, wrap: bool, check: bool) -> IntExpr:
        """A symbol for a computed integer in index expressions (a known one: itself)."""
        known = literal(value)
        if known is not None and isinstance(size, int):
            known = known + size if wrap and known < 0 else known
            if 0 <= known < size:
                return int(known)
        if isinstance(value, IndexValue) and _is_within(value.expr, size):
            return value.expr
        mask = self.mask if check else None
        key = (Indirect, value, size, wrap, check, mask)
        node = self._table.get(key)
        if node is None:
            name = symbol(f"j{len(self._indirects)}", 0, size - 1, "indirect")
            inner = value.inner or (mask is not None and mask.inner)
            node = Indirect(len(self.nodes), "i64", inner, name, value, size, wrap, check, mask)
            self._table[key] = node
            self._indirects[name] = node
            self.nodes.append(node)
        assert isinstance(node, Indirect)
        return node.symbol

    @contextmanager
    def masked(self, mask: Node, other: Scalar) -> Iterator[None]:
        """Loads made inside are guarded by `mask` (and the masks around it) and yield `other`
        elsewhere.
        """
        saved = self.mask, self.other
        self.mask = mask if self.mask is None else self.op("and_", self.mask, mask)
        self.other = other
        try:
            yield
        finally:
            self.mask, self.other = saved

    def store(
        self, buffer: str, dtype: DType, index: IntExpr, value: Node, *, inner: bool | None = None,
        mode: str = "assign", mask: Node | None = None,
    ) -> None:
        """Store `value` (cast to the compute type of `dtype`); `inner` defaults to where it
        varies.
        """
        self.dtypes[buffer] = dtype
        indirect = self._find_indirect(index)
        value = self.cast(value, compute_type(dtype))
        if inner is None:
            inner = value.inner or self._varies(index, indirect)
        self.stores.append(Store(buffer, index, indirect, value, inner, mode, mask))

    def build(self, name: str, origins: tuple[str, ...] = ()) -> Kernel:
        """The finished kernel: only nodes that a store needs, buffers in order of first use."""
        live = _live_nodes(self.nodes, self.stores)
        buffers = _buffer_args(live, self.stores, self.dtypes)
        sizes = _size_symbols(live, self.stores, (*self.outer, *self.inner))
        return Kernel(
            name, self.outer, self.inner, buffers, sizes, tuple(live), tuple(self.stores), origins
        )

    def _find_indirect(self, index: IntExpr) -> tuple[Indirect, ...]:
        if not self._indirects:
            return ()
        used = symbols(index)
        return tuple(node for symbol, node in self._indirects.items() if symbol in used)

    def _varies(self, index: IntExpr, indirect: tuple[Indirect, ...]) -> bool:
        inner = self._inner_symbols
        return not inner.isdisjoint(symbols(index)) or any(n.inner for n in indirect)


def stride(index: IntExpr, variable: Expr) -> IntExpr | None:
    """Elements between neighbours along `variable`; None if that differs from place to place."""
    return 0 if isinstance(index, int) else index.coeff(variable)


def number_of_points(variables: Iterable[LoopVar]) -> IntExpr:
    """How often the body of nested loops runs."""
    return math.prod([variable.extent for variable in variables])


def flat_position(variables: Iterable[LoopVar]) -> IntExpr:
    """The position of a point among all points of the loops, the last of which is the fastest."""
    position: IntExpr = 0
    for variable in variables:
        position = position * variable.extent + variable.symbol
    return position


def reduction_depths(kernel: Kernel) -> dict[int, int]:
    """For each node, the number of successive reductions that must be finished before it."""
    depth: dict[int, int] = {}
    for node in kernel.nodes:
        before = max((depth[o.id] for o in operands(node)), default=0)
        depth[node.id] = before + isinstance(node, Reduce)
    return depth


def _is_within(index: Expr, size: IntExpr) -> bool:
    """Is 0 <= index < size for certain?"""
    return is_nonnegative(index) and is_nonnegative(size - 1 - index)


def _python_type(dtype: DType) -> type[Scalar]:
    if dtype == "bool":
        return bool
    return float if dtype in FLOAT_TYPES else int


def _convert_scalar(value: Scalar, dtype: DType) -> Scalar:
    typed = _python_type(dtype)(value)
    if dtype not in INT_TYPES:
        return typed
    bits = 8 * ITEM_SIZE[dtype]
    low = 0 if dtype == "u8" else -(1 << (bits - 1))
    return (typed - low) % (1 << bits) + low


def _live_nodes(nodes: list[Node], stores: list[Store]) -> list[Node]:
    live: set[int] = set()
    stack: list[Node] = [n for s in stores for n in s.operands()]
    while stack:
        node = stack.pop()
        if node.id not in live:
            live.add(node.id)
            stack.extend(operands(node))
    return [n for n in nodes if n.id in live]


def _buffer_args(
    nodes: list[Node], stores: list[Store], dtypes: dict[str, DType]
) -> tuple[BufferArg, ...]:
    loaded = dict.fromkeys(n.buffer for n in nodes if isinstance(n, Load))
    stored = dict.fromkeys(s.buffer for s in stores)
    accumulated = {s.buffer for s in stores if s.mode != "assign"}

    def mode(name: str) -> str:
        if name not in stored:
            return "in"
        return "inout" if name in loaded or name in accumulated else "out"

    return tuple(BufferArg(name, dtypes[name], mode(name)) for name in {**loaded, **stored})


def index_exprs(nodes: Iterable[Node]) -> Iterator[IntExpr]:
    """The index expressions in the nodes."""
    for n in nodes:
        if isinstance(n, Load):
            yield n.index
        elif isinstance(n, IndexValue):
            yield n.expr
        elif isinstance(n, Indirect):
            yield n.size


def _size_symbols(
    nodes: list[Node], stores: list[Store], loops: tuple[LoopVar, ...]
) -> tuple[Expr, ...]:
    bound = {v.symbol for v in loops} | {n.symbol for n in nodes if isinstance(n, Indirect)}
    sizes: dict[Expr, None] = {}
    extents = [v.extent for v in loops]
    for expr in (*extents, *index_exprs(nodes), *(s.index for s in stores)):
        sizes.update(dict.fromkeys(s for s in symbols(expr) if s not in bound))
    return tuple(sorted(sizes, key=str))


# --- verification


def verify(kernel: Kernel) -> None:
    """Raise InvalidKernel if `kernel` breaks a rule of this page."""
    _verify_order(kernel)
    _verify_symbols(kernel)
    for node in kernel.nodes:
        _VERIFY.get(type(node), _nothing_to_verify)(node)
    dtypes = {b.name: b.dtype for b in kernel.buffers}
    modes = {b.name: b.mode for b in kernel.buffers}
    for store in kernel.stores:
        _verify_store(store, dtypes, modes)
    for node in kernel.nodes:
        if isinstance(node, Load):
            _require(node.buffer in dtypes, f"unknown buffer {node.buffer}")
            _require(modes[node.buffer] != "out", f"load of output {node.buffer}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidKernel(message)


def _verify_order(kernel: Kernel) -> None:
    seen: set[int] = set()
    for node in kernel.nodes:
        _require(all(o.id in seen for o in operands(node)), f"operand after use in node {node.id}")
        _require(node.id not in seen, f"node {node.id} twice")
        seen.add(node.id)
    for store in kernel.stores:
        used = (store.value, *store.indirect)
        _require(all(o.id in seen for o in used), f"store of an unknown node to {store.buffer}")
    _require(bool(kernel.stores), "a kernel without stores")


def _verify_symbols(kernel: Kernel) -> None:
    loops = {v.symbol for v in (*kernel.outer, *kernel.inner)}
    inner = {v.symbol for v in kernel.inner}
    known = loops | set(kernel.sizes)
    _require(len(loops) == len(kernel.outer) + len(kernel.inner), "loop variable bound twice")

    def check(expr: IntExpr, indirect: tuple[Indirect, ...], is_inner: bool) -> None:
        free = symbols(expr)
        unknown = free - known - {n.symbol for n in indirect}
        _require(not unknown, f"unbound symbols {unknown} in {expr}")
        _require(is_inner or inner.isdisjoint(free), f"outer-level use of {expr}")

    for node in kernel.nodes:
        if isinstance(node, Load):
            check(node.index, node.indirect, node.inner)
        elif isinstance(node, IndexValue):
            check(node.expr, node.indirect, node.inner)
    for store in kernel.stores:
        check(store.index, store.indirect, store.inner)


def _nothing_to_verify(node: Node) -> None:
    pass


def _verify_op(node: Op) -> None:
    spec = OPS.get(node.name)
    _require(spec is not None, f"no operator {node.name}")
    assert spec is not None
    _require(len(node.args) == spec.arity, f"{node.name} takes {spec.arity} operands")
    _require(node.dtype in ITEM_SIZE, f"bad dtype {node.dtype}")
    _require(node.inner == any(a.inner for a in node.args), f"wrong level of {node.name}")
    values = node.args
    if spec.operands == "where":
        _require(values[0].dtype == "bool", "where on a condition that is not bool")
        values = values[1:]
    kinds = {a.dtype for a in values}
    _require(len(kinds) == 1, f"{node.name} on mixed types {[a.dtype for a in values]}")
    _require(kinds <= _OPERAND_TYPES[spec.operands], f"{node.name} on {kinds}")
    if spec.result == "same":
        _require(node.dtype in kinds, f"{node.name}: result is not of the operands' type")
    elif spec.result != "given":
        _require(node.dtype == _RESULT_TYPE[spec.result], f"{node.name} yields {spec.result}")


_RESULT_TYPE: Final[dict[str, DType]] = {"bool": "bool", "double": "f64"}
_COMPUTE_FLOATS: Final = frozenset({"f32", "f64"})
_ANY: Final = _COMPUTE_FLOATS | INT_TYPES | {"bool"}
_OPERAND_TYPES: Final[dict[str, frozenset[DType]]] = {
    "float": _COMPUTE_FLOATS,
    "int": INT_TYPES,
    "bits": frozenset({"i64"}),
    "integral": INT_TYPES | {"bool"},
    "number": _COMPUTE_FLOATS | INT_TYPES,
    "any": _ANY,
    "where": _ANY,
}


def _verify_reduce(node: Reduce) -> None:
    _require(node.kind in REDUCTIONS, f"no reduction {node.kind}")
    _require(not node.inner, "a reduction is an outer-level value")
    boolean = node.kind in ("any", "all")
    _require(boolean == (node.value.dtype == "bool") or node.kind.startswith("arg")
             or node.kind in ("max", "min"), f"{node.kind} of {node.value.dtype}")


def _verify_load(node: Load) -> None:
    _require(node.dtype in _ANY, f"load in memory type {node.dtype}")
    _require(node.mask is None or node.mask.dtype == "bool", "mask is not bool")


def _verify_indirect(node: Indirect) -> None:
    _require(node.value.dtype in INT_TYPES, f"index of type {node.value.dtype}")


_VERIFY: Final[dict[type, Callable[[Any], None]]] = {
    Op: _verify_op,
    Reduce: _verify_reduce,
    Load: _verify_load,
    Indirect: _verify_indirect,
}


def _verify_store(store: Store, dtypes: dict[str, DType], modes: dict[str, str]) -> None:
    _require(store.buffer in dtypes, f"unknown buffer {store.buffer}")
    _require(modes[store.buffer] != "in", f"store to input {store.buffer}")
    _require(store.mode in ("assign", *COMBINING), f"store mode {store.mode}")
    _require(store.inner or not store.value.inner, "outer-level store of an inner value")
    expected = compute_type(dtypes[store.buffer])
    _require(store.value.dtype == expected, f"store of {store.value.dtype} where {expected}")


# --- printing


def print_kernel(kernel: Kernel) -> str:
    """The kernel as Python-like text, one line per node, levels as comments."""
    parameters = [f"{b.name}: {b.dtype}" for b in kernel.buffers]
    parameters += [f"{s}: i64" for s in kernel.sizes]
    lines = [f"# {origin}" for origin in kernel.origins]
    lines.append(f"def {kernel.name}({', '.join(parameters)}):")
    indent = "    "
    for var in kernel.outer:
        lines.append(f"{indent}for {var.symbol} in parallel({var.extent}):")
        indent += "    "
    for var in kernel.inner:
        lines.append(f"{indent}# inner: {var.symbol} in range({var.extent})")
    body = _body_lines(kernel)
    lines += [f"{indent}{text:<50}  # {'inner' if inner else 'outer'}" for text, inner in body]
    return "\n".join(lines) + "\n"


def _body_lines(kernel: Kernel) -> list[tuple[str, bool]]:
    names: dict[int, str] = {}
    lines: list[tuple[str, bool]] = []
    for node in kernel.nodes:
        if isinstance(node, Const):
            names[node.id] = f"{node.dtype}({node.value!r})"
            continue
        names[node.id] = f"v{len(lines)}"
        lines.append((f"{names[node.id]} = {_PRINT[type(node)](node, names)}", node.inner))
    for store in kernel.stores:
        place, value = f"{store.buffer}[{store.index}]", names[store.value.id]
        value = value if store.mode == "assign" else f"{store.mode}({place}, {value})"
        lines.append((f"{place} = {value}", store.inner))
    return lines


def _print_load(node: Load, names: dict[int, str]) -> str:
    text = f"{node.buffer}[{node.index}]"
    return text if node.mask is None else f"{text} if {names[node.mask.id]} else {node.other!r}"


def _print_op(node: Op, names: dict[int, str]) -> str:
    arguments = ", ".join(names[a.id] for a in node.args)
    suffix = f", {node.dtype}" if OPS[node.name].result == "given" else ""
    return f"{node.name}({arguments}{suffix})"


def _print_indirect(node: Indirect, names: dict[int, str]) -> str:
    flags = f"{', wrap' if node.wrap else ''}{', check' if node.check else ''}"
    guard = "" if node.mask is None else f" if {names[node.mask.id]}"
    return f"{node.symbol} = index({names[node.value.id]}, {node.size}{flags}){guard}"


_PRINT: Final[dict[type, Callable[[Any, dict[int, str]], str]]] = {
    IndexValue: lambda n, names: f"i64({n.expr})",
    Indirect: _print_indirect,
    Load: _print_load,
    Op: _print_op,
    Reduce: lambda n, names: f"{n.kind}({names[n.value.id]})",
}
