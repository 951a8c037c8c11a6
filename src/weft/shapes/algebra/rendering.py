"""Polynomials as source text, in any language.

Place in the pipeline: below ``expr.py``; ``printing.py`` has the languages. A spelling says how
each kind of atom is written; terms are ordered by their text, so that equal expressions print
alike in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from weft.shapes.algebra.atoms import Applied, Atom, FloorDiv, Max, Min, Mod, Monomial, Symbol

if TYPE_CHECKING:
    from weft.shapes.algebra.expr import IntExpr

Text = Callable[["IntExpr"], str]
Spelling = Mapping[type[Atom], Callable[[Any, Text], str]]
"""How an atom of each kind is written; the second argument writes its operands."""


def render(value: IntExpr, spell: Spelling | None = None) -> str:
    """The expression as source text, by default Python's."""
    if isinstance(value, int):
        return str(value)
    spell = PYTHON if spell is None else spell
    text = partial(render, spell=spell)
    terms = [_render_term(m, c, spell, text) for m, c in value.terms.items()]
    terms.sort(key=lambda term: (term.startswith("-"), -term.count("*"), term))
    source = terms[0] + "".join(t if t.startswith("-") else f"+{t}" for t in terms[1:])
    return f"{source}{value.const:+d}" if value.const else source


def _render_term(monomial: Monomial, coefficient: int, spell: Spelling, text: Text) -> str:
    factors = sorted(spell[type(atom)](atom, text) for atom in monomial)
    if coefficient == -1:
        return "-" + "*".join(factors)
    return "*".join(factors if coefficient == 1 else [str(coefficient), *factors])


def grouped(value: IntExpr, text: Text) -> str:
    """The value's text, in parentheses unless it is one atom or a nonnegative int."""
    bare = value >= 0 if isinstance(value, int) else value.atom is not None
    return text(value) if bare else f"({text(value)})"


PYTHON: Final[Spelling] = {
    Symbol: lambda atom, text: atom.name,
    FloorDiv: lambda atom, text: f"({grouped(atom.left, text)}//{grouped(atom.right, text)})",
    Mod: lambda atom, text: f"({grouped(atom.left, text)}%{grouped(atom.right, text)})",
    Min: lambda atom, text: f"min({', '.join(sorted(map(text, atom.args)))})",
    Max: lambda atom, text: f"max({', '.join(sorted(map(text, atom.args)))})",
    Applied: lambda atom, text: atom.function.text.format(*(grouped(a, text) for a in atom.args)),
}
