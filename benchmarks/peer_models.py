"""The models that `cpu_peers` measures, for a batch of any size, with random weights.

    model, inputs = build("mobilenet-v2", 4)
    model(*inputs)                                   # a tensor

Widths are those of the CPU cases of `benchmarks.models`: a call takes some ten milliseconds. All
take positional tensors and return one tensor, as ONNX's exporter wants it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import image_networks
from benchmarks.models import mlp_with_norms

Inputs = tuple[Tensor, ...]
Builder = Callable[[int], tuple[nn.Module, Inputs]]
TOKENS: Final = 128
SIDE: Final = 160
VOCABULARY: Final = 8000


class Plain(nn.Module):
    """A model of transformers as a function of one tensor."""

    def __init__(self, model: nn.Module, argument: str, result: str, **fixed: Any) -> None:
        super().__init__()
        self.model, self.argument, self.result, self.fixed = model, argument, result, fixed

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = getattr(self.model(**{self.argument: x}, **self.fixed), self.result)
        return result


class MambaBlock(nn.Module):
    """A selective state space layer, its recurrence written as a loop over tokens."""

    def __init__(self, width: int, states: int = 16) -> None:
        super().__init__()
        inner, self.rank = 2 * width, width // 16
        self.states = states
        self.norm = nn.RMSNorm(width)
        self.enter, self.leave = nn.Linear(width, 2 * inner, False), nn.Linear(inner, width, False)
        self.conv = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select = nn.Linear(inner, self.rank + 2 * states, False)
        self.step = nn.Linear(self.rank, inner)
        self.decay = nn.Parameter(torch.arange(1, states + 1).float().log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))

    def forward(self, tokens: Tensor) -> Tensor:
        x, gate = self.enter(self.norm(tokens)).chunk(2, -1)
        x = F.silu(self.conv(x.transpose(1, 2))[..., : x.size(1)].transpose(1, 2))
        step, b, c = self.select(x).split([self.rank, self.states, self.states], -1)
        step = F.softplus(self.step(step))
        kept = torch.exp(step[..., None] * -torch.exp(self.decay))
        entering = (step * x)[..., None] * b[..., None, :]
        state, results = torch.zeros_like(kept[:, 0]), []
        for t in range(x.size(1)):
            state = kept[:, t] * state + entering[:, t]
            results.append((state * c[:, t, None]).sum(-1))
        y = torch.stack(results, 1) + x * self.skip
        left: Tensor = tokens + self.leave(y * F.silu(gate))
        return left


class Recommender(nn.Module):
    """Embeddings of categories, a bottom and a top MLP, products of pairs between (DLRM)."""

    def __init__(self, tables: int = 16, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(10000, width) for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width),
            nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, 1), nn.Sigmoid())

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        rows = torch.stack(
            [bottom, *(table(sparse[:, k]) for k, table in enumerate(self.tables))], 1)
        products = rows @ rows.transpose(1, 2)
        pairs = products[:, self.pairs[0], self.pairs[1]]  # type: ignore[index]
        top: Tensor = self.top(torch.cat([bottom, pairs], 1))
        return top


def _tokens(batch: int) -> Inputs:
    return (torch.randint(0, VOCABULARY, (batch, TOKENS)),)


def _images(batch: int) -> Inputs:
    return (torch.randn(batch, 3, SIDE, SIDE),)


def _bert(batch: int) -> tuple[nn.Module, Inputs]:
    config = transformers.BertConfig(
        hidden_size=256, num_hidden_layers=8, num_attention_heads=8, intermediate_size=1024,
        vocab_size=VOCABULARY)
    return Plain(transformers.BertModel(config), "input_ids", "last_hidden_state"), _tokens(batch)


def _causal(model: nn.Module, batch: int) -> tuple[nn.Module, Inputs]:
    """With a mask: without one, transformers looks for packed sequences, which exporters refuse."""
    mask = torch.ones(batch, TOKENS, dtype=torch.int64)
    return Plain(model, "input_ids", "logits", attention_mask=mask), _tokens(batch)


def _llama(batch: int) -> tuple[nn.Module, Inputs]:
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=704, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=VOCABULARY, use_cache=False)
    return _causal(transformers.LlamaForCausalLM(config), batch)


def _gpt2(batch: int) -> tuple[nn.Module, Inputs]:
    config = transformers.GPT2Config(
        n_embd=256, n_layer=6, n_head=8, vocab_size=VOCABULARY, use_cache=False)
    return _causal(transformers.GPT2LMHeadModel(config), batch)


def _t5(batch: int) -> tuple[nn.Module, Inputs]:
    config = transformers.T5Config(
        d_model=256, num_layers=6, num_heads=8, d_ff=1024, d_kv=32, vocab_size=VOCABULARY,
        use_cache=False)
    return Plain(transformers.T5EncoderModel(config), "input_ids", "last_hidden_state"), _tokens(
        batch)


def _vit(batch: int) -> tuple[nn.Module, Inputs]:
    config = transformers.ViTConfig(
        hidden_size=256, num_hidden_layers=8, num_attention_heads=8, intermediate_size=1024,
        image_size=SIDE)
    return Plain(transformers.ViTModel(config), "pixel_values", "last_hidden_state"), _images(batch)


def _swin(batch: int) -> tuple[nn.Module, Inputs]:
    config = transformers.SwinConfig(
        embed_dim=64, depths=[2, 2, 4, 2], num_heads=[2, 4, 8, 16], window_size=7, image_size=112)
    model = Plain(transformers.SwinModel(config), "pixel_values", "last_hidden_state")
    return model, (torch.randn(batch, 3, 112, 112),)


def _whisper(batch: int) -> tuple[nn.Module, Inputs]:
    config = transformers.WhisperConfig(
        d_model=256, encoder_layers=4, encoder_attention_heads=4, encoder_ffn_dim=1024,
        max_source_positions=256)
    encoder = transformers.WhisperModel(config).encoder
    model = Plain(encoder, "input_features", "last_hidden_state")
    return model, (torch.randn(batch, config.num_mel_bins, 512),)


def _mamba(batch: int) -> tuple[nn.Module, Inputs]:
    model = nn.Sequential(nn.Embedding(VOCABULARY, 128), *(MambaBlock(128) for _ in range(2)))
    return model, (torch.randint(0, VOCABULARY, (batch, 32)),)


def _mlp(batch: int) -> tuple[nn.Module, Inputs]:
    return mlp_with_norms(512, 4), (torch.randn(128 * batch, 512),)


def _recommender(batch: int) -> tuple[nn.Module, Inputs]:
    rows = 64 * batch
    return Recommender(), (torch.randn(rows, 13), torch.randint(0, 10000, (rows, 16)))


def _of_images(network: Callable[[], nn.Module]) -> Builder:
    return lambda batch: (network(), _images(batch))


MODELS: Final[dict[str, Builder]] = {
    "bert": _bert,
    "llama": _llama,
    "gpt2": _gpt2,
    "t5-encoder": _t5,
    "vit": _vit,
    "swin": _swin,
    "whisper-encoder": _whisper,
    "mamba": _mamba,
    "mlp-norms": _mlp,
    "recommender": _recommender,
    "resnet50": _of_images(image_networks.resnet50),
    "regnet-y": _of_images(image_networks.regnet_y),
    "mobilenet-v2": _of_images(image_networks.mobilenet_v2),
    "efficientnet": _of_images(image_networks.efficientnet),
    "convnext-t": _of_images(image_networks.convnext_tiny),
    "u-net": _of_images(image_networks.UNet),
}


def build(name: str, batch: int) -> tuple[nn.Module, Inputs]:
    """The model, for inference, and its inputs: the same in every process. Statistics of batch
    norms are those of data, so that folding them changes something."""
    torch.manual_seed(0)
    model, inputs = MODELS[name](batch)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.1, 0.1)
    return model.eval(), inputs
