"""Prints scalar nodes as C++ statements: loads, operators, indices.

Place in the pipeline: above `indices.py`; `loop_nests.py` puts loops around it.

A node becomes one line, `const auto v3 = add(v1, v2);`: a vector if it differs between the lanes of
the vectorised loop, else a scalar that is widened where it meets vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from weft.codegen.cpp.indices import IndexWriter
from weft.codegen.cpp.plan import BACKWARDS, SHUFFLED_STEPS, Plan
from weft.codegen.cpp.scope import Scope
from weft.codegen.cpp.spelling import C_TYPE, FUNCTION, literal
from weft.codegen.ir.loop_ir import Const, IndexValue, Indirect, Load, Node, Op, Reduce
from weft.codegen.ir.scalar_ops import COMPARISONS
from weft.codegen.ir.visitor import NodeVisitor
from weft.codegen.source_text import SourceText
from weft.shapes.algebra.expr import symbol_of


@final
class NodeWriter(NodeVisitor[None]):
    """Prints the nodes of one function."""

    def __init__(self, plan: Plan, text: SourceText) -> None:
        self.plan, self.kernel, self.text = plan, plan.kernel, text
        self.indices = IndexWriter(plan, text)
        self.scope = Scope()
        self._divisors: set[int] = set()  # numbers of the call that vectors are divided by

    def define(self, node: Node, value: str) -> None:
        """Print the definition of a node."""
        self.text.line(f"const auto v{node.id} = {value};")
        self.scope.defined.add(node.id)

    def write(self, node: Node) -> None:
        """Define one node's value, if that is needed here."""
        if self.scope.needs(node) and node.id not in self.plan.settled:
            self.visit(node)
        else:
            self.scope.defined.add(node.id)

    def write_outer(self, wanted: Callable[[Node], bool]) -> None:
        """The `wanted` outer-level nodes that are not yet defined and whose operands are."""
        for node in self.kernel.nodes:
            if not (node.inner or node.id in self.scope.defined or isinstance(node, Reduce)
                    ) and wanted(node):
                self.write(node)

    def declare_divisors(self, dependent: set[int]) -> None:
        """The divisors of vectors that are known before all loops: division by a power of two
        becomes a product (as compilers do for constants)."""
        self._divisors = {
            n.args[1].id for n in self.kernel.nodes
            if isinstance(n, Op) and n.name == "div" and self.plan.varies(n)
            and n.args[1].id not in dependent and not isinstance(n.args[1], Const)}
        for number in sorted(self._divisors):
            self.text.line(f"const auto d{number} = divisor(v{number});")

    # -- uses ----------------------------------------------------------------------------------

    def use(self, node: Node) -> str:
        """A node's value as it is: a vector if it varies, else a scalar."""
        node = self.scope.same(node)
        if node.id in self.scope.known:
            return f"scalar({str(self.scope.known[node.id]).lower()})"
        if isinstance(node, Const):
            return f"scalar<{C_TYPE[node.dtype]}>({literal(node.value, node.dtype)})"
        return f"v{node.id}"

    def wide(self, node: Node) -> str:
        """A node's value as a vector."""
        node = self.scope.same(node)
        text = self.use(node)
        varies = self.plan.varies(node) and node.id not in self.scope.known
        return text if varies else f"splat<L, P>({text})"

    def _narrow(self, node: Node, wide: bool) -> str:
        """An operand of a comparison of 32-bit indices."""
        if node.id in self.plan.narrow:
            return self.wide(node) if wide else self.use(node)
        if isinstance(node, Const):
            text = f"scalar<int32_t>({int(node.value)})"
        else:
            text = f"limited({self.use(node)})"
        return f"splat<L, P>({text})" if wide else text

    # -- definitions ---------------------------------------------------------------------------

    def const(self, node: Const) -> None:
        """Constants are printed where they are used."""
        self.scope.defined.add(node.id)

    def index_value(self, node: IndexValue) -> None:
        """The value of an index expression."""
        indices = self.indices
        kind = "int32_t" if node.id in self.plan.narrow else "int64_t"
        start = f"scalar<{kind}>({indices.index(node.expr, node.indirect)})"
        if not self.plan.varies(node):
            self.define(node, start)
            return
        step = indices.step(node.expr, node.indirect)
        if step is not None:
            self.define(node, f"steps<L, P>({start}, {indices.index(step)})")
        elif places := indices.places(node.expr, node.indirect):
            self.define(node, f"cast<{kind}>({places})")
        else:
            self.define(node, f"make<{kind}, L, P>({indices.per_lane(node.expr, node.indirect)})")

    def indirect(self, node: Indirect) -> None:
        """An index from memory, checked: each lane's in an array, and all as a vector."""
        wide = self.plan.varies(node)
        flags = f"{str(node.wrap).lower()}, {str(node.check).lower()}"
        spelled = self.wide if wide else self.use
        used = "" if node.mask is None else f", {spelled(node.mask)}"
        value, count = spelled(node.value), "n" if wide else "Full{}"
        name = self.indices.names[symbol_of(node.symbol).name]
        self.text.line(f"Indices<{'S' if wide else '1'}> {name};")
        size = self.indices.index(node.size)
        call = f"resolve<{flags}>({name}, {value}, {size}{used}, {count})"
        self.text.line(f"if (!{call}) {{ a.error = 1; return; }}")
        shape = "L, P" if wide else "1, 1"
        self.define(node, f"load<{shape}>({name}.at, Full{{}})")

    def op(self, node: Op) -> None:
        """An operator on vectors or scalars."""
        wide = self.plan.varies(node)
        spelled = self.wide if wide else self.use
        known = self.scope.known
        if node.name == "divisor":
            used, value = spelled(node.args[0]), spelled(node.args[1])
            count = "n" if wide else "Full{}"
            self.text.line(f"if (has_zero({used}, {value}, {count})) {{ a.error = 2; return; }}")
            self.define(node, value)
            return
        if node.name == "where" and node.args[0].id in known:
            self.define(node, spelled(node.args[1 if known[node.args[0].id] else 2]))
            return
        if node.name in COMPARISONS and any(a.id in self.plan.narrow for a in node.args):
            arguments = ", ".join(self._narrow(a, wide) for a in node.args)
        elif wide and node.name == "div" and node.args[1].id in self._divisors:
            arguments = f"{self.wide(node.args[0])}, d{node.args[1].id}"
        else:
            arguments = ", ".join(spelled(a) for a in node.args)
        name = FUNCTION.get(node.name, node.name)
        if node.name == "cast":
            name = f"cast<{C_TYPE[node.dtype]}>"
        self.define(node, f"{name}({arguments})")

    # -- loads ---------------------------------------------------------------------------------

    def load(self, node: Load) -> None:
        """A load, under its mask if it has one."""
        mask = None if node.mask is None else self.scope.same(node.mask)
        if mask is not None and mask.id in self.scope.known:
            loaded = self.scope.known[mask.id]
            self.define(node, self._unmasked_load(node) if loaded else self._other(node))
        elif mask is None or not self.plan.varies(mask):
            self.define(node, self._conditional(mask, node))
        else:
            self.define(node, self._masked_load(node))

    def _masked_load(self, node: Load) -> str:
        """A load under a mask that differs between the lanes."""
        assert node.mask is not None
        address = self.indices.address(node)
        arguments = f"{self.use(node.mask)}, {literal(node.other, node.dtype)}"
        if self.indices.step(node.index, node.indirect) == 1:
            return f"load_masked<L, P>({address}, n, {arguments})"
        return self._gathered(node, f", {arguments}")

    def _conditional(self, mask: Node | None, node: Load) -> str:
        """A load under a mask that is the same in all lanes."""
        text = self._unmasked_load(node)
        return text if mask is None else f"value({self.use(mask)}) ? {text} : {self._other(node)}"

    def _other(self, node: Load) -> str:
        """What is loaded where the mask is false."""
        text = f"scalar<{C_TYPE[node.dtype]}>({literal(node.other, node.dtype)})"
        return f"splat<L, P>({text})" if self.plan.varies(node) else text

    def _unmasked_load(self, node: Load) -> str:
        """An element, or a vector of them: adjacent ones, one repeated, or gathered."""
        tile = self.plan.tile
        address = self.indices.address(node)
        if not self.plan.varies(node):
            return f"load1({address})"
        if tile is not None and node.id in tile.loads:
            return f"load<L, P>(tile{node.id} + ({self.indices.within_tile(tile)}), n)"
        step = self.indices.step(node.index, node.indirect)
        if step == 1:
            return f"load<L, P>({address}, n)"
        if step == 0:
            return f"splat<L, P>(load1({address}))"
        if step in SHUFFLED_STEPS:
            return f"load_every<{step}, L, P>({address}, n)"
        if step == BACKWARDS:
            return f"load_backwards<L, P>({address}, n)"
        return self._gathered(node, "")

    def _gathered(self, node: Load, mask: str) -> str:
        """Elements that are not adjacent: loaded by a vector of positions if there is one, else
        lane by lane."""
        buffer, kind = self.indices.buffers[node.buffer], self.indices.memory[node.buffer]
        places = self.indices.start_and_offsets(node.index, node.indirect)
        if places is not None:
            start, offsets = places
            return f"gather_at<L, P>({buffer} + ({start}), {offsets}, n{mask})"
        at = self.indices.per_lane(node.index, node.indirect, buffer)
        return f"gather{'_masked' * bool(mask)}<L, P, {kind}>({at}, n{mask})"
