"""Micro cases: one operation or a few, and the cost of a call."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.cases import Workload, case, dtype_for, is_gpu


def _random(*size: int, device: str, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.randn(*size, device=device, dtype=dtype or dtype_for(device))


def _bytes(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@case("pointwise", kind="micro")
def pointwise(device: str) -> Workload:
    """A chain of pointwise operators, 1024 x 1024 (GPU: bf16 8192 x 8192)."""
    n = 8192 if is_gpu(device) else 1024
    x, y = _random(n, n, device=device), _random(n, n, device=device)

    def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x.relu() + x.sigmoid()) * y.tanh() - x * 0.5

    return Workload(chain, (x, y), min_bytes=_bytes(x, x, y))


@case("norm-gelu", kind="micro")
def norm_gelu(device: str) -> Workload:
    """Residual, layer norm, GELU, 2048 x 1024 (GPU: bf16 16384 x 4096)."""
    rows, width = (16384, 4096) if is_gpu(device) else (2048, 1024)
    x, residual = _random(rows, width, device=device), _random(rows, width, device=device)
    weight, bias = _random(width, device=device), _random(width, device=device)

    def run(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return functional.gelu(functional.layer_norm(x + r, (x.shape[-1],), w, b))

    return Workload(run, (x, residual, weight, bias), min_bytes=_bytes(x, x, x))


@case("softmax", kind="micro")
def softmax(device: str) -> Workload:
    """Softmax over rows, fp32 2048 x 1024 (GPU: 16384 x 4096)."""
    size = (16384, 4096) if is_gpu(device) else (2048, 1024)
    x = _random(*size, device=device, dtype=torch.float32)
    return Workload(lambda x: torch.softmax(x, -1), (x,), min_bytes=_bytes(x, x))


def _rotate_half(x: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


@case("rms-rotary", kind="micro")
def rms_rotary(device: str) -> Workload:
    """RMS norm, then rotary embedding, 2 x 256 x 1024 (GPU: bf16 4 x 2048 x 4096)."""
    batch, length, width = (4, 2048, 4096) if is_gpu(device) else (2, 256, 1024)
    head = 128 if is_gpu(device) else 64
    x, weight = _random(batch, length, width, device=device), _random(width, device=device)
    angles = torch.outer(torch.arange(length, device=device).float(),
                         1e4 ** -(torch.arange(0, head, 2, device=device).float() / head))
    table = torch.cat((angles, angles), -1)
    cos, sin = table.cos().to(x.dtype)[:, None], table.sin().to(x.dtype)[:, None]

    def run(
        x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        wide = x.float()
        normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
        heads = normed.view(*x.shape[:-1], -1, cos.shape[-1])
        return heads * cos + _rotate_half(heads) * sin

    return Workload(run, (x, weight, cos, sin), min_bytes=_bytes(x, x))


@case("cross-entropy", kind="micro")
def cross_entropy(device: str) -> Workload:
    """Cross-entropy over a large vocabulary, forward, 512 x 16000 (GPU: bf16 4096 x 50304)."""
    rows, classes = (4096, 50304) if is_gpu(device) else (512, 16000)
    logits = _random(rows, classes, device=device)
    labels = torch.randint(0, classes, (rows,), device=device)
    return Workload(lambda x, y: functional.cross_entropy(x.float(), y), (logits, labels),
                    min_bytes=_bytes(logits))


@case("add-one", kind="overhead")
def add_one(device: str) -> Workload:
    """Cost of a call: x + 1 on 4 elements, no gradients."""
    return Workload(lambda x: x + 1, (_random(4, device=device, dtype=torch.float32),))


@case("add-one-grad", kind="overhead")
def add_one_grad(device: str) -> Workload:
    """Cost of a call: x + 1 on 4 elements that require gradients."""
    x = _random(4, device=device, dtype=torch.float32).requires_grad_()
    return Workload(lambda x: x + 1, (x,), grad=True)


@case("relu-sigmoid-tanh", kind="overhead")
def relu_sigmoid_tanh(device: str) -> Workload:
    """Cost of a call: (relu + sigmoid) * tanh on 4 elements."""
    x = _random(4, device=device, dtype=torch.float32)
    return Workload(lambda x: (x.relu() + x.sigmoid()) * x.tanh(), (x,))


@case("linear-relu-200", kind="overhead")
def linear_relu_200(device: str) -> Workload:
    """Cost of a call: 200 x (Linear 8, ReLU), 400 parameters."""
    layers = [m for _ in range(200) for m in (nn.Linear(8, 8), nn.ReLU())]
    model = nn.Sequential(*layers).eval().to(device)
    return Workload(model, (_random(2, 8, device=device, dtype=torch.float32),))
