"""The `aot_eager` backends: the functional ATen graph, run by ATen without code generation.

They show whether a wrong result comes from aot or from the code generator; `aot_eager_decomposed`
also decomposes the operators that the code generator has no lowering for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from weft.aot.pipeline import compile_aot
from weft.aot.python_code import compile_calls
from weft.codegen.lowering import LOWERINGS


def aot_eager(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Trace to ATen, run the passes, call operator by operator."""
    return compile_aot(gm, example_inputs, compile_calls)


def aot_eager_decomposed(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """As `aot_eager`, on the graph that the code generator would get."""
    return compile_aot(gm, example_inputs, compile_calls, lowered=LOWERINGS.__contains__)
