"""What an interpretation has done so far: two moments tell what happened between them.

Place in the pipeline: taken before and after each inlined call (`calls.py`)::

    begin = moment(tx)
    ...
    moment(tx).only_computed_since(begin)      # only guards, inputs and operators were added
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from weft.capture.core.base import SymbolicValue
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.containers.sequences import ListValue, SequenceValue, TupleValue
from weft.capture.library.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


_MOST_HELD: Final = 100


@final
@dataclass(frozen=True, slots=True)
class Moment:
    """The position in the records of an interpretation, and its state."""

    step: int
    turns: int
    guards: int
    same: int
    objects: int
    inputs: int
    calls: int
    nodes: int
    """The nodes of the graph."""
    made: tuple[int, int]
    """How many nodes were made, and how many of them count."""
    context: tuple[object, ...]
    """What calls read without guards: it must be the same for a call that repeats another."""
    held: tuple[object, ...] | None
    """What capture made and objects from outside hold: no guard tells what is found in it. None: it
    is too much to compare."""
    notes: tuple[object, ...]
    """What calls leave behind besides guards, inputs and operators."""

    def finds_what_was_found_at(self, other: Moment) -> bool:
        """Whether calls find the same, but for what guards tell."""
        return self.context == other.context and (
            self.held is not None and self.held == other.held)

    def only_computed_since(self, begin: Moment) -> bool:
        """Whether there is nothing new but guards, inputs, and operators without effects."""
        if self.notes != begin.notes or not self.finds_what_was_found_at(begin):
            return False
        calls = self.calls - begin.calls
        new = tuple(now - before for now, before in zip(self.made, begin.made, strict=True))
        return new == (calls, calls) and (
            self.nodes - begin.nodes == calls + self.inputs - begin.inputs)


def moment(tx: Interpreter) -> Moment:
    """The present moment of an interpretation."""
    builder = tx.builder
    n_objects, n_forgotten = tx.outside.counts
    return Moment(
        tx.step, tx.data.turns, len(tx.guards), len(tx.guards.same_pairs()), n_objects,
        len(builder.inputs), len(tx.calls.nodes), len(builder.graph.nodes),
        (builder.n_made, builder.n_calls), _context(tx, n_forgotten), _held(tx),
        _notes(tx))


def _context(tx: Interpreter, n_forgotten: int) -> tuple[object, ...]:
    """The state that the program has changed so far."""
    modes, autograd, classes = tx.modes, tx.autograd, tx.classes
    return (
        n_forgotten, tx.effects.n_touches, tx.effects.n_forgotten, tx.calls.n_effects,
        len(modes.functions), len(modes.outer), modes.overriding, modes.subclasses_off,
        len(modes.hidden), modes.scripted, len(modes.ignored_warnings), modes.texts_wait,
        len(autograd.replaced), len(autograd.frozen), len(autograd.freed), len(autograd.wrapped),
        len(classes.made), len(classes.stand_ins), len(classes.attributes),
        tx.shapes.data.n_known_answers, *tx.state.snapshot())


def _held(tx: Interpreter) -> tuple[object, ...] | None:
    """All that can be reached from what the program has put into objects from outside."""
    todo: list[SymbolicValue | None] = []
    for changed in tx.effects.touched():
        if not isinstance(changed, DictValue) or changed.source is None:
            return None
        todo.extend(map(changed.known, changed.written))
    held: list[object] = []
    seen: set[int] = set()
    while todo:
        value = todo.pop()
        if value is None or value.source is not None or value.is_constant or id(value) in seen:
            held.append(value)
            continue
        seen.add(id(value))
        parts = _parts(value)
        if parts is None or len(held) > _MOST_HELD:
            return None
        held.append((value, *parts))
        todo.extend(part for part in parts if isinstance(part, SymbolicValue))
    return tuple(held)


def _parts(value: SymbolicValue) -> tuple[object, ...] | None:
    """What a value that capture made holds, if its family is one that is compared."""
    if type(value) is TensorValue and not value.written:
        return (id(value.example),)
    if isinstance(value, SequenceValue) and type(value) in (ListValue, TupleValue):
        return tuple(value.items)
    if isinstance(value, DictValue) and value.original is None and not value.attributes:
        return tuple(value.entries()) if type(value) is DictValue else None
    return None


def _notes(tx: Interpreter) -> tuple[object, ...]:
    """How much was noted that the end of the capture, or a later part of it, takes up."""
    data, numbers, autograd, remade = tx.data, tx.numbers, tx.autograd, tx.remade
    return (
        tx.guards.n_conditions, tx.identities.count, tx.early_ends.count, tx.lifetimes.count,
        data.n_asked, data.n_checked, len(data.places), len(data.early_checks),
        len(data.checked_at), data.catches_refusals, data.expected_at.total(),
        len(data.relied_on), len(data.memories), len(data.input_tests),
        len(data.read_behind_writes), len(data.from_inputs), len(numbers.values),
        len(numbers.nodes), len(numbers.draws), len(autograd.functions),
        len(autograd.late_reads), len(remade.calls), len(remade.late), len(tx.state.settings),
        len(tx.shapes.sources), len(tx.shapes.fixed), len(tx.shapes.asserts), len(tx.copying))
