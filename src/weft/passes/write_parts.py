"""New values of inputs that differ in a small part become writes of that part.

Place in the pipeline: on graphs that become kernels. A functional graph returns the whole
new value of a caller's tensor that the program writes; a kernel that computes all of it would cost
more than the program's own write of a row. `codegen/calls/memory.py` lets the call write in place.

    before:  y = select_scatter(cache, row, 1, 3)      # the new value of the input `cache`
    after:   y = written_part(cache, [("select", 1, 3)], "copy.", row)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch.fx import GraphModule, Node

from weft.runtime.writes import NAMES, VIEWS, written_part
from weft.shapes.graph_facts import graph_facts
from weft.shapes.graph_nodes import add_node
from weft.shapes.symnode import certainly_equal

aten = torch.ops.aten

_SCATTERS = {
    aten.slice_scatter.default: ("slice", aten.slice.Tensor),
    aten.select_scatter.default: ("select", aten.select.int),
}
_WHOLE: dict[Any, str] = {VIEWS[name]: name for name in ("view", "transpose", "t", "permute")}
"""Views of all elements, which another one of the kind undoes."""
_SMALL = 4
"""A part is small if the whole has at least this many times its elements."""


@final
@dataclass(frozen=True, slots=True)
class _Write:
    """The write of a node: a part of `base`, reached by views."""

    base: Node
    path: tuple[tuple[Any, ...], ...]
    write: str
    args: tuple[Any, ...]
    keywords: dict[str, Any]


def write_parts(gm: GraphModule) -> bool:
    """Rewrite the steps from a written input to its new value, if all of them are such writes."""
    changed = False
    nodes: list[Node] = list(gm.graph.nodes)
    inputs = [n for n in nodes if n.op == "placeholder"]
    outputs: Any = nodes[-1].args[0]
    for k, i in graph_facts(gm).written:
        steps: list[tuple[Node, _Write]] = []
        at = outputs[k]
        while isinstance(at, Node) and at is not inputs[i] and (write := _write_of(at)) is not None:
            steps.append((at, write))
            at = write.base
        if at is inputs[i] and all(_is_small(node, step) for node, step in steps):
            for node, _ in reversed(steps):
                _replace(gm, node)
            changed |= bool(steps)
    return changed


def _write_of(node: Node) -> _Write | None:
    if node.op != "call_function":
        return None
    if node.target in NAMES:
        base, *rest = node.args
        return _Write(base, (), NAMES[node.target], tuple(rest), dict(node.kwargs))  # type: ignore[arg-type]
    if node.target in _WHOLE:
        return _write_of_view(node)
    if node.target not in _SCATTERS or node.kwargs:
        return None
    name, view = _SCATTERS[node.target]
    base, source, *where = node.args
    assert isinstance(base, Node) and isinstance(source, Node)
    path = ((name, *where),)
    inner = _write_of(source)
    if inner is not None and inner.base.target is view and inner.base.args == (base, *where):
        return _Write(base, path + inner.path, inner.write, inner.args, inner.keywords)
    return _Write(base, path, "copy.", (source,), {})


def _write_of_view(node: Node) -> _Write | None:
    """`view(write(view(base)))`, where the outer view undoes the inner one."""
    inner = _write_of(node.args[0]) if isinstance(node.args[0], Node) else None
    view = None if inner is None else inner.base
    if inner is None or view is None or view.target is not node.target or view.kwargs:
        return None
    base, *how = view.args
    if not isinstance(base, Node) or not _is_undone(base, view, node):
        return None
    path = ((_WHOLE[view.target], *how), *inner.path)
    return _Write(base, path, inner.write, inner.args, inner.keywords)


def _is_undone(base: Node, view: Node, back: Node) -> bool:
    """Whether `back` shows what `view` was made from."""
    there, again = base.meta["val"], back.meta["val"]
    if not certainly_equal(there.size(), again.size()):
        return False
    if view.target is aten.permute.default:
        order: Any = view.args[1]
        undo: Any = back.args[1]
        return all(order[d] % there.dim() == k for k, d in enumerate(undo))
    dims = [{d % there.dim() for d in node.args[1:]} for node in (view, back)
            if node.target is aten.transpose.int]
    return not dims or dims[0] == dims[1]


def _is_small(node: Node, step: _Write) -> bool:
    """Whether a copy writes only a small part. (An operator that scatters has no kernel.)"""
    if step.write != "copy.":
        return True
    whole, part = node.meta["val"].numel(), step.args[0].meta["val"].numel()
    return not (type(whole) is int and type(part) is int) or _SMALL * part <= whole


def _replace(gm: GraphModule, node: Node) -> None:
    step = _write_of(node)  # of the current base, which may have been replaced
    assert step is not None
    with gm.graph.inserting_before(node):
        replacement = add_node(
            gm.graph, written_part, (step.base, step.path, step.write, *step.args),
            step.keywords, node.meta)
    node.replace_all_uses_with(replacement)
    unused = [node]
    while unused:  # with the writes of views inside
        gone = unused.pop()
        if not gone.users and gone.op == "call_function":
            operands = gone.all_input_nodes
            gm.graph.erase_node(gone)
            unused += operands
