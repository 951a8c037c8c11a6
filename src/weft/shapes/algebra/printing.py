"""Expressions as C and Triton source text (Python text is ``expr.render``).

Place in the pipeline: the code generator's targets print index expressions and extents with these.
C and Triton divide towards zero, expressions floor: where both operands are known to be nonnegative
(after adding a multiple of a constant divisor) the plain operator is printed, otherwise a helper of
the kernel's prelude: ``weft_floor_div(a, b)``, ``weft_floor_mod(a, b)``; in Triton ``p.floor_div``.

    >>> from weft.shapes.algebra.expr import symbol
    >>> i, k = symbol("i", 0, 99), symbol("k")
    >>> c_text((i + 3) // 4), c_text((i - 1) // 4), c_text(k // 4)
    ('((i+3)/4)', '((i+3)/4)-1', 'weft_floor_div(k, 4)')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from weft.shapes.algebra.atoms import Atom, FloorDiv, Max, Min, Mod, Symbol
from weft.shapes.algebra.bounds import is_nonnegative, lower_bound
from weft.shapes.algebra.expr import IntExpr
from weft.shapes.algebra.rendering import PYTHON, Text, grouped, render

_SMALL = 2**31


def python_text(value: IntExpr, names: Mapping[str, str] | None = None) -> str:
    """Python source; ``names`` maps symbol names to other text."""
    return render(value, {**PYTHON, Symbol: _named(names)} if names else PYTHON)


def c_text(
    value: IntExpr,
    names: Mapping[str, str] | None = None,
    named: Callable[[Atom, str], str] | None = None,
) -> str:
    """C source over ``int64_t`` variables.

    ``names`` maps symbol names to other text; ``named`` maps the text of quotients, remainders and
    extremes to their replacement. ``min``/``max`` print as ``weft_min(a, b)`` and ``weft_max(a,
    b)``.
    """
    if isinstance(value, int):
        return str(value) if abs(value) < _SMALL else f"{value}LL"
    spelling = _spelling(names or {}, "/", "weft_min", "weft_max", _SMALL)
    if named is not None:
        for kind in (FloorDiv, Mod, Min, Max):
            spelling[kind] = _renamed(spelling[kind], named)
    return render(value, spelling)


def _renamed(
    spell: Callable[[Any, Text], str], named: Callable[[Atom, str], str]
) -> Callable[[Any, Text], str]:
    return lambda atom, text: named(atom, spell(atom, text))


def _named(names: Mapping[str, str]) -> Callable[[Symbol, Text], str]:
    return lambda atom, text: names.get(atom.name, atom.name)


def triton_text(value: IntExpr) -> str:
    """Triton source; integers there divide towards zero as in C, and may have 32 bits."""
    return render(value, _spelling({}, "//", "tl.minimum", "tl.maximum", _SMALL // 2, "p."))


def _spelling(
    names: Mapping[str, str], divide: str, smallest: str, largest: str, room: int,
    prefix: str = "weft_",
) -> dict[type[Atom], Callable[[Any, Text], str]]:
    """The spelling in a language that divides towards zero; kernels receive the values of functions
    without algebra. Less than `room` is added to what is divided."""

    def division(operator: str, helper: str) -> Callable[[FloorDiv | Mod, Text], str]:
        def spell(atom: FloorDiv | Mod, text: Text) -> str:
            left, shift = _made_nonnegative(atom, room)
            if not (is_nonnegative(left) and is_nonnegative(atom.right)):
                return f"{helper}({text(left)}, {text(atom.right)})"
            shown = f"{grouped(left, text)}{operator}{grouped(atom.right, text)}"
            return f"({shown}-{shift})" if shift and isinstance(atom, FloorDiv) else f"({shown})"

        return spell

    def nested(name: str) -> Callable[[Min | Max, Text], str]:
        def spell(atom: Min | Max, text: Text) -> str:
            return reduce(lambda a, b: f"{name}({a}, {b})", sorted(map(text, atom.args)))

        return spell

    return {
        Symbol: _named(names),
        FloorDiv: division(divide, f"{prefix}floor_div"),
        Mod: division("%", f"{prefix}floor_mod"),
        Min: nested(smallest),
        Max: nested(largest),
    }


def _made_nonnegative(atom: FloorDiv | Mod, room: int) -> tuple[IntExpr, int]:
    """``(left + shift * right, shift)``, nonnegative if a constant divisor makes that possible."""
    low = lower_bound(atom.left)
    if low >= 0 or low <= -room or not isinstance(atom.right, int) or atom.right < 0:
        return atom.left, 0
    shift = -(low // atom.right)
    return atom.left + shift * atom.right, shift


def fits_int32(value: IntExpr) -> bool:
    """Whether the value always fits in 32 bits (index arithmetic may then use them)."""
    if isinstance(value, int):
        return -_SMALL <= value < _SMALL
    lo, hi = value.bounds
    return lo >= -_SMALL and hi < _SMALL
