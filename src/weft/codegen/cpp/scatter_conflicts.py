"""Scatter conflicts: several points of a kernel change one element, in an order that must be kept.

Place in the pipeline: used by `plan.py`; `points.py` prints what this says. A point that combines
its value with what is in memory (`index_add`) conflicts with another one at the same element. The
order of the two is kept if one thread does both:

- without conflicts (a scatter along the rows of a matrix) points are shared among threads as ever;
- else every thread goes through all points, but changes only the rows that it owns. An index read
  from memory says which row that is, so a thread computes what goes into its rows and nothing else;
- else (the rows differ between the lanes of a vector) there is one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.codegen.ir.loop_ir import Indirect, Kernel, LoopVar, Store
from weft.shapes.algebra.bounds import lower_bound, upper_bound
from weft.shapes.algebra.expr import IntExpr, split_linear


def combining(kernel: Kernel) -> list[Store]:
    """The stores that read what they change."""
    return [s for s in kernel.stores if s.mode != "assign"]


def is_apart(store: Store, points: Sequence[LoopVar]) -> bool:
    """Whether different points always change different elements, whatever the indices in memory
    are.

    They do if each stride is longer than all that the shorter strides and the rest can reach.
    """
    index: IntExpr = store.index
    steps: list[tuple[int, IntExpr]] = []
    for variable in points:
        parts = split_linear(index, variable.symbol)
        if parts is None or not isinstance(parts[0], int):
            return False
        steps.append((parts[0], variable.extent))
        index = parts[1]
    reach: IntExpr = upper_bound(index) - lower_bound(index)
    for step, extent in sorted(steps, key=lambda item: item[0]):
        if not isinstance(reach, int) or step <= reach:
            return False
        reach = reach + step * (extent - 1)
    return True


def owners(kernel: Kernel, is_known: Callable[[Indirect], bool]) -> dict[int, Indirect]:
    """For each combining store (by position), an index from memory that is known at a point and
    says which row the store changes; {} if one of the stores has none."""
    indices: dict[int, Indirect] = {}
    for number, store in enumerate(kernel.stores):
        if store.mode != "assign":
            index = next((i for i in store.indirect if is_known(i)), None)
            if index is None:
                return {}
            indices[number] = index
    return indices
