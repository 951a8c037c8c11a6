"""ATen operators as loop IR, by family.

`registry.py` has the table and the context that a lowering gets; `pointwise.py`, `views.py`,
`reductions.py`, `variance.py`, `scans.py`, `indexing.py`, `scatters.py`, `borders.py`,
`windows.py`, `creation.py` and `normalization.py` fill it; `extern.py` calls ATen for the rest;
`graph.py` walks the graph.
Importing this package loads all families.
"""

from weft.codegen.lowering import (  # noqa: F401  (filling the table)
    attention,
    borders,
    convolution,
    creation,
    indexing,
    normalization,
    pointwise,
    products,
    reductions,
    scans,
    scatters,
    variance,
    views,
    windows,
)
from weft.codegen.lowering.graph import GraphLowering
from weft.codegen.lowering.registry import LOWERINGS, LoweringContext, lowering

__all__ = ["LOWERINGS", "GraphLowering", "LoweringContext", "lowering"]
