"""Which inputs of a graph without gradients are passed in a form that is kept between calls.

Place in the pipeline: around the compiler of ATen graphs, in `pipeline.py`; the forms themselves
are `runtime/kept_forms.py`::

    before:  call([x, weight])     linear(x, weight)          # oneDNN copies the weight each time
    after:   call([x, weight])     linear(x, packed)          # packed at the first call

Products of one matrix with several parameters become one product with their concatenation
(`rewrites/merge_products.py`), which is a form, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch.fx import GraphModule

from weft._torch import FakeTensor
from weft.aot import graph as aten_graph
from weft.aot.graph import AtenGraph
from weft.aot.rewrites.merge_products import Merged, merge_products
from weft.aot.views import Unsupported
from weft.config import config
from weft.graph_call import GraphCall
from weft.passes.eliminate_dead_code import eliminate_dead_code
from weft.runtime.kept_forms import Derived, KeptForms, bytes_kept
from weft.runtime.watched_storages import can_be_watched, can_watch
from weft.shapes.graph_facts import aten_facts, captured_facts, graph_facts, note, note_graph
from weft.shapes.graph_nodes import copied_graph

Compile = Callable[[AtenGraph], GraphCall]

MERGED_PART: Final = 0.5
"""Of the memory for forms, what merged parameters of one graph may take."""


def compile_with_kept_forms(
    gm: AtenGraph, compiler: Compile, captured: GraphModule, written: Collection[int],
    examples: Sequence[object],
) -> GraphCall:
    """Compile a graph, and pass it forms of the parameters and buffers that it does not write,
    where it can use them."""
    states = states_of(captured, written)
    if not states or not is_wanted():
        return compiler(gm)
    n_inputs = len(gm.graph.find_nodes(op="placeholder"))
    gm, merged = _with_merged_products(gm, states, examples)
    _mark(gm, [*states, *range(n_inputs, n_inputs + len(merged))])
    run = compiler(gm)
    packed = {i: rows for i, rows in run.weights if i in states or i >= n_inputs}
    if not packed and not merged:
        return run
    derived = _derived(merged) if merged else None
    return replace(run, call=KeptForms(run.call, packed, n_inputs, derived))


def states_of(gm: GraphModule, written: Collection[int]) -> frozenset[int]:
    """The inputs of a captured graph that are parameters or buffers which it does not write."""
    inputs = enumerate(gm.graph.find_nodes(op="placeholder"))
    return frozenset(i for i, n in inputs if captured_facts(n).is_state and i not in written)


def is_wanted() -> bool:
    """Whether the settings allow forms, and this PyTorch can say when they are out of date. (What
    is stored on disk has none.)"""
    allowed = config.freezing or config.kept_forms_mb > 0
    return allowed and not config.store_entries and can_watch()


def _mark(gm: AtenGraph, states: Collection[int]) -> None:
    """Say in an ATen graph that these inputs may be passed in a kept form."""
    inputs = gm.graph.find_nodes(op="placeholder")
    for i in states:
        note(inputs[i], replace(aten_facts(inputs[i]), is_state=True))


def _with_merged_products(
    gm: AtenGraph, states: frozenset[int], examples: Sequence[object]
) -> tuple[AtenGraph, list[Merged]]:
    """The graph with merged products, if there are any whose parameters can be watched now."""
    usable = {i for i in states if i < len(examples) and _is_watchable(examples[i])}
    if graph_facts(gm).lowered is None or config.check_numerics or len(usable) < 2:
        return gm, []
    changed = aten_graph.make(copied_graph(gm.graph))
    note_graph(changed, graph_facts(gm))
    try:
        merged = merge_products(changed, usable)
    except Unsupported:
        return gm, []
    if not merged or not _fits(changed, len(merged)):
        return gm, []
    eliminate_dead_code(changed)
    return changed, merged


def _is_watchable(example: object) -> bool:
    if not isinstance(example, torch.Tensor) or isinstance(example, FakeTensor):
        return False
    return can_be_watched(example)


def _fits(gm: AtenGraph, n_merged: int) -> bool:
    """Whether the merged parameters leave room for other forms."""
    values = [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")[-n_merged:]]
    size = sum(v.numel() * v.element_size() for v in values)
    limit = config.kept_forms_mb << 20
    return config.freezing or (size <= MERGED_PART * limit and size <= limit - bytes_kept())


def _derived(merged: Sequence[Merged]) -> Derived:
    def derive(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [form(inputs) for form in merged]

    return Derived(derive, tuple(dict.fromkeys(i for form in merged for i in form.parts)))
