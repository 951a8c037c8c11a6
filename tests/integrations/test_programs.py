"""The programs of the table in docs/using/integrations.md: eager's numbers, few graphs, and states
that the libraries' own functions save and load."""

import pytest
import torch

import weft
from benchmarks.integration_programs import PROGRAMS, exact_gp, graph_net, quantized

pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]

MOST = {
    ("transformers", "`Trainer`, `torch_compile=True`"): (2, 0, 1),
    ("accelerate", "`TorchDynamoPlugin`, training step"): (2, 0, 1),
    ("peft", "LoRA of BERT, training step"): (2, 0, 1),
    ("diffusers", "Flux, `model.compile()`"): (1, 0, 0),
    ("Lightning", "`Trainer.fit` of a compiled module"): (8, 0, 4),
    ("torch_geometric", "GCN, training step"): (1, 0, 0),
    ("torch_geometric", "GAT, training step"): (1, 0, 0),
    ("torchao", "int8 weights, inference"): (1, 0, 0),
    ("gpytorch", "an exact GP, training step"): (7, 2, 1),
    ("pyro", "potential of NUTS and its gradient"): (6, 6, 3),
}
"""Graphs, breaks and recompiles of four steps; programs that are not here are not counted."""

HOMES = {"Lightning": "lightning", "PennyLane": "pennylane", "transformers": "accelerate"}


def _numbers(step):
    numbers = []
    for _ in range(4):
        torch.manual_seed(0)
        numbers += step()
    return numbers


@pytest.mark.parametrize("name", PROGRAMS, ids=" ".join)
def test_programs_give_eagers_numbers(name):
    pytest.importorskip(HOMES.get(name[0], name[0]))
    expected = _numbers(PROGRAMS[name](compiled=False))
    with weft.install():
        result = _numbers(PROGRAMS[name](compiled=True))
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)
    counted = weft.stats()
    assert counted["graphs"] > 0
    assert counted["fallbacks"] == 0
    if name in MOST:
        seen = counted["graphs"], counted["graph_breaks"], counted["recompiles"]
        assert all(count <= most for count, most in zip(seen, MOST[name], strict=True)), seen


def _same_after_loading(model, again, x, folder):
    """Save the compiled model's state, load it into another one, and compare both."""
    compiled = weft.compile(model)
    expected = compiled(*x)
    torch.save(compiled.state_dict(), folder / "state.pt")
    again.load_state_dict(torch.load(folder / "state.pt", weights_only=False), assign=True)
    return weft.compile(again)(*x), expected


def test_a_compiled_graph_net_is_saved_and_loaded(tmp_path):
    pytest.importorskip("torch_geometric")
    model, again = graph_net("GCNConv"), graph_net("GCNConv")
    with torch.no_grad():
        model.first.bias.add_(1)
    result, expected = _same_after_loading(
        model, again, (torch.randn(10, 4), torch.randint(0, 10, (2, 30))), tmp_path)
    torch.testing.assert_close(result, expected)


def test_a_compiled_graph_net_takes_graphs_of_other_sizes():
    pytest.importorskip("torch_geometric")
    model = graph_net("GCNConv")
    compiled = weft.compile(model, dynamic=True)
    for n_nodes, n_edges in ((10, 30), (12, 37), (25, 61)):
        x, edges = torch.randn(n_nodes, 4), torch.randint(0, n_nodes, (2, n_edges))
        torch.testing.assert_close(compiled(x, edges), model(x, edges), rtol=1e-4, atol=1e-5)
    assert weft.stats()["graphs"] == 1


def test_quantized_weights_are_saved_and_loaded(tmp_path):
    pytest.importorskip("torchao")
    with torch.no_grad():
        result, expected = _same_after_loading(
            quantized(), quantized(), (torch.randn(4, 64),), tmp_path)
    torch.testing.assert_close(result, expected)


def test_a_gaussian_process_that_was_trained_compiled_is_saved_and_loaded(tmp_path):
    gpytorch = pytest.importorskip("gpytorch")
    model, likelihood, x, y = exact_gp()
    model.train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    loss, optimizer = weft.compile(lambda x, y: -mll(model(x), y)), torch.optim.Adam(
        model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()
    torch.save(model.state_dict(), tmp_path / "state.pt")
    again, _, _, _ = exact_gp()
    again.load_state_dict(torch.load(tmp_path / "state.pt"))
    with torch.no_grad():
        mine, theirs = model.eval()(x + 0.01), again.eval()(x + 0.01)
    torch.testing.assert_close(mine.mean, theirs.mean)


def test_a_parameter_store_of_a_compiled_elbo_is_saved_and_loaded(tmp_path):
    pyro = pytest.importorskip("pyro")
    name = "pyro", "ELBO of an `AutoNormal` guide, training step"
    with weft.install():
        step = PROGRAMS[name](compiled=True)
    step()
    saved = {key: value.detach().clone() for key, value in pyro.get_param_store().items()}
    pyro.get_param_store().save(tmp_path / "store")
    pyro.clear_param_store()
    pyro.get_param_store().load(tmp_path / "store")
    for key, value in pyro.get_param_store().items():
        assert torch.equal(value, saved[key]), key
