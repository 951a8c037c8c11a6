"""`out=` of every size, stride and type: what is written, resized and returned, and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft

OUTPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "right": lambda: torch.zeros(2, 3),
    "empty": lambda: torch.empty(0),
    "small": lambda: torch.zeros(2),
    "large": lambda: torch.zeros(7, 7),
    "view": lambda: torch.zeros(4, 4)[:2, :3],
    "view of another size": lambda: torch.zeros(10)[:8],
    "row": lambda: torch.zeros(4, 4)[0],
    "columns": lambda: torch.zeros(3, 2).t(),
    "with gaps": lambda: torch.zeros(2, 6)[:, ::2],
    "float64": lambda: torch.zeros(2, 3, dtype=torch.float64),
    "integers": lambda: torch.zeros(2, 3, dtype=torch.int64),
    "expanded": lambda: torch.zeros(1, 3).expand(2, 3),
}
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "sum": lambda x, out: torch.sum(x, 0, out=out),
    "mm": lambda x, out: torch.mm(x, x.t(), out=out),
}
PLACES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda out: out, "a view": lambda out: out.view(out.shape),
    "a part": lambda out: out[:1],
}


def run(
    function: Callable[..., Any], out: torch.Tensor
) -> tuple[list[Any], list[str]]:
    """What the function returns or raises, what it leaves in `out`, and its warnings."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            results = function(torch.arange(6.0).view(2, 3), out)
        except (RuntimeError, TypeError) as error:
            return [type(error), str(error)[:60]], []
    described = [(r.shape, r.stride(), r.dtype, r.tolist()) if isinstance(r, torch.Tensor) else r
                 for r in (*results, out)]
    return described, [str(w.message)[:60] for w in heard]


@pytest.mark.parametrize("write", WRITES)
def test_outputs_of_all_forms(write: str) -> None:
    """Views that eager resizes kept their sizes, or failed inside; others warned three times."""
    for name, output in OUTPUTS.items():
        for place, part in PLACES.items():

            def f(x: torch.Tensor, out: torch.Tensor, part: Any = part) -> Any:
                given = part(out)
                result = WRITES[write](x, given)
                return result is given, result * 1, given * 1, out * 1

            if place == "a part" and output().numel() == 0:
                continue
            weft.reset()
            wanted, actual = run(f, output()), run(weft.compile(f, backend="aot_eager"), output())
            assert actual == wanted, (name, place)
