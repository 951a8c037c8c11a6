"""Device functions of generated Triton kernels: eager's semantics where Triton's own differ.

Place in the pipeline: imported by the source text that `emit.py` writes, never by weft itself (it
needs Triton). Its text is part of every kernel's cache key.

Triton's integer division truncates, its `max` drops NaN, and it has no argmax that prefers NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def floor_div(a, b):
    """Integer quotient rounded towards minus infinity."""
    quotient = a // b
    return tl.where((quotient * b != a) & ((a < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def floor_mod(a, b):
    """Integer remainder with the sign of `b`."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def float_mod(a, b):
    """Floating remainder with the sign of `b` (Python's %)."""
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def float_floor_div(a, b):
    """torch.div(rounding_mode='floor') on floats: exact where the quotient is an integer."""
    rest = libdevice.fmod(a, b)
    quotient = (a - rest) / b
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    floored = libdevice.floor(quotient)
    floored = tl.where(quotient - floored > 0.5, floored + 1, floored)
    signed_zero = libdevice.copysign(quotient * 0, a / b)
    return tl.where(b == 0, a / b, tl.where(quotient == 0, signed_zero, floored))


@triton.jit
def int_pow(a, b):
    """a to the b-th power, wrapping; for negative b what 1 / a**-b truncates to."""
    square = a + b * 0
    one = square * 0 + 1
    result, left = one, tl.maximum(b, b * 0)
    for _ in range(63):
        result = tl.where((left & 1) == 1, result * square, result)
        square = square * square
        left = left >> 1
    parity = tl.where((b & 1) == 1, a, one)
    return tl.where(b >= 0, result, tl.where(a == 1, one, tl.where(a == -1, parity, one * 0)))


@triton.jit
def nan_max(a, b):
    """The greater one; NaN if either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def nan_min(a, b):
    """The smaller one; NaN if either is NaN."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def multiply(a, b):
    """Combine function of a product."""
    return a * b


@triton.jit
def pick_max(a, a_at, b, b_at):
    """Combine (value, position) pairs: greater value, NaN greatest, first position on ties."""
    a_nan, b_nan = a != a, b != b
    better = (a > b) | (a_nan & ~b_nan)
    equal = (a == b) | (a_nan & b_nan)
    keep = better | (equal & (a_at < b_at))
    return tl.where(keep, a, b), tl.where(keep, a_at, b_at)


@triton.jit
def pick_min(a, a_at, b, b_at):
    """Combine (value, position) pairs: smaller value, NaN smallest, first position on ties."""
    a_nan, b_nan = a != a, b != b
    better = (a < b) | (a_nan & ~b_nan)
    equal = (a == b) | (a_nan & b_nan)
    keep = better | (equal & (a_at < b_at))
    return tl.where(keep, a, b), tl.where(keep, a_at, b_at)
