"""Trials of NumPy's functions at the limits of integers: not where these are sizes or positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.capture.library.numpy import models as numpy_models
from weft.capture.library.numpy.models import Blank, try_out


def ints(*shape: int, dtype: str = "int64") -> Blank:
    """An array of unknown integers."""
    steps = [int(np.prod(shape[at + 1:])) for at in range(len(shape))]
    return Blank(shape, tuple(steps), np.dtype(dtype), scalar=not shape)


N = ints()
SIZES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "arange": ("arange", [N], {}),
    "array_split": ("array_split", [ints(8), N], {}),
    "bincount": ("bincount", [ints(5)], {}),
    "broadcast_to": ("broadcast_to", [ints(1), (N,)], {}),
    "choose": ("choose", [ints(3), [ints(3), ints(3)]], {}),
    "eye": ("eye", [N], {}),
    "full": ("full", [(N, 2), 1.0], {}),
    "linspace": ("linspace", [0.0, 1.0, N], {}),
    "histogram": ("histogram", [ints(5), N], {}),
    "identity": ("identity", [N], {}),
    "indices": ("indices", [(N, N)], {}),
    "ones": ("ones", [(N,)], {}),
    "getitem": ("operator.getitem", [ints(5), N], {}),
    "getitem of rows": ("operator.getitem", [ints(5, 4), ints(2)], {}),
    "slice": ("operator.getitem", [ints(5), slice(N, None)], {}),
    "pad": ("pad", [ints(2, 2), N], {}),
    "repeat": ("repeat", [ints(4), ints(4)], {}),
    "resize": ("resize", [ints(4), (N,)], {}),
    "take": ("take", [ints(4), ints(3)], {}),
    "take of bytes": ("take", [ints(4, dtype="uint8"), ints(3, dtype="uint8")], {}),
    "take_along_axis": ("take_along_axis", [ints(4, 4), ints(4, 4), 0], {}),
    "tile": ("tile", [ints(2), N], {}),
    "tri": ("tri", [N], {}),
    "unravel_index": ("unravel_index", [ints(3), (2, 2)], {}),
    "zeros": ("zeros", [(N, N, N)], {}),
    "method repeat": ("method.repeat", [ints(4), N], {}),
    "method take": ("method.take", [ints(4), ints(3)], {}),
}
DATA: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "sum": ("sum", [ints(7, dtype="int8")], {}),
    "cumsum": ("cumsum", [ints(7, dtype="int16"), 0], {}),
    "add": ("add", [ints(7), ints(7)], {}),
    "roll": ("roll", [ints(7), 2], {}),
    "sort": ("sort", [ints(7, 2)], {}),
    "unique": ("unique", [ints(7)], {}),
    "take": ("take", [ints(7), [1, 2]], {}),
    "getitem": ("operator.getitem", [ints(7), slice(1, 3)], {}),
    "pad": ("pad", [ints(2, 2), 1], {}),
    "full": ("full", [(2, 2), N], {}),
    "repeat": ("repeat", [ints(4), 3], {}),
    "reshape": ("reshape", [ints(64, 64), (2, -1)], {}),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_and_positions_are_tried_with_few(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, args, kwargs = SIZES[name]
    monkeypatch.setattr(numpy_models, "_TRIED", {})
    monkeypatch.setattr(Blank, "_extremes", lambda self: pytest.fail("limits of integers"))
    try_out(path, (args, kwargs))


@pytest.mark.parametrize("name", DATA)
def test_integers_that_are_data_are_tried_at_the_limits(
        name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, args, kwargs = DATA[name]
    tried: list[Blank] = []
    extremes = Blank._extremes

    def noted(self: Blank) -> Any:
        tried.append(self)
        return extremes(self)

    monkeypatch.setattr(numpy_models, "_TRIED", {})
    monkeypatch.setattr(Blank, "_extremes", noted)
    try_out(path, (args, kwargs))
    assert tried or not try_out(path, (args, kwargs)).agrees  # type: ignore[union-attr]
