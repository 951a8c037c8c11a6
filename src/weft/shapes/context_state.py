"""Parts of a `ShapeContext`: how it answers while operators run, and the nodes it has made.

Place in the pipeline: below `context`. Capture and aot set `DataQuestions` and `FloatQuestions`
around the operators that they run; the context reads them when an operator asks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import torch

from weft.shapes.algebra.floats import FloatValue
from weft.shapes.algebra.relation import Condition
from weft.shapes.carried_floats import CarriedFloats

if TYPE_CHECKING:
    from weft.shapes.symnode import SymNode


def _nothing_to_note() -> None:
    """The program is not being captured."""


def _unknown(fake: torch.Tensor) -> torch.Tensor | None:
    """Capture knows nothing about tensors' data."""
    return None


@final
@dataclass(slots=True)
class DataQuestions:
    """How questions about tensors' data are answered (docs/architecture/data.md)."""

    fakes_are_tensors: bool = True
    """Whether each fake stands for one tensor; in aot it stands for all of the same metadata."""
    assuming: bool = False
    """Whether running code can check assumptions about data and fall back (aot can)."""
    may_check: bool = True
    """Whether there will still be code that checks conditions on data."""
    may_expect: bool = False
    """Whether running code can check expectations about data and fall back (`expect`)."""
    expects: bool = False
    """Whether expectations answer the current questions: operators ask them."""
    note_expectation: Callable[[], None] = _nothing_to_note
    """Called when an expectation answered a question."""
    known_content: Callable[[torch.Tensor], torch.Tensor | None] = _unknown
    """Returns the real tensor that a fake stands for, if capture knows its data."""
    answers: list[Any] = field(default_factory=list)
    """Answers about known data that operators got since the list was last cleared."""
    earlier_answers: Iterator[Any] | None = None
    """When a captured graph runs again: the answers that the operators of a node got in capture."""
    n_known_answers: int = 0
    """How often an operator used known data: its result must not be cached."""
    bool_answer: bool | None = None
    """The answer about bools that depend on data that is being tried."""
    known_counts: dict[Hashable, Any] = field(default_factory=dict)
    """Sizes of results that depend on data: the same of the same tensor
    (`fakes/data_dependent.py`)."""
    kept: list[object] = field(default_factory=list)
    """Tensors in the keys of `known_counts`, whose ids so stay unique."""


@final
@dataclass(slots=True)
class NodeMemo:
    """The nodes made so far, which operators ask for again and again."""

    nodes: dict[object, SymNode] = field(default_factory=dict)
    """By value."""
    results: dict[tuple[object, SymNode, SymNode], SymNode] = field(default_factory=dict)
    """Sums, differences and products, by operation and operands."""
    comparisons: dict[tuple[str, SymNode, SymNode], Condition] = field(default_factory=dict)
    """Comparisons, without the answers, which may change as facts are learned."""

    def forget_hints(self) -> None:
        """Let the nodes ask again for their values in this call."""
        for node in self.nodes.values():
            node.forget_hint()


@final
@dataclass(slots=True)
class FloatQuestions:
    """How C++ gets floats that are computed from sizes (`carried_floats.py`,
    `fakes/float_trials.py`)."""

    carried: CarriedFloats = field(default_factory=CarriedFloats)
    has_floats: bool = False
    """Whether there is any symbolic float."""
    carrying: bool = True
    """Whether floats that C++ asks for now are carried: it was tried for these operators."""
    tried: list[FloatValue] | None = None
    """While an operator is tried: the floats that C++ asked for."""
