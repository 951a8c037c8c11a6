"""The `aot_eager_decomposed` backend: exactly the graph that the code generator gets, run by ATen.

It shows whether a wrong result comes from a decomposition or from the code generator.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import GraphModule

from weft.aot.pipeline import compile_aot
from weft.aot.python_code import compile_calls
from weft.codegen.lowering import LOWERINGS
from weft.graph_call import GraphCall


def aot_eager_decomposed(gm: GraphModule, example_inputs: Sequence[object]) -> GraphCall:
    """As `aot_eager`, with the operators decomposed that the code generator has no lowering for."""
    return compile_aot(gm, example_inputs, compile_calls, lowered=LOWERINGS.__contains__)
