"""The `inductor` backend, the default: aot, passes, then weft's own code generator.

`compile_fx(gm, example_inputs)` is the same as a function, for custom backends that end with it::

    def my_backend(gm, example_inputs):
        my_passes(gm)
        return weft.compile_fx(gm, example_inputs)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from weft.aot.graph import AtenGraph
from weft.aot.pipeline import compile_aot
from weft.aot.plain_sizes import with_plain_sizes
from weft.codegen import compile_graph
from weft.codegen.lowering import LOWERINGS
from weft.codegen.targets import get_ready
from weft.config import check_options, config
from weft.diagnostics import checks
from weft.errors import BadValue
from weft.graph_call import GraphCall
from weft.runtime.cuda_graphs import CudaGraphs
from weft.shapes.graph_facts import graph_facts, note_graph
from weft.shapes.symnode import extents


def inductor(
    gm: GraphModule, example_inputs: Sequence[object], *,
    options: Mapping[str, object] | None = None,
) -> GraphCall:
    """Compile a captured graph; `options` are settings of `weft.config` for this graph."""
    with config.patch(check_options(options or {})):
        get_ready({t.device.type for t in example_inputs if isinstance(t, torch.Tensor)})
        return compile_aot(gm, example_inputs, _compiler, lowered=LOWERINGS.__contains__)


def _compiler(gm: AtenGraph) -> GraphCall:
    device = _capturable_device(gm) if config.cudagraphs else None
    if device is not None:
        _return_at_once(gm)  # a recording cannot pause between stages
    if checks.wanted("aot"):
        _return_at_once(gm)
        examples = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]
        run = checks.checked(
            "aot", lambda: compile_graph(gm).graph_call(), partial(with_plain_sizes, gm),
            lambda: [checks.like(value) for value in examples], compile_fx)
    else:
        run = compile_graph(gm).graph_call()
    if device is None:
        return run
    return replace(run, call=CudaGraphs(run.call, device, _changing_inputs(gm)))


def _return_at_once(gm: AtenGraph) -> None:
    """Let the graph return all outputs together."""
    note_graph(gm, replace(graph_facts(gm), stages=()))


def _capturable_device(gm: AtenGraph) -> torch.device | None:
    """The GPU that all tensors of the graph are on, if a CUDA graph can record its work."""
    devices: set[torch.device] = set()
    for node in gm.graph.nodes:
        if _SYNCHRONISING & set(getattr(node.target, "tags", ())):
            return None
        value = node.meta.get("val")
        tensors = value if isinstance(value, list | tuple) else [value]
        devices |= {t.device for t in tensors if isinstance(t, torch.Tensor)}
    device = devices.pop() if len(devices) == 1 else None
    return device if device is not None and device.type == "cuda" else None


def _changing_inputs(gm: AtenGraph) -> tuple[int, ...]:
    """Positions of the inputs that have symbolic sizes or strides."""
    inputs = [n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"]
    return tuple(
        i for i, value in enumerate(inputs)
        if isinstance(value, torch.Tensor)
        and any(isinstance(n, torch.SymInt) for n in extents(value))
    )


_SYNCHRONISING = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
"""Operators that wait for the GPU, which a capture forbids."""


def compile_fx(
    gm: GraphModule, example_inputs: Sequence[object], **options: object
) -> Callable[..., Any]:
    """Compile a torch-level graph with weft's default compiler.

    Returns a callable of the graph's inputs. `gm` need not come from weft: any `GraphModule` of
    torch functions, methods and modules will do; its parameters are read at each call.
    """
    if not isinstance(gm, GraphModule):
        raise BadValue(f"compile_fx takes a torch.fx.GraphModule, got {type(gm).__name__}",
                       do="use weft.compile for functions and modules")
    return inductor(gm, example_inputs, options=options).taking_inputs()
