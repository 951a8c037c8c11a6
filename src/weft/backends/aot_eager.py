"""The `aot_eager` backend: the functional ATen graph, run by ATen without code generation.

It shows whether a wrong result comes from aot or from the code generator.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import GraphModule

from weft.aot.pipeline import compile_aot
from weft.aot.python_code import compile_calls
from weft.graph_call import GraphCall


def aot_eager(gm: GraphModule, example_inputs: Sequence[object]) -> GraphCall:
    """Trace to ATen, run the passes, call operator by operator."""
    return compile_aot(gm, example_inputs, compile_calls)
