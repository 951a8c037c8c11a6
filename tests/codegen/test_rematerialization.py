"""Values that their readers compute again: the same results, and no memory for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.codegen import compile as compile_steps
from weft.codegen.access import analyse
from weft.codegen.scheduling import schedule
from weft.codegen.scheduling.groups import Group
from weft.diagnostics import events


def compiled_result(f: Callable[..., Any], *args: torch.Tensor) -> tuple[Any, str]:
    """What the compiled function gives, and what scheduling decided."""
    weft.reset()
    with events.collect() as seen:
        found = weft.compile(f)(*args)
    return found, "\n".join(e.text for e in seen if e.kind == "schedule")


WEIGHT = torch.randn(48, 48, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("rows", [64, 999])
def test_what_sums_and_later_readers_need_is_not_stored(rows: int) -> None:
    """As in the gradient of a batch norm; a library call lies between."""
    def f(x: torch.Tensor, y: torch.Tensor, g: torch.Tensor) -> Any:
        x, y, g = x.float(), y.float(), g.float()
        masked = torch.where(y > 0, g, 0.0) * 0.5 + 1
        centred = (x - 3) * 2 + y
        share = (masked * centred).sum(0, keepdim=True) @ WEIGHT
        return masked - centred * share, share

    halves = [torch.randn(rows, 48).bfloat16() for _ in range(3)]
    found, decisions = compiled_result(f, *halves)
    assert decisions.count("computed again by its 1 readers") == 2
    torch.testing.assert_close(found, f(*halves), rtol=1e-4, atol=1e-2)


def test_a_reader_that_stores_transposed_computes_in_its_own_order() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        x, y = x.float(), y.float()
        wide = (x - 3) * y + 1
        share = wide.sum(0, keepdim=True) @ WEIGHT
        return (wide * share).t().contiguous(), share

    halves = torch.randn(96, 48).bfloat16(), torch.randn(96, 48).bfloat16()
    found, decisions = compiled_result(f, *halves)
    assert "computed again by its 1 readers" in decisions
    torch.testing.assert_close(found, f(*halves), rtol=1e-4, atol=1e-2)


def test_what_a_formula_reads_is_known_when_its_own_kernel_is_gone(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's reads were the formula's, which other kernels have taken over, and emptied."""
    schedules = []

    def make_schedule(lowered: Any) -> Any:
        schedules.append(schedule.make_schedule(lowered))
        return schedules[-1]

    monkeypatch.setattr(compile_steps, "make_schedule", make_schedule)

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        wide = (x.float() - 3) * y.float() + 1
        return (wide * 2).t().contiguous(), (wide.t() + 5).contiguous()

    halves = torch.randn(96, 48).bfloat16(), torch.randn(96, 48).bfloat16()
    found, decisions = compiled_result(f, *halves)
    assert "computed again by its 1 readers" in decisions
    torch.testing.assert_close(found, f(*halves))
    groups = [step for step in schedules[0].steps if isinstance(step, Group)]
    for member in (m for group in groups for m in group.members):
        assert member.access.reads == analyse(member.access.definition).reads
    assert all(group.reads.keys() == {"in0", "in1"} for group in groups)


def test_results_and_values_of_many_operators_stay_in_memory() -> None:
    def f(x: torch.Tensor) -> Any:
        dear = x.exp().sin().tan().log().cos() + 1
        return dear - dear.sum(0) * dear, dear.sum(0)

    x = torch.rand(512, 33)
    found, decisions = compiled_result(f, x)
    assert "computed again" not in decisions
    torch.testing.assert_close(found, f(x), equal_nan=True, rtol=1e-4, atol=1e-4)
