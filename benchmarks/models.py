"""Cases made from transformers configurations with random weights, and an MLP with norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.cases import Workload, case, dtype_for, is_gpu


def _place(model: nn.Module, device: str) -> nn.Module:
    torch.manual_seed(0)
    return model.eval().to(device=device, dtype=dtype_for(device))


def _tokens(vocabulary: int, batch: int, length: int, device: str) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length), device=device)


def _images(batch: int, device: str, channels_last: bool = False) -> torch.Tensor:
    made = torch.randn(batch, 3, 224, 224, device=device, dtype=dtype_for(device))
    return made.contiguous(memory_format=torch.channels_last) if channels_last else made


def _bert_config(device: str) -> Any:
    if is_gpu(device):
        return transformers.BertConfig()
    return transformers.BertConfig(hidden_size=256, num_hidden_layers=6, num_attention_heads=8,
                                   intermediate_size=1024)


def _size(device: str, gpu: tuple[int, int], cpu: tuple[int, int]) -> tuple[int, int]:
    return gpu if is_gpu(device) else cpu


@case("bert", kind="model")
def bert(device: str) -> Workload:
    """BERT encoder: 6 x 256, 4 x 128 tokens (GPU: base, 16 x 512)."""
    config = _bert_config(device)
    tokens = _tokens(config.vocab_size, *_size(device, (16, 512), (4, 128)), device)
    model = _place(transformers.BertModel(config), device)
    return Workload(model, (), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)})


@case("gpt2", kind="model")
def gpt2(device: str) -> Workload:
    """GPT-2 with its head: 6 x 256, 4 x 128 tokens (GPU: base, 8 x 512)."""
    small = {} if is_gpu(device) else {"n_embd": 256, "n_layer": 6, "n_head": 8}
    config = transformers.GPT2Config(use_cache=False, **small)
    tokens = _tokens(config.vocab_size, *_size(device, (8, 512), (4, 128)), device)
    return Workload(_place(transformers.GPT2LMHeadModel(config), device), (),
                    {"input_ids": tokens})


def _llama_config(device: str) -> Any:
    if is_gpu(device):
        return transformers.LlamaConfig(hidden_size=1024, intermediate_size=2816,
                                        num_hidden_layers=16, num_attention_heads=16,
                                        use_cache=False)
    return transformers.LlamaConfig(hidden_size=256, intermediate_size=704, num_hidden_layers=4,
                                    num_attention_heads=8, num_key_value_heads=4,
                                    vocab_size=8000, use_cache=False)


@case("llama", kind="model")
def llama(device: str) -> Workload:
    """Llama with its head: 4 x 256, 4 x 128 tokens (GPU: 16 x 1024, 4 x 1024)."""
    config = _llama_config(device)
    tokens = _tokens(config.vocab_size, *_size(device, (4, 1024), (4, 128)), device)
    return Workload(_place(transformers.LlamaForCausalLM(config), device), (),
                    {"input_ids": tokens})


@case("llama-token", kind="model")
def llama_token(device: str) -> Workload:
    """The same Llama on a single token."""
    config = _llama_config(device)
    return Workload(_place(transformers.LlamaForCausalLM(config), device), (),
                    {"input_ids": _tokens(config.vocab_size, 1, 1, device)})


@case("t5-encoder", kind="model")
def t5_encoder(device: str) -> Workload:
    """T5 encoder: 4 x 256, 4 x 128 tokens (GPU: base, 8 x 512)."""
    sizes = {"d_model": 768, "num_layers": 12, "num_heads": 12, "d_ff": 3072}
    if not is_gpu(device):
        sizes = {"d_model": 256, "num_layers": 4, "num_heads": 8, "d_ff": 1024, "d_kv": 32}
    config = transformers.T5Config(**sizes, use_cache=False)
    tokens = _tokens(config.vocab_size, *_size(device, (8, 512), (4, 128)), device)
    return Workload(_place(transformers.T5EncoderModel(config), device), (),
                    {"input_ids": tokens})


@case("vit", kind="model")
def vit(device: str) -> Workload:
    """ViT: 6 x 192, 4 images (GPU: B/16, 64 images)."""
    small = {} if is_gpu(device) else {
        "hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 6,
        "intermediate_size": 768}
    model = _place(transformers.ViTModel(transformers.ViTConfig(**small)), device)
    return Workload(model, (), {"pixel_values": _images(64 if is_gpu(device) else 4, device)})


@case("resnet50", kind="model")
def resnet50(device: str) -> Workload:
    """ResNet-50, 2 images (GPU: 64, channels-last)."""
    model = _place(transformers.ResNetForImageClassification(transformers.ResNetConfig()), device)
    if not is_gpu(device):
        return Workload(model, (), {"pixel_values": _images(2, device)})
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Workload(model, (), {"pixel_values": _images(64, device, channels_last=True)})


@case("convnext", kind="model")
def convnext(device: str) -> Workload:
    """ConvNeXt-T narrowed (depths 2, 2, 4, 2; half as wide), 2 images (GPU: T, 64 images)."""
    small = {} if is_gpu(device) else {
        "depths": [2, 2, 4, 2], "hidden_sizes": [48, 96, 192, 384]}
    model = _place(transformers.ConvNextModel(transformers.ConvNextConfig(**small)), device)
    return Workload(model, (), {"pixel_values": _images(64 if is_gpu(device) else 2, device)})


def mlp_with_norms(width: int, blocks: int) -> nn.Module:
    """Linear, layer norm, GELU; then Linear, batch norm, SiLU; and so on."""
    layers: list[nn.Module] = []
    for _ in range(blocks):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(),
                   nn.Linear(width, width), nn.BatchNorm1d(width), nn.SiLU()]
    return nn.Sequential(*layers)


@case("mlp-norms", kind="model")
def mlp_norms(device: str) -> Workload:
    """MLP of 4 blocks with layer and batch norms, 512 x 512 (GPU: 16384 x 2048)."""
    rows, width = _size(device, (16384, 2048), (512, 512))
    model = _place(mlp_with_norms(width, 4), device)
    return Workload(model, (torch.randn(rows, width, device=device, dtype=dtype_for(device)),))


def _training(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
    loss_of: Callable[[Any], torch.Tensor],
) -> Workload:
    """Forward, loss and backward; the gradients are the result."""
    model.train()

    def step(fn: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> Any:
            for p in model.parameters():
                p.grad = None
            loss = loss_of(fn(*args, **kwargs))
            loss.backward()
            return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

        return run

    return Workload(model, args, kwargs, grad=True, step=step)


@case("mlp-training", kind="training")
def mlp_training(device: str) -> Workload:
    """Forward and backward of an MLP with layer norms, 256 x 256 (GPU: 4096 x 1024)."""
    rows, width = _size(device, (4096, 1024), (256, 256))
    layers = [m for _ in range(4) for m in (nn.Linear(width, width), nn.LayerNorm(width),
                                            nn.GELU())]
    model = _place(nn.Sequential(*layers), device)
    x = torch.randn(rows, width, device=device, dtype=dtype_for(device))
    return _training(model, (x,), {}, lambda out: out.float().square().mean())


@case("bert-training", kind="training")
def bert_training(device: str) -> Workload:
    """Forward and backward of BERT without dropout, 4 x 64 tokens (GPU: base, 16 x 256)."""
    config = _bert_config(device)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    tokens = _tokens(config.vocab_size, *_size(device, (16, 256), (4, 64)), device)
    model = _place(transformers.BertModel(config, add_pooling_layer=False), device)
    # Not the plain mean square: of a layer norm's output it is constant.
    return _training(model, (), {"input_ids": tokens},
                     lambda out: out.last_hidden_state.float().tanh().square().mean())
