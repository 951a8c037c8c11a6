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

A row that does not fit is looped over, once for each loop nest (`ir/loop_nests.py`): values of
earlier ones are computed again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from weft.codegen.ir.loop_ir import IndexValue, Kernel, Op, Reduce, reduction_depths
from weft.codegen.ir.loop_nests import LoopNest, loop_nests
from weft.codegen.source_text import SourceText
from weft.codegen.triton.indices import IndexWriter
from weft.codegen.triton.nodes import NodeWriter
from weft.codegen.triton.programs import ProgramWriter
from weft.codegen.triton.reductions import ReductionWriter
from weft.codegen.triton.spelling import POINTER
from weft.codegen.triton.stores import StoreWriter
from weft.codegen.triton.tiling import Axis, Tiling
from weft.shapes.algebra.expr import Expr

HEADER: Final = """\
import triton
import triton.language as tl
import weft.codegen.triton.prelude as p


"""

_NUMBER: Final = re.compile(r"^k\d+_(?=[A-Za-z_])")
"""The number of a kernel in its graph, at the end of its name."""

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
    return _KernelWriter(kernel, tiling, narrow, dict(multiples)).write(_NUMBER.sub("", name))


@final
class _KernelWriter:
    """Writes one kernel."""

    def __init__(
        self, kernel: Kernel, tiling: Tiling, narrow: bool | None, powers: Mapping[str, int]
    ) -> None:
        self.kernel, self.tiling, self.narrow, self.powers = kernel, tiling, narrow, powers
        self.text = SourceText("    ", depth=1, braces=False)
        self.indices = IndexWriter(kernel, tiling, narrow, powers)
        self.programs = ProgramWriter(self.indices, self.text)
        self.nodes = NodeWriter(self.indices, self.text)
        self.stores = StoreWriter(self.nodes)

    def write(self, name: str) -> TritonSource:
        """The text of a kernel of this name, and how it is called."""
        programs = self.programs.write()
        row = self.tiling.axis("r")
        if row is None:
            self._pointwise()
        elif self.tiling.persistent:
            self._whole_rows(ReductionWriter(self.nodes, row))
        else:
            self._looped_rows(ReductionWriter(self.nodes, row), row)
        sizes, reciprocals = self.kernel.sizes, self.programs.reciprocals()
        parameters = [*self.indices.pointers.values(), *map(str, sizes), *reciprocals]
        head = f"@triton.jit\ndef {name}({', '.join(parameters)}):\n"
        numbers = number_names(self.kernel)
        pointers = [POINTER[b.dtype] for b in self.kernel.buffers]
        size_types = ["i32" if self.narrow and str(size) not in numbers else "i64"
                      for size in sizes]
        return TritonSource(
            name,
            HEADER + head + "\n".join(self.text.lines) + "\n",
            (*pointers, *size_types, *["i32"] * len(reciprocals)),
            len(pointers),
            programs,
            self.tiling.num_warps,
            multiples=tuple(
                (i, self.powers[str(size)]) for i, size in enumerate(sizes, len(pointers))
                if str(size) in self.powers),
            divisors=tuple(self.programs.divisors),
        )

    def _pointwise(self) -> None:
        for node in self.kernel.nodes:
            self.nodes.write(node)
        self._write_stores()

    def _whole_rows(self, reductions: ReductionWriter) -> None:
        """Reductions whose row is one tile."""
        for node in self.kernel.nodes:
            if isinstance(node, Reduce):
                reductions.write(node)
            else:
                self.nodes.write(node)
        self._write_stores()

    def _write_stores(self, *, inner: bool = True) -> None:
        for store in self.kernel.stores:
            if inner or not store.inner:
                self.stores.write(store)

    def _looped_rows(self, reductions: ReductionWriter, row: Axis) -> None:
        """One loop over the row for each nest."""
        depths = reduction_depths(self.kernel)
        nests, last = loop_nests(self.kernel, depths), max(depths.values(), default=0)
        for depth in range(last + 1):
            for node in self.kernel.nodes:
                if not node.inner and not isinstance(node, Reduce) and depths[node.id] == depth:
                    self.nodes.write(node)
            if depth < len(nests):
                eviction = "evict_first" if depth == last else "evict_last"
                self._loop(nests[depth], reductions, row, eviction)
        self._write_stores(inner=False)

    def _loop(
        self, nest: LoopNest, reductions: ReductionWriter, row: Axis, eviction: str
    ) -> None:
        for reduction in nest.reductions:
            reductions.begin(reduction)
        head = f"for rstart in range(0, {self.indices.text(row.extent)}, {row.block}):"
        with self.nodes.row_loop(head, eviction):
            self.programs.axis(row, "rstart")
            for node in nest.nodes:
                self.nodes.write(node)
            for reduction in nest.reductions:
                reductions.accumulate(reduction)
            for store in nest.stores:
                self.stores.write(store)
        for reduction in nest.reductions:
            reductions.finish(reduction)
