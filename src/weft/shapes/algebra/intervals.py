"""Arithmetic on the intervals that expressions lie in.

Place in the pipeline: below ``expr.py``. An interval is a pair of ints; all values fit in 64
bits, so the ends saturate.

    >>> product_bounds((2, INF), (0, 3))
    (0, 9223372036854775807)
"""

from __future__ import annotations

from typing import Final

INF: Final = 2**63 - 1
"""The largest value: a bound of ``INF`` (or ``-INF``) means that nothing is known on that side."""

FAR: Final = 2**62
"""From here on a bound counts as unknown: sums of finite bounds must not look like infinity."""


def scaled_bound(bound: int, coefficient: int) -> int:
    if abs(bound) >= FAR:
        return INF if (bound > 0) == (coefficient > 0) else -INF
    return bound * coefficient


def product_bounds(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    corners = [a * b for a in left for b in right]
    return max(min(corners), -INF), min(max(corners), INF)


def quotient_bounds(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    """For positive divisors. An unknown end of ``left`` stays unknown."""
    corners = [a // b for a in left for b in right]
    lo = -INF if left[0] <= -FAR else min(corners)
    hi = INF if left[1] >= FAR else max(corners)
    return lo, hi
