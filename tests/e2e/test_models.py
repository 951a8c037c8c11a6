"""Real architectures, small where that changes nothing: one graph, no break, eager's result."""

import pytest
import torch

import weft

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("fresh")


def _tokens(vocabulary, batch=2, length=16):
    tokens = torch.randint(0, vocabulary, (batch, length))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _bert():
    config = transformers.BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                     intermediate_size=128, vocab_size=100)
    return transformers.BertModel(config), _tokens(100)


def _gpt2():
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=100,
                                     use_cache=False)
    return transformers.GPT2LMHeadModel(config), _tokens(100)


def _llama():
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=100, use_cache=False)
    return transformers.LlamaForCausalLM(config), _tokens(100)


def _t5():
    config = transformers.T5Config(d_model=64, num_layers=2, num_heads=4, d_ff=128, d_kv=16,
                                   vocab_size=100, use_cache=False)
    return transformers.T5EncoderModel(config), _tokens(100)


def _vit():
    config = transformers.ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                    intermediate_size=128, image_size=32, patch_size=8)
    return transformers.ViTModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def _resnet():
    config = transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32, 48, 64],
                                       depths=[2, 2, 2, 2])
    return (transformers.ResNetForImageClassification(config),
            {"pixel_values": torch.randn(2, 3, 64, 64)})


def _convnext():
    config = transformers.ConvNextConfig(depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64])
    return transformers.ConvNextModel(config), {"pixel_values": torch.randn(2, 3, 64, 64)}


MODELS = {"bert": _bert, "gpt2": _gpt2, "llama": _llama, "t5": _t5, "vit": _vit,
          "resnet": _resnet, "convnext": _convnext}


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in _tensors(v)] if isinstance(value, tuple | list) else []


@pytest.mark.parametrize("name", MODELS)
def test_one_graph_and_eagers_result(name):
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.eval()
    with torch.no_grad():
        wanted = model(**inputs)
        compiled = weft.compile(model)
        for _ in range(2):
            found = compiled(**inputs)
            assert type(found) is type(wanted)
            for a, b in zip(_tensors(found), _tensors(wanted), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    stats = weft.stats()
    assert (stats["graphs"], stats["graph_breaks"], stats["recompiles"]) == (1, 0, 0)
    assert stats["fallbacks"] == 0
    assert stats["kernels"] > 0
