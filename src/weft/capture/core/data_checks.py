"""What the replacement checks of the inputs' data before it calls the graph.

Place in the pipeline: recorded by `library/numbers/data_numbers.py` (conditions that operators
need) and `library/tensors/input_tests.py` (branches of the program), asked by the replacement::

    tx.data.early_checks.append(EarlyCheck(condition, "an operator needs u0 >= 2", RuntimeError))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import fx

from weft._frame import distinct_storages
from weft._torch import no_modes
from weft.capture.core.source import Source
from weft.errors import SourceLine
from weft.interrupts import surface
from weft.shapes.guard import AnyCondition


@final
@dataclass(frozen=True, slots=True)
class EarlyCheck:
    """A condition on inputs alone, which the replacement checks before it calls the graph."""

    condition: AnyCondition
    message: str
    error: type[Exception]


@final
@dataclass(frozen=True, slots=True)
class InputTest:
    """The condition of a branch as a function of inputs, and its outcome in this call."""

    ask: fx.GraphModule
    sources: tuple[Source, ...]
    writes: bool
    answer: bool
    line: SourceLine | None

    def __str__(self) -> str:
        return f"the branch on {', '.join(map(str, self.sources))} is {self.answer}"

    def holds(self, *values: object) -> bool:
        """Whether the condition has the same outcome for these inputs."""
        with no_modes(), torch.no_grad():
            inputs = [_copy(v) for v in values] if self.writes else values
            try:
                return bool(self.ask.forward(*inputs)) is self.answer
            except Exception as error:  # noqa: BLE001  of the program: it comes again there
                surface(error)
                return False


@final
@dataclass(frozen=True, slots=True)
class ApartTest:
    """That inputs which the graph writes share no memory with others, whose data counted behind the
    writes as it was before them."""

    written: tuple[Source, ...]
    read: tuple[Source, ...]

    @property
    def sources(self) -> tuple[Source, ...]:
        return (*self.written, *self.read)

    def __str__(self) -> str:
        written, read = (", ".join(map(str, part)) for part in (self.written, self.read))
        return f"{written} shares no memory with {read}"

    def holds(self, *values: object) -> bool:
        """Whether it is so for these inputs."""
        return are_apart(values, len(self.written))


def are_apart(values: Sequence[object], n_written: int) -> bool:
    """Whether the first tensors share no memory with each other and the others."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return distinct_storages(tensors, tuple(range(n_written)))


def _copy(value: object) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
