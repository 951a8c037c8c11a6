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

from weft.shapes.algebra.atoms import Applied, Atom, FloorDiv, Max, Min, Mod, Symbol
from weft.shapes.algebra.expr import IntExpr, is_nonnegative, lower_bound
from weft.shapes.algebra.rendering import grouped, python_function, render

_SMALL = 2**31


def python_text(value: IntExpr, names: Mapping[str, str] | None = None) -> str:
    """Python source; ``names`` maps symbol names to other text."""
    return render(value, _spelling(names or {}, "//", "%", "min", "max", floors=True))


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
    spelling = _spelling(names or {}, "/", "%", "weft_min", "weft_max")
    if named is not None:
        for kind in (FloorDiv, Mod, Min, Max):
            spelling[kind] = _renamed(spelling[kind], named)
    return render(value, spelling)


def _renamed(
    spell: Callable[..., str], named: Callable[[Atom, str], str]
) -> Callable[[Atom], str]:
    return lambda atom: named(atom, spell(atom))


def triton_text(value: IntExpr) -> str:
    """Triton source; integers there divide towards zero as in C."""
    return render(value, _spelling({}, "//", "%", "tl.minimum", "tl.maximum", prefix="p."))


def _spelling(
    names: Mapping[str, str], divide: str, modulo: str, smallest: str, largest: str, *,
    floors: bool = False, prefix: str = "weft_",
) -> dict[type[Atom], Callable[..., str]]:
    table: dict[type[Atom], Callable[..., str]] = {}

    def text(value: IntExpr) -> str:
        return render(value, table)

    def division(operator: str, helper: str) -> Callable[[FloorDiv | Mod], str]:
        def spell(atom: FloorDiv | Mod) -> str:
            left, shift = (atom.left, 0) if floors else _made_nonnegative(atom)
            right = text(atom.right)
            if not floors and not (is_nonnegative(left) and is_nonnegative(atom.right)):
                return f"{helper}({text(left)}, {right})"
            shown = f"{grouped(left, text(left))}{operator}{grouped(atom.right, right)}"
            return f"({shown}-{shift})" if shift and isinstance(atom, FloorDiv) else f"({shown})"

        return spell

    def nested(name: str) -> Callable[[Min | Max], str]:
        def spell(atom: Min | Max) -> str:
            first, *others = sorted(map(text, atom.args))
            for other in others:
                first = f"{name}({first}, {other})"
            return first

        return spell

    table |= {
        Symbol: lambda atom: names.get(atom.name, atom.name),
        FloorDiv: division(divide, f"{prefix}floor_div"),
        Mod: division(modulo, f"{prefix}floor_mod"),
        Min: nested(smallest),
        Max: nested(largest),
    }
    if floors:  # kernels receive the values of such functions
        table[Applied] = lambda atom: python_function(atom, text)
    return table


def _made_nonnegative(atom: FloorDiv | Mod) -> tuple[IntExpr, int]:
    """``(left + shift * right, shift)``, nonnegative if a constant divisor makes that possible."""
    low = lower_bound(atom.left)
    if low >= 0 or low <= -_SMALL or not isinstance(atom.right, int) or atom.right < 0:
        return atom.left, 0
    shift = -(low // atom.right)
    return atom.left + shift * atom.right, shift


def fits_int32(value: IntExpr) -> bool:
    """Whether the value always fits in 32 bits (index arithmetic may then use them)."""
    if isinstance(value, int):
        return -_SMALL <= value < _SMALL
    lo, hi = value.bounds
    return lo >= -_SMALL and hi < _SMALL
