"""Batch norms by vendors' libraries are traced as PyTorch's own: cuDNN's trained uncompiled.

No GPU is needed: on fake tensors cuDNN's operator is a matter of metadata.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import weft


def cudnns(x, weight, bias, mean, var, training):
    return torch.cudnn_batch_norm(x * 2, weight, bias, mean, var, training, 0.1, 1e-5)[0].relu()


def pytorchs(x, weight, bias, mean, var, training):
    return F.batch_norm(x * 2, mean, var, weight, bias, training, 0.1, 1e-5).relu()


@pytest.mark.parametrize(("training", "kept"), [(True, True), (True, False), (False, True)])
def test_results_gradients_and_statistics(training: bool, kept: bool) -> None:
    weft.reset()
    results = []
    for function in (weft.compile(cudnns), pytorchs):
        torch.manual_seed(0)
        x, weight, bias = (torch.rand(s, requires_grad=True) for s in ((4, 3, 5, 5), (3,), (3,)))
        statistics = (torch.rand(3), torch.rand(3)) if kept else (None, None)
        out = function(x, weight, bias, *statistics, training)
        grads = torch.autograd.grad(out.square().sum(), [x, weight, bias])
        results.append([out, *grads, *statistics])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert weft.stats()["uncompiled_graphs"] == 0
