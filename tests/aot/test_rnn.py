"""Recurrent layers train through compiled code (their CPU operator looks at the gradient mode)."""

from __future__ import annotations

import copy

import pytest
import torch

import weft


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layer_trains(kind: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    layer = kind(4, 6, batch_first=True)
    peer = copy.deepcopy(layer)
    compiled, x = weft.compile(layer), torch.randn(2, 5, 4)
    output, expected = compiled(x)[0], peer(x)[0]
    torch.testing.assert_close(output, expected)
    output.square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(layer.parameters(), peer.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
