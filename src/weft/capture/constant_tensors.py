"""Tensors that depend on nothing but constants: their data is known while capturing.

Place in the pipeline: asked by tensor values before a branch or a number taken from a tensor breaks
the graph or becomes a symbol. A causal mask compared with another one, or the rates of
`torch.linspace(0, 0.1, depth)`, are the same at each call::

    known = data_of(value.proxy(tx))        # a tensor, or None: it depends on inputs or chance
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

from weft.capture.graph import has_effect

_MOST_NODES: Final = 200
_MOST_ELEMENTS: Final = 1 << 22
"""More than that is not computed while capturing."""


def data_of(node: fx.Node) -> torch.Tensor | None:
    """The tensor that a node of the graph under construction gives at each call."""
    order = _ancestors(node)
    if order is None:
        return None
    values: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for each in order:
            try:
                values[each] = _run(each, values)
            except Exception:  # noqa: BLE001  eager raises it at each call: not our business
                return None
            if not _is_as_captured(values[each], each.meta["example_value"]):
                return None  # modes of the program (autocast, a default device) made it otherwise
    found = values[node]
    return found if isinstance(found, torch.Tensor) else None


def _ancestors(node: fx.Node) -> list[fx.Node] | None:
    """What leads to the node, in order; None where something else than constants does."""
    found: dict[fx.Node, None] = {}
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each in found:
            continue
        if not _is_pure(each) or len(found) == _MOST_NODES:
            return None
        found[each] = None
        waiting += each.all_input_nodes
    return [each for each in node.graph.nodes if each in found]


def _is_pure(node: fx.Node) -> bool:
    """A call whose result is not written to afterwards, of plain sizes."""
    if node.op not in ("call_function", "call_method") or has_effect(node):
        return False
    example = node.meta["example_value"]
    tensors = example if isinstance(example, (tuple, list)) else [example]
    return all(isinstance(t, torch.Tensor) and _is_plain(t) for t in tensors)


def _is_plain(fake: torch.Tensor) -> bool:
    return (not fake.is_inference() and fake._version == 0 and fake.device.type != "meta"
            and all(type(n) is int for n in fake.shape) and fake.numel() <= _MOST_ELEMENTS)


def _run(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
    if node.op == "call_method":
        assert isinstance(node.target, str)
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _is_as_captured(made: Any, example: Any) -> bool:
    if isinstance(made, torch.Tensor):
        return (made.dtype is example.dtype and made.device == example.device
                and tuple(made.shape) == tuple(example.shape))
    return isinstance(made, (tuple, list)) and all(map(_is_as_captured, made, example))
