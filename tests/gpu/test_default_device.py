"""Programs under a default device that is a GPU: what follows from constants is known there too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import weft

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    weft.reset()
    torch.manual_seed(0)
    torch.set_default_device("cuda")
    with weft.config.patch(strict=True):
        yield
    torch.set_default_device(None)


def increasing(x: torch.Tensor) -> torch.Tensor:
    times = torch.linspace(0, 1, 5)
    if not (times[1:] > times[:-1]).all():
        raise ValueError("times must increase")
    return x + times[int(times.argmax())]


def masked(x: torch.Tensor) -> torch.Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    causal = torch.full((x.shape[1],) * 2, float("-inf")).triu(1)
    return x + 1 if bool((mask == causal).all()) else x - 1


def waves(x: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(16)
    spectrum = torch.stft(x, 16, 4, window=window, return_complex=True)
    return torch.istft(spectrum * 2, 16, 4, window=window, length=x.shape[-1])


def explicit(x: torch.Tensor) -> torch.Tensor:
    on_cpu = torch.tensor([1, 2, 3], device="cpu")
    return x * on_cpu.sum().item() if on_cpu.tolist() == [1, 2, 3] else x


@pytest.mark.parametrize("program", [increasing, masked, waves, explicit])
def test_no_break(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compiled = weft.compile(program)
    for _ in range(2):
        x = torch.randn(2, 64)
        torch.testing.assert_close(compiled(x), program(x), rtol=1e-4, atol=1e-5)
    assert weft.stats()["graph_breaks"] == 0


def test_a_device_of_the_program() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.device("cpu"):
            limits = torch.arange(3)
        return x + 1 if limits.sum() > 2 else x

    compiled = weft.compile(program)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), program(x))
    assert weft.stats()["graph_breaks"] == 0


FIRST_OF_A_PROCESS = """
import torch, weft
weft.config.strict = True
compiled = weft.compile(lambda n: torch.zeros(n, device="cuda") + torch.ones(n, device={device!r}))
assert compiled(3).tolist() == [1.0] * 3
assert weft.stats()["graph_breaks"] == 0, weft.stats()
"""


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_the_first_tensor_of_a_process_is_made_inside(device: str) -> None:
    program = FIRST_OF_A_PROCESS.format(device=device)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
