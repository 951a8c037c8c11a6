"""Types of what users call: no result is an `object`, with which a typed program can do nothing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import pytest

import weft
from weft.diagnostics.comparison import Comparison
from weft.diagnostics.explanation import Explanation
from weft.module import CompiledModule


def results() -> Iterator[tuple[str, object]]:
    for name in weft.__all__:
        yield name, getattr(weft, name)
    for cls in (CompiledModule, Comparison, Explanation):
        for name, member in vars(cls).items():
            if not name.startswith("_") or name in ("__call__", "__getitem__", "__iter__"):
                yield f"{cls.__name__}.{name}", member


@pytest.mark.parametrize(("name", "function"), [
    (name, function) for name, function in results() if inspect.isfunction(function)])
def test_a_result_is_more_than_an_object(name: str, function: object) -> None:
    assert inspect.isfunction(function)
    annotation = str(inspect.signature(function).return_annotation)
    assert not re.search(r"\bobject\b", annotation), f"{name} returns {annotation}"
