"""Tensors of one integer where Python or an operator takes integers: their numbers are meant."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import weft

X = torch.arange(12.0).reshape(3, 4)
I = torch.tensor([2, 0, 3])

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

INTEGERS: dict[str, Program] = {
    "one_hot": lambda x, i: F.one_hot(i, i.max() + 1),
    "one_hot by name": lambda x, i: F.one_hot(i, num_classes=i.max() + 2),
    "select": lambda x, i: x.select(0, i[1]),
    "narrow": lambda x, i: torch.narrow(x, 1, i[1], i[0]),
    "cumsum": lambda x, i: x.cumsum(i[1] + 1),
    "softmax": lambda x, i: torch.softmax(x, i[1]),
    "transpose": lambda x, i: x.transpose(i[1], 1),
    "unsqueeze": lambda x, i: x.unsqueeze(i[1]),
    "diagonal": lambda x, i: torch.diagonal(x, i[1]),
    "tril": lambda x, i: torch.tril(x, i[1] - 1),
    "repeat_interleave": lambda x, i: x.repeat_interleave(i[0], 0),
    "unfold": lambda x, i: x.unfold(1, i[0], 1),
    "bincount": lambda x, i: torch.bincount(i, minlength=i.max() + 3),
    "index of a list": lambda x, i: [x, x + 1, x + 2][torch.tensor(1)],
    "index of a tuple": lambda x, i: (x, x + 1, x + 2)[torch.tensor(-1)],
}


@pytest.mark.parametrize("name", INTEGERS)
def test_tensor_where_an_integer_is_meant(name: str) -> None:
    program = INTEGERS[name]
    compiled = weft.compile(program, backend="eager")
    for i in (I, I - 0, torch.tensor([3, 0, 3, 1])):
        torch.testing.assert_close(compiled(X, i), program(X, i), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["one_hot", "one_hot by name", "index of a list"])
def test_number_of_classes_from_data_is_captured_whole(name: str) -> None:
    weft.reset()
    weft.compile(INTEGERS[name], backend="eager", fullgraph=True)(X, I)
    assert weft.stats()["graph_breaks"] == 0


COPIES: dict[str, Program] = {
    "plain": lambda x, i: torch.tensor(x),
    "dtype": lambda x, i: torch.tensor(x, dtype=torch.float64),
    "device": lambda x, i: torch.tensor(x, device="cpu"),
    "None": lambda x, i: torch.tensor(x, dtype=None),
    "integers": lambda x, i: torch.tensor(i),
    "transposed": lambda x, i: torch.tensor(x.t()),
    "of a result": lambda x, i: torch.tensor(x[0, 0]) + x,
    "written": lambda x, i: torch.tensor(x).add_(1) + x,
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", COPIES)
def test_copy_of_a_tensor_warns_and_has_no_gradient(name: str, requires_grad: bool) -> None:
    weft.reset()
    program = COPIES[name]
    compiled = weft.compile(program, backend="eager")
    outcomes = []
    for function in (program, compiled, compiled):
        x = X.clone().requires_grad_(requires_grad)
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("always")
            made = function(x, I)
        outcomes.append((made.tolist(), made.dtype, made.stride(), made.requires_grad,
                         [(str(w.message), w.category, w.lineno) for w in shown]))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_reasons_name_what_keeps_a_tensor_out_of_graphs() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)
    for tensor, text in (torch.eye(3).to_sparse(), "torch.sparse_coo"), (nested, "nested"):
        with pytest.raises(weft.errors.GraphBreakError, match=text):
            weft.compile(lambda x, s: s * 2, backend="eager", fullgraph=True)(X, tensor)
