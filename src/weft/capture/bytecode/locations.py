"""`co_linetable`: the location table of PEP 626 and 657 (CPython's `Objects/locations.md`).

Each entry covers 1 to 8 code units: a byte `1 kkkk nnn` (kind, units - 1), then what that kind
needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .instruction import Instruction, Positions
from .tables import TABLE

_SHORT_COLUMNS, _SHORT_WIDTH = 80, 16
_ONE_LINE, _NO_COLUMNS, _LONG, _NONE = 10, 13, 14, 15
_UNITS = 8


def encode_locations(
    instructions: Sequence[Instruction], units: Sequence[int], first_line: int
) -> bytes:
    """The location table for instructions of the given sizes (in code units)."""
    spans: Iterable[tuple[Positions, int]] = zip(
        (i.positions for i in instructions), units, strict=True
    )
    return encode_spans(_merge(spans) if TABLE.merges_locations else spans, first_line)


def encode_spans(spans: Iterable[tuple[Positions, int]], first_line: int) -> bytes:
    """The location table for spans of code units, each with its positions."""
    out = bytearray()
    line = first_line
    for positions, size in spans:
        while size > 0:
            line = _append_entry(out, positions, min(size, _UNITS), line)
            size -= _UNITS
    return bytes(out)


def _merge(spans: Iterable[tuple[Positions, int]]) -> Iterator[tuple[Positions, int]]:
    current: Positions | None = None
    total = 0
    for positions, size in spans:
        if positions != current:
            if current is not None:
                yield current, total
            current, total = positions, 0
        total += size
    if current is not None:
        yield current, total


def _append_entry(out: bytearray, positions: Positions, units: int, line: int) -> int:
    """Write one entry; return the line that the next one is relative to."""
    start, end, column, end_column = positions
    if start is None:
        out.append(_head(_NONE, units))
        return line
    delta = start - line
    if column is None or end_column is None:
        if end is None or end == start:
            out.append(_head(_NO_COLUMNS, units))
            out += _encode_signed(delta)
            return start
    elif end == start:
        if delta == 0 and column < _SHORT_COLUMNS and 0 <= end_column - column < _SHORT_WIDTH:
            out.append(_head(column >> 3, units))
            out.append((column & 7) << 4 | end_column - column)
            return start
        if 0 <= delta < 3 and column < 128 and end_column < 128:
            out.append(_head(_ONE_LINE + delta, units))
            out += bytes((column, end_column))
            return start
    out.append(_head(_LONG, units))
    out += _encode_signed(delta)
    out += _encode_unsigned((start if end is None else end) - start)
    out += _encode_unsigned(0 if column is None else column + 1)
    out += _encode_unsigned(0 if end_column is None else end_column + 1)
    return start


def _head(kind: int, units: int) -> int:
    return 128 | kind << 3 | units - 1


def _encode_unsigned(value: int) -> bytes:
    """Little-endian groups of six bits; bit 6 says that more follow."""
    out = bytearray()
    while value >= 64:
        out.append(value & 63 | 64)
        value >>= 6
    out.append(value)
    return bytes(out)


def _encode_signed(value: int) -> bytes:
    return _encode_unsigned(-value << 1 | 1 if value < 0 else value << 1)
