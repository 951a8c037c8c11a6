"""Which results of a graph eager could differentiate one after the other.

Place in the pipeline: used by `joint.py` before the backward is recorded. A backward frees what the
autograd nodes on its way have saved, and a second one that reaches such a node raises. Results that
share no such node are independent::

    a, b = x.sin(), x.exp()         # groups {a}, {b}:  a.sum().backward(); b.sum().backward()
    h = x.exp(); a, b = h * h, h    # one group
    a, b = x + 1, x * x             # only b is freeing: a.sum().backward() as often as one likes
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from weft.aot.autograd_graph import nodes_behind

Groups = tuple[frozenset[int], ...]


def independent_groups(values: Mapping[int, torch.Tensor]) -> tuple[Groups, frozenset[int]]:
    """The keys of `values` in groups that share saved tensors, () if there is one group; and the
    keys of those whose backward frees some."""
    if len(values) < 2:
        nodes = nodes_behind(value.grad_fn for value in values.values())
        return (), frozenset(values if any(map(_saves, nodes)) else ())
    search = _Search()
    for key, value in values.items():
        search.add(key, value.grad_fn)
    groups = search.groups()
    freeing = frozenset(k for k, value in values.items() if search.saves(value.grad_fn))
    return groups if len(groups) > 1 else (), freeing


class _Search:
    """Walks over the nodes behind each result, each once, however many results reach it."""

    def __init__(self) -> None:
        self._first: dict[Any, int] = {}
        """The result from which a node was first reached."""
        self._saving: set[Any] = set()
        """Nodes that save tensors, or that lead to such a node."""
        self._group: dict[int, set[int]] = {}

    def add(self, key: int, start: object) -> None:
        self._group[key] = {key}
        for node in self._reach(key, start):
            behind = any(n in self._saving for n, _ in node.next_functions)
            if behind or _saves(node):
                self._saving.add(node)

    def _reach(self, key: int, start: Any) -> list[Any]:
        """The nodes that no other result has reached, deepest first; joins the results that reach
        shared ones."""
        reached, waiting = [], [(start, False)]
        while waiting:
            node, is_done = waiting.pop()
            if is_done:
                reached.append(node)
            elif node is None or self._first.get(node) == key:
                continue
            elif node in self._first:
                if node in self._saving:
                    self._join(key, self._first[node])
            else:
                self._first[node] = key
                waiting.append((node, True))
                waiting.extend((n, False) for n, _ in node.next_functions)
        return reached

    def _join(self, left: int, right: int) -> None:
        ours, theirs = self._group[left], self._group[right]
        if ours is not theirs:
            ours |= theirs
            for key in theirs:
                self._group[key] = ours

    def saves(self, node: Any) -> bool:
        """Whether a node that was reached saves tensors, or leads to one that does."""
        return node in self._saving

    def groups(self) -> Groups:
        """The groups of results that share saved tensors."""
        return tuple(dict.fromkeys(frozenset(self._group[key]) for key in self._group))


def _saves(node: Any) -> bool:
    names = ("_raw_saved_tensors",) if isinstance(node, torch.autograd.function.FunctionCtx) else (
        _saved_names(node.__class__))
    return any(_has_tensor(getattr(node, name)) for name in names)


@cache
def _saved_names(kind: type) -> tuple[str, ...]:
    """The names of saved tensors in their raw form: a hook that unpacks one may compute a whole
    checkpoint again (and reading a saved symbolic number would fix it)."""
    return tuple(n for n in dir(kind) if n.startswith("_raw_saved_"))


def _has_tensor(raw: object) -> bool:
    if isinstance(raw, (tuple, list)):
        return any(map(_has_tensor, raw))
    return raw is not None and getattr(raw, "data", True) is not None  # (not told: assumed)
