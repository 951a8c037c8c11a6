"""Formulas that are too large for one kernel become memory.

Place in the pipeline: used by `graph.py` after each node. The sum of 2,000 tensors would be one
kernel with 2,000 arguments, for which the C++ compiler takes minutes: its time grows faster than
the kernel. Cut into pieces, it takes a time that is proportional to the program's length::

    total = x0 + x1 + … + x1999        buf0 = x0 + … + x31;  buf1 = buf0 + x32 + … + x62;  …
"""

from __future__ import annotations

from typing import Final

from weft.codegen.ir.loop_ir import Load, Op
from weft.codegen.lowering.materialization import evaluate_formula
from weft.codegen.values import Lazy, Value
from weft.config import config

MOST_OPERATORS: Final = 128
MOST_LOADS: Final = 96
"""Of one formula. A kernel that stores and loads a value again every 128 operators is no slower."""


def is_too_large(value: Value) -> bool:
    """Whether a formula has more operators, loads or buffers than a kernel should have.

    Counts of operators and loads are upper bounds, because what a formula uses twice is counted
    twice: they are corrected here, so that a formula is only seldom evaluated for this.
    """
    impl = value.impl
    if not isinstance(impl, Lazy):
        return False
    buffers = config.max_fusion_buffers
    if impl.cost <= MOST_OPERATORS and impl.reads <= buffers:
        return False
    nodes = evaluate_formula(value).nodes
    loads = [n for n in nodes if isinstance(n, Load)]
    operators = sum(isinstance(n, Op) for n in nodes)
    named = len({n.buffer for n in loads})
    impl.cost, impl.reads = min(impl.cost, operators), min(impl.reads, named)
    return operators > MOST_OPERATORS or len(loads) > MOST_LOADS or named > buffers
