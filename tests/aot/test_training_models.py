"""Small BERT, GPT-2, ViT, ResNet and T5 trained for 20 steps: the losses are eager's.

Dropout is on: random numbers are eager's too, so that every step can be compared.
"""

import copy
from collections.abc import Callable

import pytest
import torch

import weft

transformers = pytest.importorskip("transformers")

STEPS = 20
SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2,
         "intermediate_size": 64}


def _ids(rows: int = 2, length: int = 8) -> torch.Tensor:
    return torch.randint(0, 50, (rows, length))


def bert() -> tuple[torch.nn.Module, dict]:
    config = transformers.BertConfig(vocab_size=50, **SMALL)
    return transformers.BertForMaskedLM(config), {"input_ids": _ids(), "labels": _ids()}


def gpt2() -> tuple[torch.nn.Module, dict]:
    config = transformers.GPT2Config(vocab_size=50, n_layer=2, n_embd=32, n_head=2, n_positions=16)
    ids = _ids()
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def vit() -> tuple[torch.nn.Module, dict]:
    config = transformers.ViTConfig(image_size=16, patch_size=8, hidden_dropout_prob=0.1, **SMALL)
    kwargs = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}
    return transformers.ViTForImageClassification(config), kwargs


def resnet() -> tuple[torch.nn.Module, dict]:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    kwargs = {"pixel_values": torch.randn(4, 3, 16, 16), "labels": torch.tensor([0, 1, 1, 0])}
    return transformers.ResNetForImageClassification(config), kwargs


def t5() -> tuple[torch.nn.Module, dict]:
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
        decoder_start_token_id=0,
    )
    kwargs = {"input_ids": _ids(), "labels": _ids()}
    return transformers.T5ForConditionalGeneration(config), kwargs


def losses(call: Callable, model: torch.nn.Module, kwargs: dict) -> torch.Tensor:
    """The loss of each of the steps."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = call(**kwargs).loss
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return torch.stack(found)


@pytest.mark.parametrize("make", [bert, gpt2, vit, resnet, t5], ids=lambda f: f.__name__)
def test_losses_are_eagers(make: Callable) -> None:
    weft.reset()
    torch.manual_seed(0)
    model, kwargs = make()
    model.train()
    peer = copy.deepcopy(model)
    with weft.config.patch(strict=True):
        found = losses(weft.compile(model), model, kwargs)
    wanted = losses(peer, peer, kwargs)
    assert wanted[-1] < wanted[0], "it learns"
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=1e-3)
    assert weft.stats()["recompiles"] <= 2, "problem_type, which the first call sets"
