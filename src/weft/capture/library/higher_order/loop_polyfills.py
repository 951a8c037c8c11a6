"""`map`, `scan` and `associative_scan` over tensors as Python: the graph holds them unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft._torch import tree_flatten, tree_unflatten


def mapped(function: Callable[..., object], xs: object, *args: object) -> object:
    """`function(x, *args)` for the slices of `xs` along dimension 0, results stacked."""
    leaves, spec = tree_flatten(xs)
    results = []
    for index in range(leaves[0].shape[0]):
        results.append(function(tree_unflatten([leaf[index] for leaf in leaves], spec), *args))
    return stacked(results, 0)


def scanned(
    combine_fn: Callable[..., Any], init: object, xs: object, *, dim: int = 0, reverse: bool = False
) -> object:
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


def associatively_scanned(
    combine_fn: Callable[..., object], xs: object, dim: int, reverse: bool = False,
    combine_mode: str = "pointwise",
) -> object:
    """`y[i] = combine_fn(y[i - 1], x[i])` along a dimension, in a logarithmic number of steps.

    With `combine_mode="generic"`, `combine_fn` may use whole slices, so it is mapped over them.
    """
    leaves, spec = tree_flatten(xs)
    combine_fn = torch.vmap(combine_fn) if combine_mode == "generic" else combine_fn

    def combine(left: Sequence[object], right: Sequence[object]) -> list[Any]:
        combined = combine_fn(tree_unflatten(left, spec), tree_unflatten(right, spec))
        return tree_flatten(combined)[0]

    parts = [torch.movedim(leaf, dim, 0) for leaf in leaves]
    parts = [part.flip(0) for part in parts] if reverse else parts
    parts = _prefixes(combine, parts)
    parts = [part.flip(0) for part in parts] if reverse else parts
    return tree_unflatten([torch.movedim(part, 0, dim) for part in parts], spec)


def _prefixes(combine: Callable[..., list[Any]], parts: list[Any]) -> list[Any]:
    """All prefix combinations: first of the pairs, which gives every second one, then the others
    from them (Ladner and Fischer, 1980)."""
    n = parts[0].shape[0]
    if n < 2:
        return parts
    odd = _prefixes(combine, combine([p[: n - 1 : 2] for p in parts], [p[1::2] for p in parts]))
    if n == 2:
        return [torch.cat([p[:1], o]) for p, o in zip(parts, odd, strict=True)]
    rest = combine([o[: (n - 1) // 2] for o in odd], [p[2::2] for p in parts])
    even = [torch.cat([p[:1], r]) for p, r in zip(parts, rest, strict=True)]
    return [_alternating(e, o) for e, o in zip(even, odd, strict=True)]


def _alternating(even: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
    """Rows 0, 2, 4, … and 1, 3, 5, … in one tensor."""
    pairs = torch.stack([even[: odd.shape[0]], odd], 1).flatten(0, 1)
    return pairs if even.shape[0] == odd.shape[0] else torch.cat([pairs, even[-1:]])


def stacked(results: Sequence[object], dim: int) -> object:
    """A tree like each result, whose tensors are the results' tensors stacked."""
    flat = [tree_flatten(result) for result in results]
    spec = flat[0][1]
    columns = zip(*[leaves for leaves, _ in flat], strict=True)
    return tree_unflatten([torch.stack(column, dim) for column in columns], spec)
