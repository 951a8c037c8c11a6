"""`throw`, `close` and `send` of generators made inside, also through `yield from`."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from typing import Any

import torch

from tests.capture.harness import check

X = torch.ones(2)


class NoException(Exception):
    def __new__(cls, *args: Any) -> Any:
        return cls


def empty() -> Iterator[None]:
    yield


def catching(log: list[Any]) -> Iterator[Any]:
    try:
        yield 1
    except ValueError as error:
        log.append(error.args)
        yield 2
    log.append("end")


def outer(log: list[Any]) -> Generator[Any, Any, None]:
    log.append((yield from inner(log)))
    yield 4


def inner(log: list[Any]) -> Generator[Any, Any, Any]:
    try:
        log.append((yield 1))
        yield 2
    except KeyError as error:
        log.append(("inner", error.args))
        return "result"
    finally:
        log.append("left")


def test_throw_of_a_class_that_makes_no_exceptions() -> None:
    def f(x: Any) -> Any:
        generator = empty()
        try:
            generator.throw(NoException)
        except TypeError as error:
            return x + 1, str(error), list(generator)
        return x

    check(f, (X,), breaks=None)


def test_throw_of_what_is_no_exception() -> None:
    def f(x: Any) -> Any:
        generator = empty()
        texts = []
        for wrong in (3, "text", int):
            try:
                generator.throw(wrong)  # type: ignore[arg-type]
            except TypeError as error:
                texts.append(str(error))
        return x + 1, texts, next(generator)

    check(f, (X,), breaks=None)


def test_throw_is_caught_and_a_finished_generator_stays_finished() -> None:
    def f(x: Any, log: list[Any]) -> Any:
        generator = catching(log)
        log.append(next(generator))
        log.append(generator.throw(ValueError(7)))
        for _ in range(2):
            try:
                generator.throw(KeyError(8))
            except KeyError as error:
                log.append(error.args)
        return x + 1, list(generator)

    check(f, (X, []))


def test_throw_goes_through_yield_from() -> None:
    def f(x: Any, log: list[Any]) -> Any:
        generator = outer(log)
        next(generator)
        log.append(generator.send(5))
        log.append(generator.throw(KeyError(6)))
        return x + 1, list(generator)

    check(f, (X, []))


def test_what_an_inner_generator_raises_comes_out() -> None:
    def f(x: Any, log: list[Any]) -> Any:
        generator = outer(log)
        next(generator)
        try:
            generator.throw(ValueError(6))
        except ValueError as error:
            log.append(error.args)
        return x + 1, list(generator)

    check(f, (X, []))


def test_close_goes_through_yield_from() -> None:
    def f(x: Any, log: list[Any]) -> Any:
        generator = outer(log)
        next(generator)
        generator.close()
        return x + 1, log, list(generator)

    check(f, (X, []))


def stubborn() -> Iterator[int]:
    for number in range(2):
        try:
            yield number
        except GeneratorExit:
            pass


def test_close_of_a_generator_that_goes_on() -> None:
    def f(x: Any) -> Any:
        generator = stubborn()
        next(generator)
        try:
            generator.close()
        except RuntimeError as error:
            return x + 1, str(error)
        return x

    check(f, (X,), breaks=None)


def test_causes_that_are_no_exceptions() -> None:
    def f(x: Any) -> Any:
        texts = []
        for wrong in (3, "text"):
            try:
                raise ValueError from wrong  # type: ignore[misc]
            except TypeError as error:
                texts.append(str(error))
        return x + 1, texts

    check(f, (X,), breaks=None)


def test_stop_iteration_of_a_function_ends_what_iterates_with_it() -> None:
    """It came out of the loop, and `throw` into a new generator let it pass (3.11)."""
    def third(i):
        if i == 2:
            raise StopIteration
        return i

    def f(x):
        def new():
            yield x

        try:
            new().throw(StopIteration(3))
        except (RuntimeError, StopIteration) as error:
            thrown = repr(error), repr(error.__cause__)
        kept = itertools.starmap(third, [(0,), (2,)]), itertools.takewhile(third, (1, 2, 3))
        return (x + 1, thrown, list(map(third, range(5))), list(filter(third, range(5))),
                *map(list, kept), next(map(third, [2]), "end"))

    check(f, (torch.ones(1),), graphs=1)
