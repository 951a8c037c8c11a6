"""Handlers and formulas of ATen operators have parameters for what the operators take."""

from __future__ import annotations

import pytest

import weft.aot.tracing.record_special  # noqa: F401  (its handlers)
from weft._torch import OpOverload
from weft.aot.tracing.record import HANDLERS
from weft.arity import Arity, arity
from weft.shapes.fakes.data_dependent import RULES


def _accepts_all(accepted: Arity, op: OpOverload) -> bool:
    """Whether every call that the schema allows fits, as PyTorch passes it to a mode."""
    arguments = op._schema.arguments
    places = [argument for argument in arguments if not argument.kwarg_only]
    names = [argument.name for argument in arguments if argument.kwarg_only]
    least = sum(not argument.has_default_value() for argument in places)
    return all(accepted.accepts(count, names[:n])
               for count in range(least, len(places) + 1) for n in range(len(names) + 1))


@pytest.mark.parametrize("op", sorted(HANDLERS, key=str), ids=str)
def test_handlers_take_what_the_schema_allows(op: OpOverload) -> None:
    assert _accepts_all(arity(HANDLERS[op], first=2), op), op._schema


@pytest.mark.parametrize("op", sorted(RULES, key=str), ids=str)
def test_formulas_of_sizes_by_data_take_what_the_schema_allows(op: OpOverload) -> None:
    assert _accepts_all(arity(RULES[op], first=2), op), op._schema
