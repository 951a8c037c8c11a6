"""Branches on data that depends on the inputs alone: a guard tests the condition before the graph
runs.

Place in the pipeline: beside `known_data.py`. `if mask.all()` on a mask from outside need not break
the graph. The nodes from the inputs to the condition are run once while capturing, and again, as a
guard, in each call. One artifact serves all contents (and sizes) with the same answers::

    outcome(tx, node)        # True, False; None: the condition needs more than the inputs
    add_input_tests(tx)      # at the end: the guards
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from weft.capture.core.data_checks import ApartTest, InputTest
from weft.capture.core.graph import GraphBuilder, GraphInput
from weft.capture.core.source import Source
from weft.capture.library.tensors.known_data import can_run, inputs_of, run_steps, steps_of
from weft.config import config
from weft.interrupts import surface
from weft.shapes.contents import LARGEST
from weft.shapes.graph_facts import captured_facts

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_MOST_TESTS: Final = 16
_MOST_STEPS: Final = 100
_MOST_STEPS_OF_COMPARISONS: Final = 20
_MOST_ELEMENTS: Final = 1 << 16
"""Limits: tests of one capture, operations of each, and the size of the inputs that it reads."""


def outcome(tx: Interpreter, node: Any, *, compares: bool = False) -> bool | None:
    """The truth of a node's result, in this call and in all calls that the guards accept.

    compares: it tells whether tensors are equal, as programs check of their arguments and caches:
    the answer rarely changes, whatever the data.
    """
    tx.data.n_asked += 1
    if node in tx.data.input_tests:
        return tx.data.input_tests[node].answer
    if not config.data_dependent or not tx.policy.may_test_inputs:
        return None
    if len(tx.data.input_tests) >= _MOST_TESTS or not isinstance(tx.builder, GraphBuilder):
        return None
    steps = steps_of(tx, node, can_run) if node.graph is tx.builder.graph else None
    if steps is None or len(steps) > (_MOST_STEPS_OF_COMPARISONS if compares else _MOST_STEPS):
        return None
    inputs = inputs_of(tx, steps)
    if not inputs or not all(map(_is_small if compares else _is_cheap, inputs)):
        return None
    try:
        answer = bool(run_steps(tx, steps)[node])
    except Exception as error:  # noqa: BLE001  of the program: it comes again there
        surface(error)
        return None
    writes = any(captured_facts(step).has_effect for step in steps)
    sources = tuple(graph_input.source for graph_input in inputs)
    tx.data.input_tests[node] = InputTest(
        _function(inputs, steps, node), sources, writes, answer, tx.line())
    return answer


def _is_small(graph_input: GraphInput) -> bool:
    """Whether testing the input in every call costs little."""
    example = graph_input.example
    if graph_input.source.is_drawn:  # after the guards
        return False
    return not isinstance(example, torch.Tensor) or example.numel() <= _MOST_ELEMENTS


def _is_cheap(graph_input: GraphInput) -> bool:
    """Whether testing the input in every call costs little and mostly gives the same outcome.

    This holds for masks and indices, and for what the program keeps between calls (flags, time
    grids, noise schedules) except parameters. Computed data goes either way: break the graph.
    """
    example = graph_input.example
    if not _is_small(graph_input):
        return False
    if not isinstance(example, torch.Tensor):
        return isinstance(example, int | float)
    if not example.dtype.is_floating_point and not example.dtype.is_complex:
        return True
    few = example.numel() <= LARGEST and not example.requires_grad
    return (few or example.numel() == 1) and _is_kept(graph_input.source)


def _is_kept(source: Source) -> bool:
    """Whether an object, a closure or a module holds it between calls."""
    steps = [source]
    while steps[-1].base is not None:
        steps.append(steps[-1].base)
    in_object = any(step.accessor[0] in ("attr", "instance_dict") for step in steps)
    return in_object or steps[-1].accessor[0] != "local"


def _function(inputs: list[GraphInput], steps: list[fx.Node], result: fx.Node) -> fx.GraphModule:
    """The steps as a graph module."""
    graph = fx.Graph()
    copies = {graph_input.node: graph.placeholder(graph_input.node.name) for graph_input in inputs}
    for step in steps:
        if step.op != "placeholder":
            args, named = fx.node.map_arg((step.args, step.kwargs), copies.__getitem__)
            copies[step] = graph.create_node(step.op, step.target, args, named)
    graph.output(copies[result])
    return fx.GraphModule(torch.nn.Module(), graph, "InputTest")


def add_input_tests(tx: Interpreter) -> None:
    """Add the guards that the branches of this capture go the same way, and that what is known of
    inputs still holds where the graph has written to others."""
    tx.policy.note_input_tests(len(tx.data.input_tests))
    for test in tx.data.input_tests.values():
        tx.guards.data(test, test.sources, test.line)
    for written, read in tx.data.read_behind_writes.items():
        apart = ApartTest(written, tuple(graph_input.source for graph_input in read))
        tx.guards.data(apart, apart.sources, None)
