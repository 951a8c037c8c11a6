"""Conditions on data-dependent symbols that running code checks, and the nodes that bind symbols.

Place in the pipeline: ATen graphs carry both (`shapes/graph_facts.py`). A
writer of call sequences binds a symbol right behind its operator, and checks each condition as soon
as all its symbols are bound::

    asserts = Asserts(graph_facts(gm).asserts, known=["s0"])
    u0 = nonzero.size(0)                # the writer's line for binds(node)
    assume(u0 == s0, 'u0 == s0')        # list(asserts.bound(["u0"]))
    asserts.finish()                    # all of them have a line

Conditions on numbers that are inputs (drawn ones) are checked first. A backward has no conditions:
the forward has checked them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import final

from torch.fx import Node

from weft.errors import InternalError
from weft.shapes.algebra.floats import symbol_name
from weft.shapes.graph_facts import aten_facts
from weft.shapes.guard import AnyCondition, ShapeGuard, python_text, symbols_of
from weft.shapes.unbacked import Binding


def binds(node: Node) -> tuple[Binding, ...]:
    """The symbols that a node's result binds."""
    return aten_facts(node).binds


@final
class Asserts:
    """The conditions that a call sequence under construction does not check yet."""

    def __init__(self, conditions: Sequence[ShapeGuard], known: Iterable[str]) -> None:
        """`known`: the symbols that inputs bind."""
        self.known = set(known)
        self.waiting = [(condition_names(guard.condition), guard.condition) for guard in conditions]

    def bound(self, names: Iterable[str]) -> Iterator[str]:
        """Lines that check the conditions that can be checked now that these symbols, too, are
        bound."""
        self.known.update(names)
        ready = [condition for needed, condition in self.waiting if needed <= self.known]
        self.waiting = [(n, c) for n, c in self.waiting if not n <= self.known]
        return (assume_text(condition) for condition in ready)

    def finish(self) -> None:
        """Raise InternalError if a condition was not checked."""
        for names, condition in self.waiting:
            unbound = ", ".join(sorted(names - self.known))
            raise InternalError(f"{python_text(condition)} is not checked: nothing binds {unbound}")


def condition_names(condition: AnyCondition) -> set[str]:
    """The names of the symbols in a condition."""
    return set(map(symbol_name, symbols_of(condition)))


def assume_text(condition: AnyCondition) -> str:
    """A line that raises `AssumptionError` unless the condition holds."""
    text = python_text(condition)
    return f"assume({text}, {text!r})"
