"""Networks of convolutions in plain torch, with random weights, for machines without torchvision.

    MobileNetV2()(torch.randn(4, 3, 160, 160))        # (4, 1000)

Each has the blocks, widths and depths of the network that it is named after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn

Activation = Callable[[], nn.Module]
CLASSES: Final = 1000


def conv(
    channels: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1,
    activation: Activation | None = nn.ReLU,
) -> nn.Sequential:
    """Convolution, batch norm, activation."""
    layers: list[nn.Module] = [
        nn.Conv2d(channels, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([] if activation is None else [activation()]))


class Residual(nn.Module):
    """The sum of branches, with an activation after it."""

    def __init__(self, branches: list[nn.Module], activation: Activation = nn.Identity) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.activation = activation()

    def forward(self, x: Tensor) -> Tensor:
        first, *others = [branch(x) for branch in self.branches]
        for other in others:
            first = first + other
        return self.activation(first)


class Squeeze(nn.Module):
    """Squeeze and excitation: channels weighted by what their means say."""

    def __init__(self, channels: int, inner: int, activation: Activation) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, inner, 1), activation(),
            nn.Conv2d(inner, channels, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weigh(x)


def _classifier(body: list[nn.Module], channels: int) -> nn.Sequential:
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def resnet50() -> nn.Module:
    """Bottlenecks, 3 + 4 + 6 + 3."""
    body: list[nn.Module] = [conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, depth, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for k in range(depth):
            stride = first_stride if k == 0 else 1
            body.append(_bottleneck(channels, width, 4 * width, stride, 1))
            channels = 4 * width
    return _classifier(body, channels)


def _bottleneck(
    channels: int, width: int, outputs: int, stride: int, groups: int, squeeze: int = 0
) -> nn.Module:
    inner: list[nn.Module] = [conv(channels, width, 1), conv(width, width, 3, stride, groups)]
    if squeeze:
        inner.append(Squeeze(width, squeeze, nn.ReLU))
    inner.append(conv(width, outputs, 1, activation=None))
    same = channels == outputs and stride == 1
    shortcut = nn.Identity() if same else conv(channels, outputs, 1, stride, activation=None)
    return Residual([nn.Sequential(*inner), shortcut], nn.ReLU)


def regnet_y() -> nn.Module:
    """RegNetY-400MF: grouped bottlenecks with squeeze and excitation."""
    body: list[nn.Module] = [conv(3, 32, 3, 2)]
    channels = 32
    for width, depth in ((48, 1), (104, 3), (208, 6), (440, 6)):
        for k in range(depth):
            stride = 2 if k == 0 else 1
            body.append(_bottleneck(channels, width, width, stride, width // 8, channels // 4))
            channels = width
    return _classifier(body, channels)


def mobilenet_v2() -> nn.Module:
    """Inverted bottlenecks with ReLU6."""
    body: list[nn.Module] = [conv(3, 32, 3, 2, activation=nn.ReLU6)]
    channels = 32
    for expand, width, depth, first_stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for k in range(depth):
            stride = first_stride if k == 0 else 1
            body.append(_inverted(channels, width, expand, 3, stride, nn.ReLU6))
            channels = width
    return _classifier([*body, conv(channels, 1280, 1, activation=nn.ReLU6)], 1280)


def _inverted(
    channels: int, outputs: int, expand: int, kernel: int, stride: int, activation: Activation,
    squeeze: int = 0,
) -> nn.Module:
    """Expand, depthwise, project; a residual where the sizes allow it."""
    width = channels * expand
    inner = [conv(channels, width, 1, activation=activation)] if expand > 1 else []
    inner.append(conv(width, width, kernel, stride, width, activation))
    if squeeze:
        inner.append(Squeeze(width, squeeze, activation))
    inner.append(conv(width, outputs, 1, activation=None))
    block = nn.Sequential(*inner)
    if stride > 1 or channels != outputs:
        return block
    return Residual([block, nn.Identity()])


def efficientnet() -> nn.Module:
    """EfficientNet-B0: inverted bottlenecks with SiLU and squeeze and excitation."""
    body: list[nn.Module] = [conv(3, 32, 3, 2, activation=nn.SiLU)]
    channels = 32
    for expand, width, depth, first_stride, kernel in (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    ):
        for k in range(depth):
            stride = first_stride if k == 0 else 1
            squeeze = max(1, channels // 4)
            body.append(_inverted(channels, width, expand, kernel, stride, nn.SiLU, squeeze))
            channels = width
    return _classifier([*body, conv(channels, 1280, 1, activation=nn.SiLU)], 1280)


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """Depthwise 7 x 7, layer norm, two linear layers, scale, residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, 1e-6)
        self.expand, self.project = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.project(nn.functional.gelu(self.expand(y))) * self.scale
        return x + y.permute(0, 3, 1, 2)


def convnext_tiny() -> nn.Module:
    """ConvNeXt-T."""
    body: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96, 1e-6)]
    channels = 96
    for width, depth in ((96, 3), (192, 3), (384, 9), (768, 3)):
        if width != channels:
            body += [ChannelNorm(channels, 1e-6), nn.Conv2d(channels, width, 2, 2)]
            channels = width
        body += [ConvNextBlock(width) for _ in range(depth)]
    return _classifier(body, channels)


class UNet(nn.Module):
    """Four levels, two 3 x 3 convolutions at each, transposed convolutions upwards."""

    def __init__(self, width: int = 32, levels: int = 4) -> None:
        super().__init__()
        widths = [width << k for k in range(levels)]
        self.down = nn.ModuleList(
            nn.Sequential(conv(c, w, 3), conv(w, w, 3))
            for c, w in zip([3, *widths], widths, strict=False))
        pairs = list(zip(widths[1:], widths, strict=False))[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(w, v, 2, 2) for w, v in pairs)
        self.join = nn.ModuleList(
            nn.Sequential(conv(w, v, 3), conv(v, v, 3)) for w, v in pairs)
        self.head = nn.Conv2d(width, 2, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        passed: list[Tensor] = []
        for k, block in enumerate(self.down):
            x = block(self.pool(x) if k else x)
            passed.append(x)
        for up, join, beside in zip(self.up, self.join, passed[-2::-1], strict=True):
            x = join(torch.cat([beside, up(x)], 1))
        head: Tensor = self.head(x)
        return head
