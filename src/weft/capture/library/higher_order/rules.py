"""Rules for operators that take functions: checkpoint, cond, loops, scans, flex_attention.

Place in the pipeline: see `weft.capture.library`; the functions are captured by `subgraphs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch import fx
from torch.utils.checkpoint import checkpoint

from weft._torch import (
    apply_function,
    associative_scan_function,
    cond_operator,
    flex_attention_operator,
    map_function,
    pytree,
    scan_function,
    while_loop,
    while_loop_operator,
)
from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import FALSE, NONE, is_none
from weft.capture.core.graph import version_of
from weft.capture.library.functions.functions import polyfill, rule
from weft.capture.library.higher_order import (
    attention_polyfills,
    loop_polyfills,
)
from weft.capture.library.subgraphs.held_objects import held_object
from weft.capture.library.subgraphs.subgraphs import Subgraph, capture_subgraph
from weft.capture.library.tensors.tensor import TensorValue
from weft.shapes.graph_facts import captured_facts

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_CHECKPOINT = frozenset({"use_reentrant", "preserve_rng_state", "determinism_check", "debug",
                         "early_stop", "context_fn"})


@rule(checkpoint)
def _checkpoint(tx: Interpreter, function: SymbolicValue, /, *args: SymbolicValue,
                **kwargs: SymbolicValue) -> SymbolicValue:
    """A checkpoint becomes one node, whose backward pass runs the subgraph again."""
    settings = {k: v for k, v in kwargs.items() if k in _CHECKPOINT}
    reentrancy = settings.get("use_reentrant", NONE)
    reentrant = is_none(reentrancy) or reentrancy.truth(tx)
    rest = {k: v for k, v in kwargs.items() if k not in _CHECKPOINT}
    if not torch.is_grad_enabled():
        return tx.call(function, [*args], rest)
    before = _versions(tx)
    body = capture_subgraph(tx, function, [*args], rest, hides_grad_mode=reentrant)
    if any(before.get(n, _version_before(n, v)) != v for n, v in _versions(tx).items()):
        raise graph_break("checkpoint", "a function that writes to outside tensors")
    if reentrant:
        if not _same_gradients(args, body.examples()):
            raise graph_break("checkpoint", "one with use_reentrant=True whose gradients differ")
        settings["use_reentrant"] = FALSE
    named = {k: _setting(tx, v) for k, v in settings.items()}
    node = tx.builder.call(checkpoint, (body.module_node(tx), *body.inputs), named,
                           body.examples(), tx.stack())
    return body.result(tx, node)


def _same_gradients(args: Sequence[SymbolicValue], results: object) -> bool:
    """Whether the reentrant form of checkpoint gives the same gradients as the other form.

    Its results all need gradients if an argument does, and none otherwise.
    """
    examples = [arg.example for arg in args if isinstance(arg, TensorValue)]
    tensors = [r for r in pytree.tree_leaves(results) if isinstance(r, torch.Tensor)]
    return any(e.requires_grad for e in examples) and all(r.requires_grad for r in tensors)


def _versions(tx: Interpreter) -> dict[fx.Node, int]:
    """How often each tensor of the outer graph was written.

    Eager repeats what a checkpointed function writes (counters of batch norm) when it runs the
    function again in the backward.
    """
    return {n: version_of(n.meta.get("example_value")) for n in tx.builder.graph.nodes}


def _version_before(node: fx.Node, now: int) -> int:
    """How often a tensor of the outer graph that came in with the function had been written."""
    before = captured_facts(node).version
    return now if before is None else before


def _setting(tx: Interpreter, value: SymbolicValue) -> object:
    """A setting as an argument of the node; if it is no constant, as part of the module."""
    setting = held_object(tx, value, "checkpoint")
    if not callable(setting):
        return setting
    node = tx.builder.graph.create_node("get_attr", tx.builder.add_module(_Held(setting)), (), {})
    node.meta["example_value"] = setting
    return node


class _Held(torch.nn.Module):
    """A function as a module, so that a graph can refer to it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: object) -> Any:
        """Return the function's result."""
        return self.function(*args)


@rule(cond_operator)
def _cond_operator(tx: Interpreter, pred: SymbolicValue, true_fn: SymbolicValue,
                   false_fn: SymbolicValue, operands: SymbolicValue) -> SymbolicValue:
    return _cond(tx, pred, true_fn, false_fn, operands)


@rule(torch.cond)
def _cond(tx: Interpreter, pred: SymbolicValue, true_fn: SymbolicValue, false_fn: SymbolicValue,
          operands: SymbolicValue | None = None) -> SymbolicValue:
    """Both branches as subgraphs with the same inputs and the same kind of outputs."""
    arguments = [] if operands is None else tx.unpack(operands)
    if not isinstance(pred, TensorValue):
        return tx.call(true_fn if pred.truth(tx) else false_fn, arguments, {})
    branches = [capture_subgraph(tx, function, arguments, {}) for function in (true_fn, false_fn)]
    _check_alike(*branches)
    inputs = list(dict.fromkeys(node for body in branches for node in body.inputs))
    modules = []
    for body in branches:
        _take_inputs(body, inputs)
        modules.append(body.module_node(tx))
    node = tx.builder.call(
        cond_operator, (pred.proxy(tx), *modules, tuple(inputs)), {},
        _of_either(branches[0].examples(), [n.meta["example_value"] for n in inputs]), tx.stack())
    return branches[0].result(tx, node)


def _of_either(examples: Sequence[torch.Tensor], operands: Sequence[object]) -> tuple[object, ...]:
    """Example outputs that depend on all operands for autograd, not only on those of the first
    branch."""
    tensors = [o for o in operands if isinstance(o, torch.Tensor) and o.requires_grad]
    if not (torch.is_grad_enabled() and tensors):
        return tuple(examples)
    return tuple(apply_function(_Chosen, examples, *tensors))


class _Chosen(torch.autograd.Function):
    """An autograd function whose gradients for unused operands are zeros, as those of a branch
    are."""

    @staticmethod
    def forward(ctx: Any, examples: Sequence[torch.Tensor], *operands: torch.Tensor) -> Any:
        ctx.save_for_backward(*operands)
        return tuple(e.new_empty_strided(e.size(), e.stride()) for e in examples)

    @staticmethod
    def backward(ctx: Any, *gradients: object) -> Any:
        return (None, *(torch.zeros_like(o) for o in ctx.saved_tensors))


def _check_alike(first: Subgraph, second: Subgraph) -> None:
    kinds = [[(e.shape, e.dtype, e.device) for e in body.examples()] for body in (first, second)]
    if kinds[0] != kinds[1]:
        raise graph_break("data-dependent-branch", "cond whose branches give different tensors")


def _take_inputs(body: Subgraph, inputs: list[Any], fresh: int = 0) -> None:
    """Give the subgraph exactly these inputs in this order, after `fresh` ones of its own."""
    graph = body.module.graph
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    old = dict(zip(body.inputs, placeholders[fresh:], strict=True))
    after = list(graph.nodes)[fresh]
    with graph.inserting_before(after):
        for index, node in enumerate(inputs):
            argument = graph.create_node("placeholder", f"arg{index}", (), {}, f"arg{index}")
            argument.target = argument.name
            argument.meta["example_value"] = node.meta.get("example_value")
            if node in old:
                old[node].replace_all_uses_with(argument)
    for placeholder in old.values():
        graph.erase_node(placeholder)
    body.module.recompile()


@rule(while_loop_operator)
def _while_loop_operator(
    tx: Interpreter, cond_fn: SymbolicValue, body_fn: SymbolicValue, carried: SymbolicValue,
    additional: SymbolicValue, /,
) -> SymbolicValue:
    if tx.unpack(additional):
        raise graph_break("unknown-operation", "a while_loop with additional inputs")
    return _while_loop(tx, cond_fn, body_fn, carried)


@rule(while_loop)
def _while_loop(tx: Interpreter, cond_fn: SymbolicValue, body_fn: SymbolicValue,
                carried_inputs: SymbolicValue) -> SymbolicValue:
    """Condition and body as subgraphs of the carried tensors and of what else they use."""
    carried = tx.unpack(carried_inputs)
    if torch.is_grad_enabled() and any(
            isinstance(v, TensorValue) and v.example.requires_grad for v in carried):
        raise graph_break("unknown-operation", "a while_loop that needs gradients")
    parts = [capture_subgraph(tx, function, carried, {}, fresh=True)
             for function in (cond_fn, body_fn)]
    result = next(n for n in parts[0].module.graph.nodes if n.op == "output")
    result.args = (result.args[0][0],)  # the operator takes the condition itself
    kinds = [(e.shape, e.dtype) for e in parts[1].examples()]
    if kinds != [(v.example.shape, v.example.dtype) for v in carried
                 if isinstance(v, TensorValue)]:
        raise graph_break("unknown-operation", "a while_loop that changes shapes or dtypes")
    inputs = list(dict.fromkeys(node for part in parts for node in part.inputs))
    modules = []
    for part in parts:
        _take_inputs(part, inputs, len(carried))
        modules.append(part.module_node(tx))
    first = tuple(value.proxy(tx) for value in carried)
    node = tx.builder.call(while_loop_operator, (*modules, first, tuple(inputs)),
                           {}, parts[1].examples(), tx.stack())
    return parts[1].result(tx, node)


polyfill(map_function, loop_polyfills.mapped)
polyfill(scan_function, loop_polyfills.scanned)
polyfill(associative_scan_function, loop_polyfills.associatively_scanned)
polyfill(flex_attention_operator, attention_polyfills.flex_attention)
