"""Looks for stale forms: sequences of calls, writes and mode changes, compared with eager.

    python -m tools.stale_forms --seeds 0:300

A sequence has a model whose weights are packed, and draws what happens to it: writes that version
counters see and those that they do not, swaps, resizes, NumPy's arrays, shared and moved memory,
training and evaluation. `tests/aot/test_kept_forms.py` runs a few of them.
"""

from __future__ import annotations

import argparse
import copy
import random
from collections.abc import Callable
from typing import Final
from unittest.mock import patch

import torch
from torch import nn

import weft
from weft.codegen.lowering import onednn
from weft.runtime.kept_forms import bytes_kept

WIDTH: Final = 512
"""Wide enough for packed products of few rows."""
ROWS: Final = (4, 16)


class Model(nn.Module):
    """Products of several kinds, and what is folded into them."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.convolution, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = self.norm(self.convolution(x.view(x.shape[0], 2, 16, 16))).relu()
        attended = torch.tanh(self.q(x) * self.k(x) + self.v(x))
        result: torch.Tensor = self.last(attended) + image.mean()
        return result


_aliases: list[torch.Tensor] = []
"""Held for later writes."""

Event = Callable[[nn.Module, random.Random], None]


def _parameter(model: nn.Module, draw: random.Random) -> nn.Parameter:
    return draw.choice(list(model.parameters()))


def write_in_no_grad(model: nn.Module, draw: random.Random) -> None:
    with torch.no_grad():
        _parameter(model, draw).add_(0.01)


def write_data(model: nn.Module, draw: random.Random) -> None:
    _parameter(model, draw).data.mul_(0.99)


def copy_data(model: nn.Module, draw: random.Random) -> None:
    parameter = _parameter(model, draw)
    parameter.data.copy_(parameter.detach() * 1.01)


def write_element(model: nn.Module, draw: random.Random) -> None:
    _parameter(model, draw).data.view(-1)[3] = 0.25


def assign_data(model: nn.Module, draw: random.Random) -> None:
    parameter = _parameter(model, draw)
    parameter.data = parameter.detach() * 0.9


def write_by_numpy(model: nn.Module, draw: random.Random) -> None:
    _parameter(model, draw).detach().numpy()[...] *= 0.98


def write_by_dlpack(model: nn.Module, draw: random.Random) -> None:
    torch.from_dlpack(_parameter(model, draw).detach()).mul_(1.02)


def write_storage(model: nn.Module, draw: random.Random) -> None:
    parameter = _parameter(model, draw)
    storage = parameter.untyped_storage()
    if storage.nbytes() == parameter.nbytes:
        storage.copy_((parameter.detach() * 0.97).untyped_storage())


def resize_and_fill(model: nn.Module, draw: random.Random) -> None:
    parameter = _parameter(model, draw)
    storage, old = parameter.untyped_storage(), parameter.detach().clone()
    size = storage.nbytes()
    # Nobody else's memory; of shared memory, PyTorch itself crashes.
    if size == parameter.nbytes and not storage.is_shared():
        storage.resize_(0)
        storage.resize_(size)
        parameter.data.copy_(old * 1.03)


def load_state(model: nn.Module, draw: random.Random) -> None:
    state = {k: v * 0.95 if v.is_floating_point() else v for k, v in model.state_dict().items()}
    model.load_state_dict(state, assign=draw.random() < 0.3)


def step(model: nn.Module, draw: random.Random) -> None:
    kind = draw.choice([torch.optim.SGD, torch.optim.AdamW])
    fused = {"fused": True} if draw.random() < 0.5 else {}
    optimizer = kind(model.parameters(), lr=1e-3, **fused)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.1)
    optimizer.step()
    model.zero_grad()


def to_double_and_back(model: nn.Module, draw: random.Random) -> None:
    model.double()
    model.float()


def swap(model: nn.Module, draw: random.Random) -> None:
    parameter = _parameter(model, draw)
    torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach() * 0.96))


def new_parameter(model: nn.Module, draw: random.Random) -> None:
    assert isinstance(model.q, nn.Linear)
    model.q.weight = nn.Parameter(model.q.weight.detach() * 1.04)


def share(model: nn.Module, draw: random.Random) -> None:
    _parameter(model, draw).share_memory_()


def hold_alias(model: nn.Module, draw: random.Random) -> None:
    _aliases.append(_parameter(model, draw).data)


def write_alias(model: nn.Module, draw: random.Random) -> None:
    if _aliases:
        _aliases[-1].mul_(0.99)


def tie(model: nn.Module, draw: random.Random) -> None:
    assert isinstance(model.q, nn.Linear) and isinstance(model.k, nn.Linear)
    model.k.weight = model.q.weight


def flatten(model: nn.Module, draw: random.Random) -> None:
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(flat * 0.999, model.parameters())


def train_once(model: nn.Module, draw: random.Random) -> None:
    model.train()
    with torch.enable_grad():
        model(torch.ones(4, WIDTH)).sum().backward()
    model.eval()
    model.zero_grad()


EVENTS: Final[tuple[Event, ...]] = (
    write_in_no_grad, write_data, copy_data, write_element, assign_data, write_by_numpy,
    write_by_dlpack, write_storage, resize_and_fill, load_state, step, to_double_and_back, swap,
    new_parameter, share, hold_alias, write_alias, tie, flatten, train_once,
)


def run_sequence(seed: int, length: int = 12) -> int:
    """One sequence; returns how many calls used kept forms. Raises AssertionError if one is stale.
    """
    draw = random.Random(seed)
    torch.manual_seed(seed)
    _aliases.clear()
    model = Model().eval()
    compiled = weft.compile(model)
    inputs = [torch.randn(rows, WIDTH) for rows in ROWS]
    kept = 0
    for number in range(length):
        event = draw.choice(EVENTS) if number else None
        if event is not None:
            _happen(event, model, draw)
        for x in draw.choices(inputs, k=draw.choice([1, 2, 3])):
            kept += _compare(model, compiled, x, draw, f"seed {seed}, event {number}: {event}")
        if draw.random() < 0.1:
            model = copy.deepcopy(model)
            compiled = weft.compile(model)
    return kept


def _happen(event: Event, model: nn.Module, draw: random.Random) -> None:
    """Let an event happen, unless PyTorch refuses it (to resize what NumPy has seen, say)."""
    try:
        event(model, draw)
    except RuntimeError as error:
        if "INTERNAL ASSERT" in str(error):
            raise


def _compare(
    model: nn.Module, compiled: Callable[..., torch.Tensor], x: torch.Tensor, draw: random.Random,
    what: str,
) -> int:
    mode = draw.choice([torch.no_grad, torch.no_grad, torch.inference_mode, torch.enable_grad])
    with mode():
        result, expected = compiled(x).detach(), model(x).detach()
    scale = float(expected.abs().max()) + 1
    error = float((result - expected).abs().max())
    assert error <= 2e-5 * scale, f"{what}: differs by {error}"
    return int(bytes_kept() > 0)


def _always(rows: int) -> bool:
    """Weights are packed, whatever is faster here."""
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:300", help="first:last")
    first, last = map(int, parser.parse_args().seeds.split(":"))
    with patch.object(onednn, "packed_is_faster", _always):
        raise SystemExit(_search(first, last))


def _search(first: int, last: int) -> bool:
    """Whether a sequence had a stale result."""
    stale, kept = [], 0
    for seed in range(first, last):
        try:
            kept += run_sequence(seed)
        except AssertionError as error:
            stale.append(str(error))
            print(error, flush=True)
        if seed % 20 == 19:
            weft.reset()
            print(f"{seed - first + 1} sequences so far", flush=True)
    print(f"{last - first} sequences, {kept} calls with kept forms, {len(stale)} stale results")
    return bool(stale)


if __name__ == "__main__":
    main()
