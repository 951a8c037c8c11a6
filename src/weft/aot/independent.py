"""Which results of a graph eager could differentiate one after the other.

Place in the pipeline: asked by `joint.py` before the backward is recorded. A backward frees what
the autograd nodes that it walks have saved; a second one that meets such a node is refused. Results
that share no such node are independent::

    a, b = x.sin(), x.exp()         # groups {a}, {b}:  a.sum().backward(); b.sum().backward()
    h = x.exp(); a, b = h * h, h    # one group
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

Groups = tuple[frozenset[int], ...]


def independent_groups(values: Mapping[int, torch.Tensor]) -> Groups:
    """The keys of `values`, those together that share saved tensors; () if all do."""
    if len(values) < 2:
        return ()
    groups: list[tuple[set[int], set[Any]]] = []
    for key, value in values.items():
        keys, nodes = {key}, _saving_nodes(value.grad_fn)
        for other in [g for g in groups if not nodes.isdisjoint(g[1])]:
            groups.remove(other)
            keys |= other[0]
            nodes |= other[1]
        groups.append((keys, nodes))
    return tuple(frozenset(keys) for keys, _ in groups) if len(groups) > 1 else ()


def _saving_nodes(start: Any) -> set[Any]:
    """The autograd nodes behind `start` that have saved tensors."""
    seen: set[Any] = set()
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(n for n, _ in node.next_functions)
    return {n for n in seen if _saves(n)}


def _saves(node: Any) -> bool:
    try:
        if isinstance(node, torch.autograd.function.FunctionCtx):
            return bool(node.saved_tensors)  # type: ignore[attr-defined]
        return any(_has_tensor(getattr(node, name)) for name in _saved_names(node.__class__))
    except RuntimeError:  # written since
        return True


@cache
def _saved_names(kind: type) -> tuple[str, ...]:
    """Those of tensors, which have a raw form: reading a symbolic number would fix it."""
    names = dir(kind)
    return tuple(n for n in names if n.startswith("_saved_") and f"_raw{n}" in names)


def _has_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_has_tensor, value))
    return isinstance(value, torch.Tensor)
