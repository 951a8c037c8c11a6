"""Kernels of symbolic sizes for several files of tests."""

from __future__ import annotations

from weft.codegen.ir.loop_ir import Kernel, KernelBuilder, LoopVar
from weft.shapes.algebra.expr import loop_index, symbol

ROWS, COLUMNS = symbol("s0", 2), symbol("s1", 2)


def repeat() -> Kernel:
    """A matrix three times: its indices are divided by both sizes."""
    b, i, j = loop_index("i0", 3), loop_index("i1", ROWS), loop_index("i2", COLUMNS)
    builder = KernelBuilder((LoopVar(b, 3), LoopVar(i, ROWS), LoopVar(j, COLUMNS)), ())
    value = builder.load("in0", "f32", i * COLUMNS + j)
    builder.store("out0", "f32", (b * ROWS + i) * COLUMNS + j, value)
    return builder.build("repeat")
