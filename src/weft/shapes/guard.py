"""Shape guards: conditions on sizes that an artifact was compiled under.

Place in the pipeline: a `ShapeContext` records them while a frame is captured; capture adds them
to the frame's guard tree, where the C evaluator runs them on the collected sizes before every
call.

A guard is emitted in two forms from the same condition: Python text for people and for fallback,
and a postfix program for the C evaluator: a tuple of instructions over a stack of int64 values.

    ("slot", i) ("const", c)            push
    "+" "-" "*" "//" "%"                floor semantics; overflow fails the guard
    "min" "max"
    "==" "!=" "<" "<=" ">" ">="         push 0 or 1
    "and" "or" "not"

    >>> from weft.shapes.algebra.expr import symbol
    >>> from weft.shapes.algebra.relation import ge
    >>> n = symbol("n", 2)
    >>> postfix(ge(n, 1000), {n: 4})
    (('slot', 4), ('const', 1000), '>=')
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft.errors import SourceLine
from weft.shapes.algebra.atoms import Atom, FloorDiv, Max, Min, Mod, Symbol
from weft.shapes.algebra.expr import Expr, IntExpr, operands
from weft.shapes.algebra.floats import FloatRelation, FloatSymbol, negation, number_symbols
from weft.shapes.algebra.functions import has_functions
from weft.shapes.algebra.relation import GE, Condition, Junction, Relation, condition_symbols, not_
from weft.shapes.algebra.rendering import render

AnyCondition = Condition | FloatRelation
Token = str | tuple[str, int]
Program = tuple[Token, ...]
Slots = Mapping[Expr, int]


@dataclass(frozen=True, slots=True)
class ShapeGuard:
    """``condition`` must hold for the artifact to be used; the user's ``line`` required it.

    For conditions on data: `assumed` if the program itself works without it.
    """

    condition: AnyCondition
    line: SourceLine | None
    assumed: bool = False

    def __str__(self) -> str:
        where = f"  # {self.line}" if self.line is not None else ""
        return python_text(self.condition) + where


def sides(condition: Relation) -> tuple[IntExpr, str, IntExpr]:
    """The comparison as a person writes it: negative terms moved to the right."""
    left: IntExpr = 0
    right: IntExpr = 0
    for monomial, coefficient in condition.expr.terms.items():
        term: IntExpr = abs(coefficient)
        for atom in monomial:
            term = term * atom.expr
        if coefficient > 0:
            left = left + term
        else:
            right = right + term
    const = condition.expr.const
    if isinstance(left, int):  # nothing positive: ``-n + 4 >= 0`` reads ``n <= 4``
        return right, {GE: "<="}.get(condition.kind, condition.kind), const
    return left, condition.kind, right - const


def opposite(condition: AnyCondition) -> AnyCondition:
    """The negation of the condition."""
    return negation(condition) if isinstance(condition, FloatRelation) else not_(condition)


def python_text(condition: AnyCondition) -> str:
    """Python source of the condition over its symbols' names."""
    if isinstance(condition, bool | FloatRelation):
        return repr(condition)
    if isinstance(condition, Relation):
        left, comparison, right = sides(condition)
        return f"{render(left)} {comparison} {render(right)}"
    parts = sorted(_in_parentheses(part) for part in condition.parts)
    return f" {condition.kind} ".join(parts)


def _in_parentheses(condition: Condition) -> str:
    shown = python_text(condition)
    return f"({shown})" if isinstance(condition, Junction) else shown


def symbols_of(condition: AnyCondition) -> frozenset[Expr | FloatSymbol]:
    """The symbols of both kinds in a condition."""
    if isinstance(condition, FloatRelation):
        return number_symbols(condition)
    return frozenset(condition_symbols(condition))


def runs_in_c(condition: AnyCondition) -> bool:
    """Whether `postfix` can express it: no floats, and no functions that only Python computes."""
    if isinstance(condition, Relation):
        return not has_functions(condition.expr)
    if isinstance(condition, Junction):
        return all(map(runs_in_c, condition.parts))
    return not isinstance(condition, FloatRelation)


def postfix(condition: Condition, slots: Slots) -> Program:
    """The condition as a program over integer slots; ``slots`` maps each symbol to its slot."""
    return tuple(_condition_program(condition, slots))


def equal_postfix(slot: int, value: IntExpr, slots: Slots) -> Program:
    """The program that tests whether the number in `slot` equals `value`."""
    return ("slot", slot), *_value_program(value, slots), "=="


def _condition_program(condition: Condition, slots: Slots) -> Iterator[Token]:
    if isinstance(condition, bool):
        yield "const", int(condition)
    elif isinstance(condition, Relation):
        left, comparison, right = sides(condition)
        yield from _value_program(left, slots)
        yield from _value_program(right, slots)
        yield comparison
    else:
        for position, part in enumerate(sorted(condition.parts, key=repr)):
            yield from _condition_program(part, slots)
            if position:
                yield condition.kind


def _value_program(value: IntExpr, slots: Slots) -> Iterator[Token]:
    if isinstance(value, int):
        yield "const", value
        return
    started = False
    for monomial, coefficient in value.terms.items():
        yield from _term_program(monomial, coefficient, slots)
        if started:
            yield "+"
        started = True
    if value.const:
        yield "const", value.const
        yield "+"


def _term_program(
    monomial: tuple[Atom, ...], coefficient: int, slots: Slots
) -> Iterator[Token]:
    for position, atom in enumerate(monomial):
        yield from _atom_program(atom, slots)
        if position:
            yield "*"
    if coefficient != 1:
        yield "const", coefficient
        yield "*"


_ATOM_OPERATORS: Mapping[type[Atom], str] = {FloorDiv: "//", Mod: "%", Min: "min", Max: "max"}


def _atom_program(atom: Atom, slots: Slots) -> Iterator[Token]:
    if isinstance(atom, Symbol):
        yield "slot", slots[atom.expr]
        return
    for position, operand in enumerate(operands(atom)):
        yield from _value_program(operand, slots)
        if position:
            yield _ATOM_OPERATORS[type(atom)]
