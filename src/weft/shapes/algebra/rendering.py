"""Polynomials as source text, in any language.

Place in the pipeline: below ``expr.py``; ``printing.py`` has the languages. A spelling says how
each kind of atom is written; terms are ordered by their text, so that equal expressions print
alike in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from weft.shapes.algebra.atoms import Applied, Atom, FloorDiv, Max, Min, Mod, Monomial, Symbol

if TYPE_CHECKING:
    from weft.shapes.algebra.expr import IntExpr

Spelling = Mapping[type[Atom], Callable[..., str]]


def render(value: IntExpr, spell: Spelling | None = None) -> str:
    """The expression as source text, by default Python's."""
    if isinstance(value, int):
        return str(value)
    spell = PYTHON if spell is None else spell
    terms = [_render_term(m, c, spell) for m, c in value.terms.items()]
    terms.sort(key=lambda term: (term.startswith("-"), -term.count("*"), term))
    text = terms[0] + "".join(t if t.startswith("-") else f"+{t}" for t in terms[1:])
    return f"{text}{value.const:+d}" if value.const else text


def _render_term(monomial: Monomial, coefficient: int, spell: Spelling) -> str:
    factors = sorted(spell[type(atom)](atom) for atom in monomial)
    if coefficient == -1:
        return "-" + "*".join(factors)
    return "*".join(factors if coefficient == 1 else [str(coefficient), *factors])


def grouped(value: IntExpr, text: str) -> str:
    """``text`` in parentheses unless ``value`` is one atom or a nonnegative int."""
    bare = value >= 0 if isinstance(value, int) else value.atom is not None
    return text if bare else f"({text})"


def _python_binary(operator: str) -> Callable[[FloorDiv | Mod], str]:
    def spell(atom: FloorDiv | Mod) -> str:
        left, right = grouped(atom.left, render(atom.left)), grouped(atom.right, render(atom.right))
        return f"({left}{operator}{right})"

    return spell


def _python_call(name: str) -> Callable[[Min | Max], str]:
    return lambda atom: f"{name}({', '.join(sorted(map(render, atom.args)))})"


def python_function(atom: Applied, text: Callable[[IntExpr], str]) -> str:
    """Python source of a function without algebra; ``text`` spells its arguments."""
    return atom.function.text.format(*(grouped(arg, text(arg)) for arg in atom.args))


PYTHON: Final[Spelling] = {
    Symbol: lambda atom: atom.name,
    FloorDiv: _python_binary("//"),
    Mod: _python_binary("%"),
    Min: _python_call("min"),
    Max: _python_call("max"),
    Applied: lambda atom: python_function(atom, render),
}
