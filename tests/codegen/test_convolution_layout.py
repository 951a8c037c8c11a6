"""Convolutions in channels-last memory: same values and same strides of outputs as eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.fx
from torch import nn

import weft
from weft.backends.inductor import compile_fx
from weft.diagnostics import events
from weft.diagnostics.memory import peak_of


class Block(nn.Module):
    """Convolutions of all kinds with norms, a residual, pooling and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, stride=2, padding=3)
        self.norm = nn.BatchNorm2d(32)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.narrow = nn.Conv2d(32, 48, 1)
        self.depthwise = nn.Conv2d(48, 48, 5, padding=2, groups=48)
        self.wide = nn.Conv2d(48, 32, 3, padding=1, bias=False)
        self.strided = nn.Conv2d(32, 64, 1, stride=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.pool(torch.relu(self.norm(self.stem(x))))
        y = torch.relu(self.wide(torch.tanh(self.depthwise(self.narrow(x))))) + x
        z = self.strided(y)
        return z, z.flatten(2).transpose(1, 2) * 2, y.mean((2, 3))


def compiled(
    module: nn.Module | Callable[..., object], *inputs: torch.Tensor
) -> tuple[object, str]:
    events.reset()
    gm = torch.fx.symbolic_trace(module)
    with torch.no_grad():
        result = compile_fx(gm, list(inputs))(*inputs)
    [code] = events.history("output_code")
    return result, code.source


def check_same(got: object, wanted: object) -> None:
    pairs = zip(got, wanted, strict=True) if isinstance(wanted, tuple) else [(got, wanted)]  # type: ignore[call-overload]
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        for size, left, right in zip(b.shape, a.stride(), b.stride(), strict=True):
            assert size == 1 or left == right


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 96, 80), (1, 3, 64, 64)])
def test_a_block_of_convolutions(shape: tuple[int, ...], channels_last: bool) -> None:
    torch.manual_seed(0)
    block = Block().eval()
    x = torch.randn(shape)
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        wanted = block(x)
    got, _ = compiled(block, x)
    check_same(got, wanted)


def test_images_stay_in_channels_last_between_convolutions() -> None:
    """No kernel converts: only the input is brought to the layout."""
    first, second = nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 16, 3, padding=1)
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Conv2d(16, 32, 3)).eval()
    x = torch.randn(2, 16, 40, 40)
    with torch.no_grad():
        wanted = model(x)
    events.reset()
    got, _ = compiled(model, x)
    check_same(got, wanted)
    assert len(events.history("kernel")) == 4  # input, two relus, output


def test_small_and_transposed_convolutions_stay_with_aten() -> None:
    small, weight = nn.Conv2d(2, 3, 3), torch.randn(16, 16, 3, 3)

    def up(x: torch.Tensor) -> torch.Tensor:
        return torch.conv_transpose2d(x, weight)

    for function, x in ((small, torch.randn(1, 2, 9, 9)), (up, torch.randn(2, 16, 50, 50))):
        with torch.no_grad():
            wanted = function(x)
        check_same(compiled(function, x)[0], wanted)


def test_a_lone_convolution_keeps_the_layout_of_the_image() -> None:
    """Its input and its result would be copied, for the sake of one call."""
    weight = torch.randn(32, 32, 3, 3)
    x = torch.randn(2, 32, 40, 40)
    for function in (lambda x: torch.conv2d(x, weight).relu(),
                     lambda x: torch.conv2d(x, weight).flatten(2).transpose(1, 2)):
        result, source = compiled(function, x)
        check_same(result, function(x))
        assert source.count("empty") + source.count("view") <= 1


def test_graphs_that_return_their_activations_keep_their_layout() -> None:
    convolution = nn.Conv2d(16, 16, 3, padding=1)

    class Training(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = convolution

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.a(x)
            z = torch.relu(y)
            return self.a(z), y, z

    x = torch.randn(2, 16, 64, 64)
    with torch.no_grad():
        wanted = Training()(x)
    check_same(compiled(Training(), x)[0], wanted)


def test_a_weight_larger_than_its_images_is_not_copied_at_each_call() -> None:
    """ATen copied it as NHWC: 2.0 x eager's memory (PoolFormer), 1.6 x its time (ResNet-18)."""
    layers = [nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 1), nn.ReLU(),
              nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 64, 1)]
    model, x = nn.Sequential(*layers).eval(), torch.randn(4, 64, 8, 8)
    optimized = weft.compile(model)
    with torch.no_grad():
        check_same(optimized(x), model(x))
        assert peak_of(lambda: optimized(x)) <= peak_of(lambda: model(x))
