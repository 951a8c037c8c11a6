"""Tensors that graphs do not hold: the break names what they are, whatever is done with them.

Sparse inputs broke as an operation without a rule, with the hint to report it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.capture.core.breaks import BREAKS

DENSE = torch.eye(3) + 1
TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "layout torch.sparse_coo": lambda: DENSE.to_sparse(),
    "layout torch.sparse_csc": lambda: DENSE.to_sparse_csc(),
    "quantized": lambda: torch.quantize_per_tensor(DENSE, 0.1, 0, torch.quint8),
}
USES: dict[str, Callable[[Any], Any]] = {
    "operator": lambda t: t * 2,
    "reflected operator": lambda t: 2 * t,
    "operand": lambda t: DENSE * t,
    "method": lambda t: t.clone(),
    "function": lambda t: torch.neg(t),
    "argument": lambda t: torch.mul(DENSE, t),
    "attribute": lambda t: t.shape[0] + t.dim(),
    "item": lambda t: t[0],
    "hash": lambda t: {t: 1}[t],
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:torch.quant:UserWarning")
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", TENSORS)
def test_the_break_names_the_kind_of_tensor(kind: str, use: str) -> None:
    tensor, function = TENSORS[kind](), USES[use]
    try:
        expected = function(tensor)
    except (RuntimeError, NotImplementedError):
        with pytest.raises((RuntimeError, NotImplementedError)):
            weft.compile(function, backend="eager")(tensor)
        return
    result = weft.compile(function, backend="eager")(tensor)
    assert type(result) is type(expected)
    if isinstance(result, torch.Tensor):
        assert result.layout is expected.layout
        dense = [t.dequantize() if t.is_quantized else t.to_dense() for t in (result, expected)]
        torch.testing.assert_close(*dense)
    else:
        assert result == expected
    first, *_ = weft.explain(function, backend="eager")(tensor).graph_breaks
    assert (first.id, first.hint) == ("unheld-tensor", BREAKS["unheld-tensor"].hint)
    assert kind in first.reason
