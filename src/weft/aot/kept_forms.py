"""Which inputs of a graph without gradients are passed in a form that is kept between calls.

Place in the pipeline: behind the compiler of ATen graphs, in `pipeline.py`; the forms themselves
are `runtime/kept_forms.py`::

    before:  call([x, weight])     linear(x, weight)          # oneDNN copies the weight each time
    after:   call([x, weight])     linear(x, packed)          # packed at the first call
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from torch.fx import GraphModule

from weft.aot.graph import AtenGraph
from weft.config import config
from weft.graph_call import GraphCall
from weft.runtime.kept_forms import KeptForms
from weft.runtime.watched_storages import can_watch
from weft.shapes.graph_facts import aten_facts, captured_facts, note


def states_of(gm: GraphModule, written: Collection[int]) -> frozenset[int]:
    """The inputs of a captured graph that are parameters or buffers which it does not write."""
    inputs = enumerate(gm.graph.find_nodes(op="placeholder"))
    return frozenset(i for i, n in inputs if captured_facts(n).is_state and i not in written)


def mark_states(gm: AtenGraph, states: frozenset[int]) -> frozenset[int]:
    """Say in an ATen graph that these inputs may be passed in a kept form; returns those that may.
    """
    if not states or not is_wanted():
        return frozenset()
    inputs = gm.graph.find_nodes(op="placeholder")
    for i in states:
        note(inputs[i], replace(aten_facts(inputs[i]), is_state=True))
    return states


def with_kept_forms(run: GraphCall, states: frozenset[int], n_inputs: int) -> GraphCall:
    """A compiled graph that gets forms of these inputs, where it can use them."""
    packed = {i: rows for i, rows in run.weights if i in states}
    if not packed:
        return run
    return replace(run, call=KeptForms(run.call, packed, n_inputs))


def is_wanted() -> bool:
    """Whether the settings allow forms, and this PyTorch can say when they are out of date. (What
    is stored on disk has none.)"""
    allowed = config.freezing or config.kept_forms_mb > 0
    return allowed and not config.store_entries and can_watch()
