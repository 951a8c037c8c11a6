"""Small programs of libraries that call torch.compile, or whose users do: random weights, tiny.

Place in the pipeline: run by `benchmarks.integrations` for its table, and by `tests/integrations`.
Each is a function that makes what the program needs and returns one step of it, which gives
numbers to compare; `torch.compile` is called as the library's users call it, if `compiled`::

    step = PROGRAMS["gpytorch", "an exact GP, training step"](compiled=True)
    losses = [step() for _ in range(3)]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from weft.registrar import registrar

Step = Callable[[], list[float]]

PROGRAMS: Final[dict[tuple[str, str], Callable[..., Step]]] = {}
"""(library, what it does) -> a function of `compiled` that returns a step."""

program = registrar(PROGRAMS)


def _compiled(function: Any, compiled: bool) -> Any:
    return torch.compile(function) if compiled else function


def _numbers(*tensors: torch.Tensor) -> list[float]:
    return [number for tensor in tensors for number in tensor.detach().double().flatten().tolist()]


# -- transformers, accelerate, peft, diffusers, Lightning -----------------------------------------


def bert() -> Any:
    import transformers
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0))


def sentences() -> dict[str, torch.Tensor]:
    chosen = torch.Generator().manual_seed(1)
    return {"input_ids": torch.randint(0, 100, (8, 16), generator=chosen),
            "labels": torch.randint(0, 2, (8,), generator=chosen)}


@program(("transformers", "`Trainer`, `torch_compile=True`"))
def trainer(*, compiled: bool) -> Step:
    import tempfile

    import transformers
    batch = sentences()
    data = [{name: values[i] for name, values in batch.items()} for i in range(8)]
    arguments = transformers.TrainingArguments(
        tempfile.mkdtemp(), max_steps=3, per_device_train_batch_size=8, logging_steps=1,
        report_to=[], save_strategy="no", use_cpu=True, seed=0, disable_tqdm=True,
        torch_compile=compiled)
    worker = transformers.Trainer(bert(), arguments, train_dataset=data)

    def step() -> list[float]:
        worker.train()
        return [entry["loss"] for entry in worker.state.log_history if "loss" in entry]

    return step


@program(("accelerate", "`TorchDynamoPlugin`, training step"))
def accelerated(*, compiled: bool) -> Step:
    import accelerate
    accelerate.state.AcceleratorState._reset_state()
    plugin = accelerate.utils.TorchDynamoPlugin(backend="inductor") if compiled else None
    accelerator = accelerate.Accelerator(cpu=True, dynamo_plugin=plugin)
    model = bert()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-3))

    def step() -> list[float]:
        loss = model(**sentences()).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return [loss.item()]

    return step


@program(("peft", "LoRA of BERT, training step"))
def adapted(*, compiled: bool) -> Step:
    import peft
    settings = peft.LoraConfig(r=4, target_modules=["query", "value"], lora_dropout=0.0)
    model = peft.get_peft_model(bert(), settings)
    return _training(model, _compiled(model, compiled), lambda m: m(**sentences()).loss)


@program(("diffusers", "Flux, `model.compile()`"))
def flux(*, compiled: bool) -> Step:
    import diffusers
    torch.manual_seed(0)
    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=[4, 4, 8]).eval()
    inputs = {"hidden_states": torch.randn(1, 16, 4),
              "encoder_hidden_states": torch.randn(1, 6, 32),
              "pooled_projections": torch.randn(1, 32), "timestep": torch.tensor([1.0]),
              "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3), "return_dict": False}
    if compiled:
        model.compile()

    def step() -> list[float]:
        with torch.no_grad():
            return _numbers(model(**inputs)[0])

    return step


@program(("Lightning", "`Trainer.fit` of a compiled module"))
def lightning_fit(*, compiled: bool) -> Step:
    import lightning

    class Regression(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
            self.losses: list[float] = []

        def training_step(self, batch: Any, number: int) -> Any:
            loss = self.net(batch[0]).square().mean()
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    model = Regression()
    fitted = _compiled(model, compiled)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(16, 4)), batch_size=4)

    def step() -> list[float]:
        lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False).fit(fitted, data)
        return [float(loss) for loss in model.losses]

    return step


def _training(model: nn.Module, called: Any, loss_of: Callable[[Any], torch.Tensor]) -> Step:
    """A step of Adam on the loss of the (compiled) model."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)

    def step() -> list[float]:
        loss = loss_of(called)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return [loss.item()]

    return step


# -- torch_geometric, torchao ---------------------------------------------------------------------


def graph_net(layer: str) -> nn.Module:
    import torch_geometric.nn as layers

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            make = getattr(layers, layer)
            self.first, self.last = make(4, 8), make(8, 3)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = self.first(x, edges)
            logits: torch.Tensor = self.last(hidden.relu(), edges)
            return logits

    return Net()


@program(("torch_geometric", "GCN, training step"))
def graph_training(*, compiled: bool, layer: str = "GCNConv") -> Step:
    model = graph_net(layer)
    x, edges = torch.randn(10, 4), torch.randint(0, 10, (2, 30))
    labels = torch.randint(0, 3, (10,))
    return _training(model, _compiled(model, compiled),
                     lambda m: nn.functional.cross_entropy(m(x, edges), labels))


PROGRAMS["torch_geometric", "GAT, training step"] = (
    lambda *, compiled: graph_training(compiled=compiled, layer="GATConv"))


def quantized() -> nn.Module:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).eval()
    quantize_(model, Int8WeightOnlyConfig())
    return model


@program(("torchao", "int8 weights, inference"))
def inference(*, compiled: bool) -> Step:
    model = quantized()
    called, x = _compiled(model, compiled), torch.randn(4, 64)

    def step() -> list[float]:
        with torch.no_grad():
            return _numbers(called(x))

    return step


# -- gpytorch, botorch ----------------------------------------------------------------------------


def exact_gp() -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    import gpytorch
    torch.manual_seed(0)
    x = torch.linspace(0, 1, 50)
    y = torch.sin(x * 6.28) + torch.randn(50) * 0.1

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    return Model(likelihood), likelihood, x, y


@program(("gpytorch", "an exact GP, training step"))
def gp_training(*, compiled: bool) -> Step:
    import gpytorch
    model, likelihood, x, y = exact_gp()
    model.train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    loss = _compiled(lambda x, y: -mll(model(x), y), compiled)
    return _training(model, loss, lambda loss: loss(x, y))


@program(("gpytorch", "an exact GP, prediction"))
def gp_prediction(*, compiled: bool) -> Step:
    import gpytorch
    model, likelihood, _, _ = exact_gp()
    model.eval()
    likelihood.eval()
    x = torch.linspace(0, 1, 37)

    def predict(x: torch.Tensor) -> Any:
        with torch.no_grad(), gpytorch.settings.fast_pred_var():
            prediction = likelihood(model(x))
            return prediction.mean, prediction.variance

    called = _compiled(predict, compiled)
    return lambda: _numbers(*called(x))


@program(("gpytorch", "a variational GP, training step"))
def gp_variational(*, compiled: bool) -> Step:
    import gpytorch
    torch.manual_seed(0)
    x = torch.rand(64, 3)
    y = torch.sin(x.sum(-1))

    class Model(gpytorch.models.ApproximateGP):  # type: ignore[misc]
        def __init__(self, points: torch.Tensor) -> None:
            distribution = gpytorch.variational.CholeskyVariationalDistribution(len(points))
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, distribution))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x))

    model, likelihood = Model(x[:20].clone()), gpytorch.likelihoods.GaussianLikelihood()
    model.train()
    model(x)  # it initializes itself in its first call
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=64)
    loss = _compiled(lambda x, y: -mll(model(x), y), compiled)
    return _training(model, loss, lambda loss: loss(x, y))


@program(("botorch", "LogExpectedImprovement and its gradient"))
def acquisition(*, compiled: bool) -> Step:
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP
    torch.manual_seed(0)
    x = torch.rand(20, 3, dtype=torch.double)
    y = torch.sin(x.sum(-1, keepdim=True) * 3)
    candidates = torch.rand(5, 1, 3, dtype=torch.double)
    value = _compiled(LogExpectedImprovement(SingleTaskGP(x, y).eval(), best_f=y.max()), compiled)

    def step() -> list[float]:
        at = candidates.clone().requires_grad_()
        result = value(at)
        return _numbers(result, *torch.autograd.grad(result.sum(), at))

    return step


# -- pyro, PennyLane ------------------------------------------------------------------------------


@program(("pyro", "potential of NUTS and its gradient"))
def potential(*, compiled: bool) -> Step:
    import pyro
    import pyro.distributions as dist
    from pyro.infer.mcmc.util import initialize_model
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    x = torch.randn(100, 3)
    y = (x.sum(-1) > 0).float()

    def model(x: torch.Tensor, y: torch.Tensor) -> None:
        weights = pyro.sample("w", dist.Normal(torch.zeros(3), torch.ones(3)).to_event(1))
        bias = pyro.sample("b", dist.HalfNormal(1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("obs", dist.Bernoulli(logits=x @ weights + bias), obs=y)

    first, energy, _, _ = initialize_model(model, (x, y))
    called = _compiled(energy, compiled)

    def step() -> list[float]:
        at = {name: value.detach().requires_grad_() for name, value in first.items()}
        result = called(at)
        return _numbers(result, *torch.autograd.grad(result, list(at.values())))

    return step


@program(("pyro", "ELBO of an `AutoNormal` guide, training step"))
def elbo(*, compiled: bool) -> Step:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Trace_ELBO
    from pyro.infer.autoguide import AutoNormal
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    x = torch.randn(100, 3)
    y = x @ torch.tensor([1.0, 2.0, 3.0])

    class Regression(pyro.nn.PyroModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = pyro.nn.PyroModule[nn.Linear](3, 1)
            self.linear.weight = pyro.nn.PyroSample(
                dist.Normal(0.0, 1.0).expand([1, 3]).to_event(2))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> None:
            mean = self.linear(x).squeeze(-1)
            with pyro.plate("data", len(x)):
                pyro.sample("obs", dist.Normal(mean, 0.5), obs=y)

    model = Regression()
    loss = Trace_ELBO()(model, AutoNormal(model))
    loss(x, y)  # it makes the guide's parameters
    train = _training(loss, _compiled(loss, compiled), lambda called: called(x, y))

    def step() -> list[float]:
        pyro.set_rng_seed(1)
        return train()

    return step


@program(("PennyLane", "a circuit of 4 qubits and its gradient"))
def circuit(*, compiled: bool) -> Step:
    import pennylane
    torch.manual_seed(0)
    weights, x = torch.rand(2, 4, requires_grad=True), torch.rand(4)

    @pennylane.qnode(pennylane.device("default.qubit", wires=4), interface="torch",
                     diff_method="backprop")
    def run(x: torch.Tensor, weights: torch.Tensor) -> Any:
        pennylane.AngleEmbedding(x, wires=range(4))
        pennylane.BasicEntanglerLayers(weights, wires=range(4))
        return [pennylane.expval(pennylane.PauliZ(wire)) for wire in range(4)]

    called = _compiled(run, compiled)

    def step() -> list[float]:
        result = torch.stack(called(x, weights))
        return _numbers(result, *torch.autograd.grad(result.sum(), weights))

    return step
