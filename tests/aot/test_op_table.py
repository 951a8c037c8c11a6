"""A part of PyTorch's operator database, forward and gradients (`op_table.py` prints all of it)."""

import os
import warnings

import pytest
import torch
from comparing import RUNNERS
from error_inputs import error_outcomes
from op_table import outcomes
from torch.testing._internal.common_methods_invocations import op_db
from worker_processes import Died, in_processes

import weft

OPS = op_db[::12]
MAY_FALL_BACK = {
    "allclose", "argwhere", "combinations", "corrcoef", "cov", "equal", "index_fill", "index_put",
    "item", "linalg.lstsq", "masked_select", "narrow", "nn.functional.ctc_loss",
    "nn.functional.gaussian_nll_loss", "nonzero", "resize_", "sparse.mm.reduce",
    "sparse.sampled_addmm", "tensor_split", "unique", "unique_consecutive",
}
"""Operators that read values, or whose results' sizes depend on data: they run through autograd."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.formatted_name)
def test_operator_equals_eager(op, dtype: torch.dtype) -> None:
    with weft.config.patch(strict=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for outcome in outcomes(op, dtype, RUNNERS["graph"]("aot_eager"), samples=1):
            allowed = ("equal", "eager fails")
            if op.name in MAY_FALL_BACK:
                allowed = (*allowed, "fallback")
            assert outcome.startswith(allowed), outcome


@pytest.mark.parametrize(
    "name",
    ["nn.functional.gelu", "native_layer_norm", "gather", "mm", "complex", "amax", "index_select"],
)
def test_what_eager_refuses_is_refused(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Kernels of our own checked neither GELU's variant nor the sizes of a norm's weight, the type
    of `out` nor the number of dimensions; PyTorch's fakes logged what they refused.
    """
    op = next(o for o in op_db if o.name == name)
    for outcome in error_outcomes(op, RUNNERS["compile"]("inductor")):
        assert outcome.startswith("equal") or outcome == "eager passes", outcome
    assert "failed while attempting" not in capfd.readouterr().err


def test_an_entry_that_crashes_ended_the_table() -> None:
    """Eager's own crash in one operator cost all that came after it."""

    def work(item: int) -> int:
        if item == 1:
            os._exit(3)
        return item * item

    found = dict(in_processes(work, range(4), jobs=2, limit_s=60))
    assert found == {0: 0, 1: Died("process ended with 3"), 2: 4, 3: 9}
