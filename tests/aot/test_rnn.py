"""Recurrent layers train through compiled code (their CPU operator looks at the gradient mode)."""

from __future__ import annotations

import copy
from typing import Any

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


@pytest.mark.parametrize("options", [
    {"batch_first": True, "num_layers": 2}, {"bidirectional": True, "bias": False},
    {"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "dropout": 0.5},
], ids=["two", "both", "two-both", "dropout"])
def test_lstm_of_any_length_is_one_graph_with_its_returned_state(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = torch.nn.LSTM(4, 6, **options)
    peer = copy.deepcopy(layer)
    weft.reset()
    compiled = weft.compile(layer, dynamic=True)
    states: list[Any] = [None, None]
    for length in (5, 3, 9):
        x = torch.randn(3, length, 4) if layer.batch_first else torch.randn(length, 3, 4)
        outputs = []
        for i, model in enumerate((compiled, peer)):
            torch.manual_seed(length)
            output, state = model(x) if states[i] is None else model(x, states[i])
            output.square().sum().backward()
            states[i] = tuple(s.detach() for s in state)
            outputs.append(output)
        torch.testing.assert_close(outputs[0], outputs[1])
        torch.testing.assert_close(states[0], states[1])
        for ours, theirs in zip(layer.parameters(), peer.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert weft.stats()["graphs"] == 2  # without a state, with one
    assert weft.stats()["graph_breaks"] == 0
