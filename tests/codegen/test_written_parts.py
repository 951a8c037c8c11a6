"""Writes of parts of tensors: in the caller's own memory, or inside kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.diagnostics import events

Program = Callable[..., Any]


def by_positions(cache, at, new):
    cache[:, :, at] = new
    return cache.sum()


def by_slices_of_items(cache, at, new):
    cache[1][:, 3:4] = new[1]
    cache[0, :, at] = new[0] * 2
    return cache[1].sum(-1), cache


def read_before_and_after(cache, at, new):
    old = (cache[:, :, 5:6] * 2).sum()
    cache[:, :, 5:6] = new
    cache[:, :, 7] = cache[:, :, 6] + old
    return old, cache[:, :, :8].sum(-1)


def accumulated(cache, at, new):
    cache.index_add_(2, at, new)
    cache.index_copy_(2, at + 1, new * 3)


def accumulated_at_inputs(cache, at, new):
    cache.index_add_(2, at, new)
    cache.index_copy_(2, at, new * 3)


def of_all_kinds(cache, at, new):
    flat = cache.view(-1)
    flat.scatter_(0, at, 2.0)
    flat.scatter_add_(0, at + 1, new.view(-1)[:1])
    flat.index_fill_(0, at + 2, 7.0)


def through_views(cache, at, new):
    cache.view(-1, 8)[at] = new.view(-1, 8)[:1]
    cache.transpose(1, 2)[:, at] = new.transpose(1, 2)
    cache.permute(2, 0, 1, 3)[3:4] = new.permute(2, 0, 1, 3)


def of_the_graph_itself(cache, at, new):
    made = cache * 2
    made.index_copy_(2, at, new)
    made.index_add_(2, at, new)
    return made, torch.zeros(16, 8).index_add(0, at, new[0, 0])


def with_an_old_value_kept(cache, at, new):
    kept = cache + 0
    kept[:, :, at] = new
    cache.index_copy_(2, at, new)
    return kept, kept.index_copy(2, at + 1, new), kept * 2


def from_itself(cache, at, new):
    cache[:, :, at] = cache[:, :, at + 1]
    cache[:, :, 9:10] = cache[:, :, 2:3] + new


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [
    by_positions, by_slices_of_items, read_before_and_after, accumulated, of_all_kinds,
    through_views, of_the_graph_itself, with_an_old_value_kept, from_itself,
])
def test_values_are_as_in_eager(program: Program, dynamic: bool) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 4, 16, 8), torch.tensor([5]), torch.randn(2, 4, 1, 8)]
    wanted = [t.clone() for t in given]
    memory = given[0].data_ptr()
    compiled = weft.compile(program, dynamic=dynamic)
    for _ in range(2):
        torch.testing.assert_close(compiled(*given), program(*wanted))
        torch.testing.assert_close(given, wanted)
    assert given[0].data_ptr() == memory
    assert given[0]._version > 0 or program is of_the_graph_itself


@pytest.mark.parametrize("program", [
    by_positions, by_slices_of_items, accumulated_at_inputs, through_views,
])
def test_a_written_cache_is_not_copied(program: Program) -> None:
    given = torch.randn(2, 4, 16, 8), torch.tensor([5]), torch.randn(2, 4, 1, 8)
    with events.collect() as seen:
        weft.compile(program)(*given)
    (source,) = (e.source for e in seen if e.kind == "output_code" and "def call" in e.source)
    writes = [line for line in source.splitlines() if "write_part" in line]
    assert writes
    assert all(".data, " in line for line in writes)
    assert f"{given[0].shape[0]}, 4, 16, 8) float32" not in source  # nothing of its size is made


def test_a_large_part_is_written_by_a_kernel() -> None:
    def program(cache, new):
        cache[:, :, 2:14] = new.sin()

    given = torch.randn(2, 4, 16, 8), torch.randn(2, 4, 12, 8)
    wanted = given[0].clone()
    program(wanted, given[1])
    weft.reset()
    weft.compile(program)(*given)
    torch.testing.assert_close(given[0], wanted)
    assert weft.stats()["extern_calls"] == 0


@pytest.mark.parametrize("part", [
    slice(3, 9), slice(-5, None), slice(1, None, 3), slice(None, None, 2), slice(4, 100), 6, -2,
])
def test_replaced_slices_are_inside_kernels(part: Any) -> None:
    """`slice_scatter` of a transposed tensor was left to ATen, which copies the tensor."""
    def program(x, y):
        z = torch.zeros_like(x).T + 1
        z[part] = (y * 2).T[part]
        return z * 3

    weft.reset()
    x, y = torch.randn(8, 12), torch.randn(8, 12)
    torch.testing.assert_close(weft.compile(program)(x, y), program(x, y))
    torch.testing.assert_close(weft.compile(program, dynamic=True)(x, y), program(x, y))
    assert weft.stats()["extern_calls"] == 0


def test_a_place_that_changes_warns_of_nothing() -> None:
    """torch.fx warned of a raw SymInt."""
    def put(rows, row, at):
        rows[at] = row

    weft.reset()
    compiled = weft.compile(put, dynamic=True)
    rows = torch.zeros(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for at in (2, 3, 1):
            compiled(rows, torch.full((3,), float(at)), at)
    assert rows[:, 0].tolist() == [0, 1, 2, 3]
