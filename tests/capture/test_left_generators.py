"""Generators that nobody finishes: those that only compare errors when freed stay in the graph."""

from __future__ import annotations

from collections.abc import Iterator

import torch

import weft


def numbers() -> Iterator[int]:
    i = 0
    try:
        while True:
            yield i
            i += 1
    except IndexError:
        return


def noisy(log: list[str]) -> Iterator[int]:
    try:
        yield 1
    finally:
        log.append("closed")


def test_specific_except_is_no_reason_to_break() -> None:
    weft.reset()
    compiled = weft.compile(lambda x: x + next(numbers()), backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.ones(2))
    assert weft.stats()["graph_breaks"] == 0


def test_finally_runs() -> None:
    def program(x: torch.Tensor, log: list[str]) -> torch.Tensor:
        return x + next(noisy(log))

    log: list[str] = []
    compiled = weft.compile(program, backend="eager")
    assert torch.equal(compiled(torch.ones(2), log), torch.full((2,), 2.0))
    assert log == ["closed"]
