"""A part of PyTorch's module database (`op_table.py --modules` prints all of it)."""

import warnings

import pytest
import torch
from comparing import RUNNERS
from module_table import module_outcomes
from torch.testing._internal.common_modules import module_db

import weft

RECURRENT = {"nn.LSTM", "nn.GRU", "nn.RNN"}
MODULES = [m for i, m in enumerate(module_db) if i % 8 == 0 or m.name in RECURRENT]
MAY_FALL_BACK = {"nn.BatchNorm1d", "nn.BatchNorm2d", "nn.BatchNorm3d", "nn.CTCLoss",
                 "nn.GaussianNLLLoss"}
"""Modules that read values of tensors in some samples: a captured program breaks there."""


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("info", MODULES, ids=lambda m: m.name)
def test_module_equals_eager(info, backend: str) -> None:
    with weft.config.patch(strict=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for outcome in module_outcomes(info, torch.float32, RUNNERS["graph"](backend), samples=1):
            allowed = ("equal", "fallback") if info.name in MAY_FALL_BACK else ("equal",)
            assert outcome.startswith(allowed), outcome
