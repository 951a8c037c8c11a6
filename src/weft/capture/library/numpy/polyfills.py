"""C types of NumPy in Python, for NumPy's own functions written in Python.

Place in the pipeline: interpreted in place of NumPy's (`rules.py`).
"""

from __future__ import annotations

from typing import Any

import numpy


class ArrayConverter:
    """`numpy.lib.array_utils`' converter of arguments, for arrays."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays = arrays

    def as_arrays(self, subok: bool = True) -> tuple[object, ...]:
        return tuple(numpy.asanyarray(array) for array in self.arrays)

    def wrap(self, array: Any, to_scalar: bool | None = None) -> Any:
        return array[()] if to_scalar else array
