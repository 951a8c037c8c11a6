"""Libraries that call torch.compile, with weft in its place: one changed line, eager's losses,
states that the library's own functions save and load, and few graphs.

Needs the extra `integrations` (`make test-integrations`); what is not installed is skipped.
"""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import weft

pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]


def _counts():
    counted = weft.stats()
    return {name: counted[name] for name in ("graphs", "graph_breaks", "recompiles", "fallbacks")}


def _bert():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0))


class Examples(torch.utils.data.Dataset):
    """Sentences of random words, with a column that no model takes."""

    def __init__(self, n=32):
        chosen = torch.Generator().manual_seed(1)
        self.words = torch.randint(0, 100, (n, 16), generator=chosen)
        self.labels = torch.randint(0, 2, (n,), generator=chosen)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return {"input_ids": self.words[i], "labels": self.labels[i], "comment": 3}


# -- transformers ---------------------------------------------------------------------------------


def _trained(model, folder, **arguments):
    """A Trainer after six steps, with checkpoints."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    given = transformers.TrainingArguments(
        str(folder), max_steps=6, per_device_train_batch_size=8, logging_steps=1, report_to=[],
        save_steps=3, use_cpu=True, seed=0, disable_tqdm=True, **arguments)
    trainer = transformers.Trainer(model, given, train_dataset=Examples())
    trainer.train()
    return trainer


def _losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("how", ["torch_compile=True", "a mode", "the compiled model"])
def test_the_trainer_trains_saves_and_resumes(how, tmp_path):
    expected = _losses(_trained(_bert(), tmp_path / "eager"))
    model = _bert()
    arguments = {"torch_compile=True": {"torch_compile": True},
                 "a mode": {"torch_compile_mode": "max-autotune"}}.get(how, {})
    with weft.install():
        given = torch.compile(model) if not arguments else model
        trainer = _trained(given, tmp_path / "weft", **arguments)
    torch.testing.assert_close(_losses(trainer), expected, rtol=1e-4, atol=1e-5)
    # (The model sets `config.problem_type` in its first call: torch.compile, too, compiles twice.)
    assert _counts() == {"graphs": 2, "graph_breaks": 0, "recompiles": 1, "fallbacks": 0}

    trainer.save_model(tmp_path / "saved")
    loaded = type(model).from_pretrained(tmp_path / "saved")
    for name, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    with weft.install():
        trainer.train(resume_from_checkpoint=str(tmp_path / "weft" / "checkpoint-3"))
    torch.testing.assert_close(_losses(trainer)[-3:], expected[-3:], rtol=1e-4, atol=1e-5)


def test_generate_of_a_compiled_model_gives_eagers_tokens():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64)).eval()
    prompt = torch.randint(0, 100, (1, 5))
    asked = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(prompt, **asked)
    assert torch.equal(weft.compile(model).generate(prompt, **asked), expected)
    assert 0 < weft.stats()["graphs"] <= 8


# -- accelerate -----------------------------------------------------------------------------------


@pytest.mark.parametrize("regional", [False, True])
def test_accelerate_prepares_trains_unwraps_and_saves(regional, tmp_path):
    accelerate = pytest.importorskip("accelerate")

    def losses(accelerator, model):
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        model, optimizer = accelerator.prepare(model, optimizer)
        seen = []
        for _ in range(3):
            loss = model(input_ids=Examples().words[:8], labels=Examples().labels[:8]).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen.append(loss.item())
        return seen, model

    expected, _ = losses(accelerate.Accelerator(cpu=True), _bert())
    accelerate.state.AcceleratorState._reset_state()
    plugin = accelerate.utils.TorchDynamoPlugin(
        backend="inductor", use_regional_compilation=regional)
    model = _bert()
    with weft.install():
        accelerator = accelerate.Accelerator(cpu=True, dynamo_plugin=plugin)
        result, prepared = losses(accelerator, model)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    counted = _counts()
    assert counted["graph_breaks"] == counted["fallbacks"] == 0
    assert counted["graphs"] > 0
    unwrapped = accelerator.unwrap_model(prepared, keep_torch_compile=False)
    assert unwrapped is model
    accelerator.save_model(prepared, str(tmp_path), safe_serialization=False)
    saved = torch.load(next(Path(tmp_path).glob("*.bin")))
    assert set(saved) <= set(model.state_dict())
    accelerate.state.AcceleratorState._reset_state()


# -- peft -----------------------------------------------------------------------------------------


def test_peft_trains_an_adapter_and_loads_it_again(tmp_path):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=4, target_modules=["query", "value"], lora_dropout=0.0)
    torch.manual_seed(0)
    adapted = peft.get_peft_model(_bert(), settings)
    twin = copy.deepcopy(adapted)
    with weft.install():
        compiled = torch.compile(adapted)
    words, labels = Examples().words[:8], Examples().labels[:8]
    for model in (compiled, twin):
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
        for _ in range(3):
            model(input_ids=words, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for mine, theirs in zip(adapted.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    assert _counts()["graph_breaks"] == 0
    compiled.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(_bert(), tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(input_ids=words).logits, compiled(input_ids=words).logits, rtol=1e-4, atol=1e-4)


# -- diffusers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("regional", [False, True])
def test_diffusers_compiles_a_model_and_its_repeated_blocks(regional, tmp_path):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8]).eval()
    inputs = {"hidden_states": torch.randn(1, 16, 4),
              "encoder_hidden_states": torch.randn(1, 6, 32),
              "pooled_projections": torch.randn(1, 32), "timestep": torch.tensor([1.0]),
              "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3), "return_dict": False}
    with torch.no_grad():
        expected = model(**inputs)[0]
        with weft.install():
            if regional:
                model.compile_repeated_blocks(fullgraph=True)
            else:
                model.compile(fullgraph=True)
        torch.testing.assert_close(model(**inputs)[0], expected, rtol=1e-4, atol=1e-4)
        graphs = weft.stats()["graphs"]
        assert graphs == (3 if regional else 1)  # of four blocks: equal ones share theirs
        model(**inputs)
    assert weft.stats()["graphs"] == graphs
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert list(loaded.state_dict()) == list(model.state_dict())


# -- Lightning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["torch.compile", "weft.compile"])
def test_lightning_fits_a_compiled_module_and_loads_its_checkpoint(how, tmp_path):
    lightning = pytest.importorskip("lightning")

    class Regression(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
            self.seen = []

        def training_step(self, batch, number):
            loss = self.net(batch[0]).square().mean()
            self.seen.append(loss.detach())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    def fitted(change):
        torch.manual_seed(0)
        model = Regression()
        data = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4)
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=str(tmp_path))
        trainer.fit(change(model), data)
        return model, trainer

    expected, _ = fitted(lambda model: model)
    with weft.install():
        model, trainer = fitted(torch.compile if how == "torch.compile" else weft.compile)
    torch.testing.assert_close(
        torch.stack(model.seen), torch.stack(expected.seen), rtol=1e-4, atol=1e-5)
    assert weft.stats()["graphs"] > 0
    assert weft.stats()["fallbacks"] == 0
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    state = torch.load(tmp_path / "last.ckpt", weights_only=False)["state_dict"]
    assert set(state) == set(Regression().state_dict())


def test_fabric_sets_a_compiled_module_up_and_compiles_it_again():
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)
    model = nn.Linear(4, 2)
    x = torch.randn(3, 4)
    with weft.install():
        prepared = fabric.setup(torch.compile(model))
        torch.testing.assert_close(prepared(x), model(x))
    assert weft.stats()["graphs"] == 1


# -- torchmetrics ---------------------------------------------------------------------------------


def test_metrics_of_torchmetrics_count_what_a_compiled_model_gives():
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = torchmetrics.classification.MulticlassAccuracy(3)
    model = nn.Linear(4, 3)
    x, labels = torch.randn(16, 4), torch.randint(0, 3, (16,))
    assert metric(weft.compile(model)(x), labels) == metric(model(x), labels)


# -- decorators like vllm's -----------------------------------------------------------------------


def test_a_decorator_that_compiles_a_models_forward_with_filtered_guards():
    """vllm's `support_torch_compile`: `forward` compiled whole, by a class that wraps the model."""

    def support_torch_compile(cls):
        make = cls.__init__

        def init(self, *args, **kwargs):
            make(self, *args, **kwargs)
            self.compiled = torch.compile(
                self.forward, fullgraph=True, dynamic=False, backend="inductor",
                options={"guard_filter_fn": lambda guards: [False for _ in guards]})

        cls.__init__ = init
        cls.__call__ = lambda self, *args: self.compiled(*args)
        return cls

    @support_torch_compile
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x).relu()

    with weft.install():
        model = Model()
    x = torch.randn(3, 4)
    torch.testing.assert_close(model(x), model.forward(x))
    assert _counts() == {"graphs": 1, "graph_breaks": 0, "recompiles": 0, "fallbacks": 0}
