"""`map` and `scan` over tensors as Python loops: the graph holds them unrolled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft._torch import tree_flatten, tree_unflatten


def mapped(function: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """`function(x, *args)` for the slices of `xs` along dimension 0, results stacked."""
    leaves, spec = tree_flatten(xs)
    results = []
    for index in range(leaves[0].shape[0]):
        results.append(function(tree_unflatten([leaf[index] for leaf in leaves], spec), *args))
    return stacked(results, 0)


def scanned(
    combine_fn: Callable[..., Any], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False
) -> Any:
    """`carry, y = combine_fn(carry, x)` along a dimension: the last carry, and the ys stacked."""
    leaves, spec = tree_flatten(xs)
    carry, results = init, []
    steps = range(leaves[0].shape[dim])
    for index in reversed(steps) if reverse else steps:
        part = tree_unflatten([leaf.select(dim, index) for leaf in leaves], spec)
        carry, y = combine_fn(carry, part)
        results.append(y)
    if reverse:
        results.reverse()
    return carry, stacked(results, 0)


def stacked(results: list[Any], dim: int) -> Any:
    """The same tree as each result, its tensors stacked."""
    flat = [tree_flatten(result) for result in results]
    spec = flat[0][1]
    columns = zip(*[leaves for leaves, _ in flat], strict=True)
    return tree_unflatten([torch.stack(column, dim) for column in columns], spec)
