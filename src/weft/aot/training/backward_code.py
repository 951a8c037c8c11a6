"""The backward of a compiled function's autograd node for the ordinary run, as source written for
one graph.

Place in the pipeline: made by `autograd_function.py` once per graph. A small backward takes less
time than the questions about it: who asks for which gradients, which tangents are absent, whether
autograd batches or differentiates. Nearly always the answer is that of `loss.backward()`, so the
written function checks for that alone, and leaves every other run to the general one::

    def backward(ctx, *grads):
        run = compiled.get(ALL)
        if (not (is_plain(grads[0]) or turns_out_plain(grads[0])) or ...
                or is_executed(ctx.next_functions[1][0]) is not True):
            return general(ctx, grads)
        args = [*ctx.saved_tensors]
        ctx.maybe_clear_saved_tensors()
        args.append(fit0(grads[0]))
        found = run.call(args)
        return (None, found[0])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from weft._frame import is_lazy, is_plain_run, note_plain_run
from weft._torch import (
    are_functorch_transforms_active,
    is_any_autocast_enabled,
    is_executed,
    is_legacy_batchedtensor,
    keeps_graph,
)
from weft.aot.late_reads import all_hold
from weft.aot.training.function_spec import FunctionSpec
from weft.aot.training.node_forms import WHOLE, NodeForm
from weft.aot.training.tangents import TangentLayout
from weft.runtime.generated_code import load

General = Callable[[Any, Sequence[Any]], Any]


def backward_of(spec: FunctionSpec, form: NodeForm, general: General) -> Callable[..., object]:
    """The function's backward: ordinary runs at once, others by `general(ctx, tangents)`.

    Graphs whose backward depends on more than that, and nodes that are not the only one of their
    graph, have the general one only.
    """
    if form is not WHOLE or spec.nodes.inner.layers or spec.nodes.groups:
        return lambda ctx, *grads: general(ctx, grads)
    scope: dict[str, Any] = {
        "general": general, "compiled": spec.gradients.backwards.compiled, "ALL": (None, None),
        "requests": spec.gradients.requests, "edges": spec.gradients.edges,
        "is_executed": is_executed, "is_plain": is_plain_run, "turns_out_plain": _turns_out_plain,
        "release": spec.inputs.release, "keeps_graph": keeps_graph, "late": spec.late,
        "all_hold": all_hold,
        **{f"fit{k}": layout.fit_own for k, layout in spec.layouts.items()},
    }
    return load(_text(spec), "<weft autograd backward>", scope, "backward")


def _turns_out_plain(*tangents: Any) -> bool:
    """Whether a run differentiates nothing and batches nothing, and its tangents are tensors with
    their numbers in memory. The next ones like it are known by a call of C."""
    if (torch.is_grad_enabled() or are_functorch_transforms_active() or is_any_autocast_enabled()
            or not all(map(_is_plain_tensor, tangents))):
        return False
    note_plain_run(*tangents)
    return True


def _is_plain_tensor(tangent: Any) -> bool:
    is_tensor = type(tangent) is torch.Tensor
    return is_tensor and not (is_lazy(tangent) or is_legacy_batchedtensor(tangent))


def _text(spec: FunctionSpec) -> str:
    questions = " or ".join(_questions(spec))
    lines = [
        "def backward(ctx, *grads):",
        "run = compiled.get(ALL)",
        f"if {questions}: return general(ctx, grads)",
        "args = [*ctx.saved_tensors]" if spec.nodes.freeing else "args = []",
        "ctx.maybe_clear_saved_tensors()",
        "release(ctx)" if spec.inputs.held else "",
        "keeps_graph() or ctx.watched.release()" if spec.inputs.watched else "",
        "args += ctx.symbols" if spec.outputs.symbols else "",
        *(f"args.append({_fitted(k, layout)})" for k, layout in spec.layouts.items()),
        "found = run.call(args)",
        f"return ({', '.join(_placed(spec))},)",
    ]
    return "\n    ".join(line for line in lines if line)


def _questions(spec: FunctionSpec) -> Iterator[str]:
    """What holds of runs that are not ordinary."""
    tangents = ", ".join(f"grads[{k}]" for k in spec.layouts)
    yield f"not (is_plain({tangents}) or turns_out_plain({tangents}))"
    yield "run is None or run.is_other or run.in_stages"
    if spec.late:
        yield "not all_hold(late)"
    if spec.inputs.watched:
        yield "ctx.watched.changed()"
    if spec.droppable:
        yield 'hasattr(ctx, "dropped")'
    leaf = spec.gradients.requests.leaf
    if spec.gradients.count == 1:
        return  # the node would not run if nobody wanted the one gradient
    if leaf is None:
        yield "requests.of(ctx.next_functions, edges) is not None"
    else:  # an exception tells it, which `requests` avoids after the first time
        yield "requests.by_exception"
        yield f"is_executed(ctx.next_functions[{spec.gradients.edges[leaf]}][0]) is not True"


def _fitted(k: int, layout: TangentLayout) -> str:
    """The expression of a tangent as the backward takes it."""
    return f"grads[{k}].contiguous()" if layout.is_small_row_major else f"fit{k}(grads, {k})"


def _placed(spec: FunctionSpec) -> list[str]:
    """For each input of the graph, the expression of its gradient."""
    placed = ["None"] * spec.gradients.count
    for k, i in enumerate(spec.gradients.inputs):
        placed[i] = f"found[{k}]"
    return placed
