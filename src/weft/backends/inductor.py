"""The `inductor` backend, the default: aot, passes, then weft's own code generator.

`compile_fx(gm, example_inputs)` is the same as a function, for custom backends that end with it::

    def my_backend(gm, example_inputs):
        my_passes(gm)
        return weft.compile_fx(gm, example_inputs)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from weft.aot.graph import AtenGraph
from weft.aot.pipeline import compile_aot
from weft.aot.runtime_wrapper import Boxed
from weft.codegen import compile_graph
from weft.codegen.lowering import LOWERINGS
from weft.config import check_options, config


def inductor(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a captured graph; `options` are settings of `weft.config` for this graph."""
    with config.patch(check_options(options or {})):
        return compile_aot(gm, example_inputs, _compiler, lowered=LOWERINGS.__contains__)


def _compiler(gm: AtenGraph) -> Boxed:
    return compile_graph(gm, options=config)


def compile_fx(
    gm: GraphModule, example_inputs: Sequence[Any], **options: Any
) -> Callable[..., Any]:
    """Compile a torch-level graph with weft's default compiler.

    Returns a callable of the graph's inputs. `gm` need not come from weft: any `GraphModule` of
    torch functions, methods and modules will do; its parameters are read at each call.
    """
    compiled = inductor(gm, example_inputs, options=options)
    if not getattr(compiled, "boxed", False):
        return compiled

    def call(*inputs: Any) -> Any:
        return compiled(list(inputs))

    return call
