"""Products over data-dependent sizes, which may be zero, with gradients; statistics' types."""

import pytest
import torch

import weft


@pytest.mark.parametrize("kept", [0, 5, 40])
def test_products_of_selected_rows(kept: int) -> None:
    """As experts of a mixture do; oneDNN refuses empty products."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(256, 256)
    x = torch.randn(64, 256)
    chosen = torch.arange(64) < kept

    def f(x, chosen):
        return torch.nn.functional.gelu(layer(x[chosen])).sum() + layer(x).sum()

    compiled = weft.compile(f)
    compiled(x, torch.arange(64) < 20)
    found, wanted = compiled(x, chosen), f(x, chosen)
    torch.testing.assert_close(found, wanted)
    parameters = list(layer.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(found, parameters), torch.autograd.grad(wanted, parameters),
        rtol=1e-4, atol=1e-4,
    )


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("statistics", [torch.float32, torch.bfloat16], ids=str)
def test_batch_norm_in_half_precision(statistics: torch.dtype, backend: str) -> None:
    def run(call):
        mean, variance = torch.zeros(4, dtype=statistics), torch.ones(4, dtype=statistics)
        y = call(torch.linspace(-2, 2, 48).view(3, 4, 4).bfloat16(), mean, variance)
        return y, mean, variance

    def f(x, mean, variance):
        return torch.nn.functional.batch_norm(x, mean, variance, training=True)

    with weft.config.patch(strict=True):
        found = run(weft.compile(f, backend=backend))
    torch.testing.assert_close(found, run(f), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_ctc_loss_is_in_the_graph(backend: str) -> None:
    """The table that its backward reads is as large as the targets' lengths say."""
    weft.reset()
    targets = torch.tensor([[1, 2, 3], [2, 4, 1]])

    def f(x, lengths):
        scores = x.log_softmax(-1)
        return torch.nn.functional.ctc_loss(scores, targets, torch.tensor([8, 7]), lengths)

    compiled = weft.compile(f, backend=backend, fullgraph=True)
    for lengths in (torch.tensor([3, 2]), torch.tensor([1, 2])):
        x = torch.linspace(-1, 1, 80).sin().view(8, 2, 5).requires_grad_()
        found, wanted = compiled(x, lengths), f(x, lengths)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(wanted, x))
    assert weft.stats()["graphs"] == 1


def test_sizes_that_only_the_backward_asks_for() -> None:
    """A mask's positions are found in the forward then: such graphs were left uncompiled."""
    def put(x, mask, values):
        return torch.index_put(x * 2, (mask,), values * 3).sin()

    weft.reset()
    mask = torch.tensor([True, False, True])
    x, values = torch.randn(3, 4, requires_grad=True), torch.randn(2, 4, requires_grad=True)
    compiled = weft.compile_fx(torch.fx.symbolic_trace(put), [x, mask, values])
    found, wanted = compiled(x, mask, values), put(x, mask, values)
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad(y.sum(), [x, values]) for y in (found, wanted)]
    torch.testing.assert_close(*gradients)
    assert weft.stats()["uncompiled_graphs"] == 0


def test_a_mask_without_dimensions() -> None:
    x, mask = torch.randn(()), torch.tensor(True)
    graph = torch.fx.symbolic_trace(lambda x, mask: torch.masked_select(x, mask))
    assert torch.equal(weft.compile_fx(graph, [x, mask])(x, mask), x[None])


@pytest.mark.parametrize("kind", ["convolution", "bilinear", "nearest"])
def test_training_on_selected_images(kind: str) -> None:
    """The choice of a memory layout and the gradient of a resized image asked how many there are:
    the graph broke at the selection."""
    weight = torch.randn(6, 3, 3, requires_grad=True)

    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if kind == "convolution":
            return torch.nn.functional.conv1d(x[mask][:, :, 0], weight)
        return torch.nn.functional.interpolate(x[mask], scale_factor=2, mode=kind)

    weft.reset()
    compiled = weft.compile(program)
    for kept in (5, 9, 1):
        x, mask = torch.randn(12, 3, 6, 6, requires_grad=True), torch.arange(12) < kept
        results = []
        for call in (program, compiled):
            made = call(x, mask)
            results.append((made, *torch.autograd.grad(made.square().sum(), x)))
        torch.testing.assert_close(results[1], results[0])
    assert weft.stats()["graphs"] == 1
    assert weft.stats()["graph_breaks"] == 0
