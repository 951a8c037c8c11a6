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


def test_generators_left_by_zip() -> None:
    """`zip` ends with its shortest iterable and leaves the others, some within `yield from`."""

    def program(x: torch.Tensor, first: torch.nn.Module, second: torch.nn.Module) -> torch.Tensor:
        for p, q in zip(first.parameters(), second.parameters(), strict=False):
            x = x + p.sum() * q.sum()
        return x

    weft.reset()
    layers = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    weft.compile(program, backend="eager")(torch.ones(2), *layers)
    assert weft.stats()["graph_breaks"] == 0


def test_finally_runs_within_yield_from() -> None:
    def outer(log: list[str]) -> Iterator[int]:
        yield from noisy(log)

    log: list[str] = []
    weft.compile(lambda x: x + next(outer(log)), backend="eager")(torch.ones(2))
    assert log == ["closed"]


def test_finally_runs_where_the_generator_is_dropped() -> None:
    """It ran behind what followed: effects of the rest came before it."""
    def deleted(x: torch.Tensor, log: list[str]) -> torch.Tensor:
        generator = noisy(log)
        x = x + next(generator)
        del generator
        log.append("after")
        return x

    def left_by_break(x: torch.Tensor, log: list[str]) -> torch.Tensor:
        for i in noisy(log):
            log.append("inside")
            x = x + i
            break
        log.append("after")
        return x

    def left_by_an_error(x: torch.Tensor, log: list[str]) -> torch.Tensor:
        try:
            for _ in noisy(log):
                raise ValueError
        except ValueError:
            log.append("caught")
        return x

    for program in (deleted, left_by_break, left_by_an_error):
        weft.reset()
        compiled = weft.compile(program, backend="eager")
        expected: list[str] = []
        program(torch.ones(2), expected)
        for _ in range(2):
            log: list[str] = []
            compiled(torch.ones(2), log)
            assert log == expected
