"""Training cases: forward, loss and backward of common models, dropout as configured by default.

The loss multiplies the output by fixed random numbers, so that no gradient is zero by symmetry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.cases import Workload, case, dtype_for, is_gpu

Loss = Callable[[Any], torch.Tensor]


def _workload(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Loss,
              device: str) -> Workload:
    """Forward, loss and backward; the loss and the gradients are the result."""
    torch.manual_seed(0)
    model.train().to(device=device, dtype=dtype_for(device))

    def step(fn: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            for p in model.parameters():
                p.grad = None
            value = loss(fn(*args, **kwargs))
            value.backward()
            return [value.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

        return run

    return Workload(model, args, kwargs, grad=True, step=step)


def _projection(pick: Callable[[Any], torch.Tensor]) -> Loss:
    """A loss that weights the output by fixed random numbers."""
    weights: list[torch.Tensor] = []

    def loss(output: Any) -> torch.Tensor:
        picked = pick(output)
        if not weights:
            weights.append(torch.randn(picked.shape, device=picked.device, dtype=picked.dtype))
        return (picked * weights[0]).mean()

    return loss


def _classes(target: torch.Tensor) -> Loss:
    return lambda output: cross_entropy(getattr(output, "logits", output), target)


def _images(batch: int, side: int, device: str) -> torch.Tensor:
    return torch.randn(batch, 3, side, side, device=device, dtype=dtype_for(device))


def _labels(batch: int, classes: int, device: str) -> torch.Tensor:
    return torch.randint(0, classes, (batch,), device=device)


def _language_model(model: nn.Module, shape: tuple[int, int], device: str) -> Workload:
    """Training on random tokens, which are their own labels."""
    tokens = torch.randint(0, model.config.vocab_size, shape, device=device)
    return _workload(model, (), {"input_ids": tokens, "labels": tokens}, lambda o: o.loss, device)


@case("gpt2-training", kind="training")
def gpt2_training(device: str) -> Workload:
    """GPT-2 with its loss: 4 x 256, 4 x 64 tokens, 8,000 words (GPU: base, 8 x 512)."""
    small = {} if is_gpu(device) else {"n_embd": 256, "n_layer": 4, "n_head": 8,
                                       "vocab_size": 8000, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(use_cache=False, **small)
    shape = (8, 512) if is_gpu(device) else (4, 64)
    return _language_model(transformers.GPT2LMHeadModel(config), shape, device)


@case("t5-training", kind="training")
def t5_training(device: str) -> Workload:
    """T5 with its loss: 2 + 2 layers of 256, 4 x 64 tokens (GPU: base, 8 x 256)."""
    small = {} if is_gpu(device) else {"d_model": 256, "num_layers": 2, "num_heads": 8,
                                       "d_ff": 1024, "d_kv": 32, "vocab_size": 8000}
    config = transformers.T5Config(use_cache=False, decoder_start_token_id=0, **small)
    shape = (8, 256) if is_gpu(device) else (4, 64)
    return _language_model(transformers.T5ForConditionalGeneration(config), shape, device)


@case("vit-training", kind="training")
def vit_training(device: str) -> Workload:
    """ViT: 4 x 192, 2 images (GPU: B/16, 32 images)."""
    small = {} if is_gpu(device) else {"hidden_size": 192, "num_hidden_layers": 4,
                                       "num_attention_heads": 6, "intermediate_size": 768}
    model = transformers.ViTModel(transformers.ViTConfig(**small), add_pooling_layer=False)
    images = _images(32 if is_gpu(device) else 2, 224, device)
    return _workload(model, (images,), {}, _projection(lambda o: o.last_hidden_state), device)


def _resnet(device: str, side: int, batch: int, **settings: Any) -> Workload:
    config = transformers.ResNetConfig(num_labels=100, **settings)
    model = transformers.ResNetForImageClassification(config)
    labels = _labels(batch, 100, device)
    return _workload(model, (_images(batch, side, device),), {}, _classes(labels), device)


@case("resnet18-training", kind="training")
def resnet18_training(device: str) -> Workload:
    """ResNet-18, 4 images of 112 x 112 (GPU: 64 of 224 x 224)."""
    side, batch = (224, 64) if is_gpu(device) else (112, 4)
    return _resnet(device, side, batch, layer_type="basic", depths=[2, 2, 2, 2],
                   hidden_sizes=[64, 128, 256, 512], embedding_size=64)


@case("resnet50-training", kind="training")
def resnet50_training(device: str) -> Workload:
    """ResNet-50, 4 images of 96 x 96 (GPU: 64 of 224 x 224)."""
    side, batch = (224, 64) if is_gpu(device) else (96, 4)
    return _resnet(device, side, batch)


@case("mobilenet-training", kind="training")
def mobilenet_training(device: str) -> Workload:
    """MobileNetV2, 4 images of 96 x 96 (GPU: 64 of 224 x 224)."""
    side, batch = (224, 64) if is_gpu(device) else (96, 4)
    config = transformers.MobileNetV2Config(num_labels=100, image_size=side)
    model = transformers.MobileNetV2ForImageClassification(config)
    labels = _labels(batch, 100, device)
    return _workload(model, (_images(batch, side, device),), {}, _classes(labels), device)


@case("convnext-training", kind="training")
def convnext_training(device: str) -> Workload:
    """ConvNeXt narrowed, 2 images of 128 x 128 (GPU: T, 32 of 224 x 224)."""
    small = {} if is_gpu(device) else {"depths": [2, 2, 2, 2], "hidden_sizes": [48, 96, 192, 384]}
    config = transformers.ConvNextConfig(num_labels=100, **small)
    side, batch = (224, 32) if is_gpu(device) else (128, 2)
    model = transformers.ConvNextForImageClassification(config)
    labels = _labels(batch, 100, device)
    return _workload(model, (_images(batch, side, device),), {}, _classes(labels), device)


class _Tagger(nn.Module):
    """Embedding, two layers of LSTM, a linear layer over the last state."""

    def __init__(self, words: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        logits: torch.Tensor = self.head(states[:, -1])
        return logits


@case("lstm-training", kind="training")
def lstm_training(device: str) -> Workload:
    """Two layers of LSTM, 128 wide, 16 x 32 tokens (GPU: 1024 wide, 64 x 128)."""
    width, shape = (1024, (64, 128)) if is_gpu(device) else (128, (16, 32))
    tokens = torch.randint(0, 5000, shape, device=device)
    labels = _labels(shape[0], 10, device)
    return _workload(_Tagger(5000, width, 10), (tokens,), {}, _classes(labels), device)


class _Convolutions(nn.Module):
    """Convolution, batch norm, ReLU, pooling; twice; then two linear layers with dropout."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(),
                       nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Dropout(0.2),
                                  nn.Linear(256, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images))
        return logits


@case("small-cnn-training", kind="training")
def small_cnn_training(device: str) -> Workload:
    """A small convolutional network, 16 images of 32 x 32 (GPU: 1,024 of them)."""
    batch = 1024 if is_gpu(device) else 16
    labels = _labels(batch, 10, device)
    images = _images(batch, 32, device)
    return _workload(_Convolutions(10), (images,), {}, _classes(labels), device)
