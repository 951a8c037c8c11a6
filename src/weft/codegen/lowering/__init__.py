"""ATen operators as loop IR, by family.

Place in the pipeline: the first step of `compile_graph`; `graph.py` walks the graph, `registry.py`
has the table and the context of a lowering, `terms.py` the notation of scalar formulas. Importing
this package fills the table. By role:

- elementwise: `pointwise`, `creation`, `views`;
- over several elements: `reductions`, `variance`, `normalization`, `scans`, `windows`, `borders`,
  `indexing`, `scatters`;
- library calls: `extern`, `products`, `convolution`, `attention`, `epilogues`;
- what becomes memory, and how it is laid out: `materialization`, `due_formulas`.
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
