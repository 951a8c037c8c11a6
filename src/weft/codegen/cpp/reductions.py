"""Prints reductions as C++ statements: accumulators, one step of them, their results.

Place in the pipeline: beside `nodes.py`; `loop_nests.py` puts loops between these statements::

    auto acc2 = Sum::begin<float, L, P>();
    … acc2 = Sum::next(acc2, v1, n); …
    const auto v2 = Sum::fold(acc2);
"""

from __future__ import annotations

from math import prod
from typing import final

from weft.codegen.cpp.nodes import NodeWriter
from weft.codegen.cpp.plan import STRIP_TRIPS, position_type
from weft.codegen.cpp.spelling import C_TYPE, REDUCTION
from weft.codegen.ir.dtypes import FLOAT_TYPES
from weft.codegen.ir.loop_ir import Reduce, flat_position, stride


@final
class ReductionWriter:
    """Prints the reductions of one function."""

    def __init__(self, nodes: NodeWriter) -> None:
        self.nodes, self.indices = nodes, nodes.indices
        self.plan, self.kernel = nodes.plan, nodes.kernel

    def begin(self, reduction: Reduce) -> str:
        """An accumulator of no elements."""
        shape = "L, P" if self._is_wide(reduction) else "1, 1"
        kinds = C_TYPE[reduction.value.dtype]
        if reduction.kind.startswith("arg"):
            kinds += f", {C_TYPE[position_type(self.kernel, reduction)]}"
        return f"{REDUCTION[reduction.kind]}::begin<{kinds}, {shape}>()"

    def accumulate(self, reduction: Reduce) -> None:
        """Add the present element, or vector of them, to `acc…`."""
        wide = self._is_wide(reduction)
        value = self.nodes.wide(reduction.value) if wide else self.nodes.use(reduction.value)
        arguments = [f"acc{reduction.id}", value]
        if reduction.kind.startswith("arg"):
            arguments.append(self._position(position_type(self.kernel, reduction), wide))
        arguments.append("n" if self.plan.vector_inner else "Full{}")
        call = f"{REDUCTION[reduction.kind]}::next({', '.join(arguments)})"
        self.nodes.text.line(f"acc{reduction.id} = {call};")

    def finish(self, reduction: Reduce, accumulator: str) -> None:
        """Define the reduction's value."""
        kind = REDUCTION[reduction.kind]
        is_arg = reduction.kind.startswith("arg")
        if self.plan.vector_inner or (is_arg and not self._is_wide(reduction)):
            self.nodes.define(reduction, f"{kind}::fold({accumulator})")
        elif is_arg:
            self.nodes.define(reduction, f"{kind}::positions({accumulator})")
        else:
            self.nodes.define(reduction, accumulator)

    def is_flushed(self, reduction: Reduce) -> bool:
        """Whether it is a float sum so long that it needs partial sums."""
        if reduction.kind != "sum" or reduction.dtype not in FLOAT_TYPES:
            return False
        extents = [v.extent for v in self.kernel.inner]
        if not all(isinstance(e, int) for e in extents):
            return True
        trips = prod(e for e in extents if isinstance(e, int))
        return trips > STRIP_TRIPS * (self.plan.step if self.plan.vector_inner else 1)

    def _is_wide(self, reduction: Reduce) -> bool:
        """Whether the accumulator has one value per lane."""
        return self.plan.vector_inner or self.plan.varies(reduction.value)

    def _position(self, dtype: str, wide: bool) -> str:
        """The row-major position in the inner domain, for argmax and argmin."""
        flat = flat_position(self.kernel.inner)
        text = f"scalar<{C_TYPE[dtype]}>({self.indices.index(flat)})"
        if not wide:
            return text
        if not self.plan.vector_inner:
            return f"splat<L, P>({text})"
        assert self.plan.vector is not None
        step = stride(flat, self.plan.vector.symbol)
        assert step is not None
        return f"steps<L, P>({text}, {self.indices.index(step)})"
