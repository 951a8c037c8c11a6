"""Log records of constants are written after the graph, as eager writes them; others break it."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
from collections.abc import Callable, Iterator

import pytest
import torch

import weft

Written = tuple[logging.Logger, io.StringIO, logging.Handler]


@pytest.fixture
def written() -> Iterator[Written]:
    """A logger of its own, what it has written, its handler."""
    weft.reset()
    logger = logging.getLogger("tests.of.logging")
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    with weft.config.patch(strict=True):
        yield logger, text, handler


def alone(written: Written) -> tuple[logging.Logger, io.StringIO]:
    """Without the handlers that pytest adds when a test begins."""
    logger, text, handler = written
    logger.handlers = [handler]
    return logger, text


def compare(f: Callable[[torch.Tensor], torch.Tensor], text: io.StringIO, *, breaks: int) -> None:
    """Results and lines are those of eager, call by call."""
    compiled = weft.compile(f, backend="eager")
    for _ in range(3):
        x, seen = torch.randn(4), []
        for function in (f, compiled):
            text.seek(0)
            text.truncate()
            torch.testing.assert_close(function(x), (x * 2 + 1).exp())
            seen.append(text.getvalue())
        assert seen[0] == seen[1] != ""
    assert weft.stats()["graph_breaks"] == breaks


def test_records_of_constants_do_not_break(written: Written) -> None:
    logger, text = alone(written)

    def f(x: torch.Tensor) -> torch.Tensor:
        logger.info("starts with %d of %s", 4, f"{tuple(x.shape)}")
        y = x * 2
        logger.debug("below the level")
        logger.error("goes on")
        return (y + 1).exp()

    compare(f, text, breaks=0)


def test_a_record_of_a_tensor_breaks(written: Written) -> None:
    logger, text = alone(written)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        logger.info("about %s", y.sum())
        return (y + 1).exp()

    compare(f, text, breaks=1)


def test_a_handler_that_writes_the_line_breaks(written: Written) -> None:
    logger, text = alone(written)
    written[2].setFormatter(logging.Formatter("%(funcName)s:%(lineno)d %(message)s"))

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        logger.info("here")
        return (y + 1).exp()

    compare(f, text, breaks=1)


def test_records_before_an_exception(written: Written) -> None:
    logger, text = alone(written)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        logger.warning("no good")
        if y.shape[0] == 4:
            raise ValueError("four")
        return y

    with pytest.raises(ValueError, match="four"):
        weft.compile(f, backend="eager")(torch.ones(4))
    assert text.getvalue() == "WARNING no good\n"


def test_records_that_come_once(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    """As libraries do it: a cached method of all loggers."""
    logger, text = alone(written)

    @functools.cache
    def warning_once(self: logging.Logger, message: str) -> None:
        self.warning(message)

    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)

    def f(x: torch.Tensor) -> torch.Tensor:
        logger.warning_once("once")  # type: ignore[attr-defined]
        return x + 1

    compiled = weft.compile(f, backend="eager", fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(4))
    assert text.getvalue() == "WARNING once\n"


def test_levels_and_handlers_that_change_later_are_looked_at(written: Written) -> None:
    logger, text = alone(written)
    child = logging.getLogger("tests.of.logging.child")

    def f(x: torch.Tensor) -> torch.Tensor:
        logging.getLogger("tests.of.logging.child").debug("below at first")
        child.log(logging.WARNING, "always, %s", child.name)
        y = x * 2
        return (y + int(child.isEnabledFor(logging.DEBUG))).exp()

    compiled = weft.compile(f, backend="eager")
    x, seen = torch.ones(2), []
    for change in (None, lambda: logger.setLevel(logging.DEBUG),
                   lambda: written[2].setFormatter(logging.Formatter("%(funcName)s"))):
        if change is not None:
            change()
        for function in (f, compiled):
            text.seek(0)
            text.truncate()
            function(x)
            seen.append(text.getvalue())
    assert seen[::2] == seen[1::2]
    assert [s.count("\n") for s in seen[::2]] == [1, 2, 2]


def test_records_for_a_stderr_that_the_program_has_set() -> None:
    """They came after it was the usual one again."""
    def f(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        out = io.StringIO()
        with contextlib.redirect_stderr(out):
            logging.getLogger("tests.without.handlers").warning("no handler")
        return x + 1, out.getvalue()

    logger = logging.getLogger("tests.without.handlers")
    logger.propagate = False
    assert [g(torch.ones(2))[1] for g in (f, weft.compile(f, backend="eager"))] == [
        "no handler\n"] * 2


class Collecting(logging.Logger):
    records: list[str]

    def _log(self, level: int, msg: object, *args: object, **kwargs: object) -> None:
        self.records.append(str(msg))


def test_loggers_with_methods_of_their_own() -> None:
    logger = Collecting("collecting")

    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
        logger.records = []
        logger.warning("collected")
        return x + 1, list(logger.records)

    for g in (f, weft.compile(f, backend="eager")):
        assert g(torch.ones(2))[1] == ["collected"]


def test_a_new_logger_of_the_programs_class_is_made_by_the_program() -> None:
    made: list[str] = []

    class Counted(logging.Logger):
        def __init__(self, name: str, level: int = 0) -> None:
            super().__init__(name, level)
            made.append(name)

    def f(x: torch.Tensor, name: str) -> tuple[torch.Tensor, list[str]]:
        made.clear()
        logging.getLogger(name)
        return x + 1, list(made)

    usual = logging.getLoggerClass()
    logging.setLoggerClass(Counted)
    try:
        assert weft.compile(f, backend="eager")(torch.ones(2), "tests.counted")[1] == [
            "tests.counted"]
    finally:
        logging.setLoggerClass(usual)


def test_records_after_the_frame_has_changed_a_handler(written: Written) -> None:
    logger, text = alone(written)

    def f(x: torch.Tensor) -> torch.Tensor:
        handler, chosen = logger.handlers[0], logging.Filter("of.others")
        handler.addFilter(chosen)
        try:
            logger.warning("left out")
        finally:
            handler.removeFilter(chosen)
        logger.warning("written")
        return x + 1

    for g in (f, weft.compile(f, backend="eager")):
        text.seek(0)
        text.truncate()
        g(torch.ones(2))
        assert text.getvalue() == "WARNING written\n"
