"""Training of convolutions in channels-last memory: gradients, strides, what the graph becomes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import weft
from weft.aot.evaluate import Evaluator
from weft.aot.graph import AtenGraph
from weft.aot.rewrites import image_layout
from weft.diagnostics import events
from weft.runtime import image_speed
from weft.shapes.graph_facts import GraphFacts, note_graph


class Net(nn.Module):
    """Convolutions of all kinds, norms, pooling, a residual, a view that needs NCHW."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, stride=2, padding=3)
        self.norm = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.narrow = nn.Conv2d(16, 24, 1)
        self.depthwise = nn.Conv2d(24, 24, 5, padding=2, groups=24)
        self.wide = nn.Conv2d(24, 16, 3, padding=1, bias=False)
        self.strided = nn.Conv2d(16, 32, 1, stride=2, bias=False)
        self.heavy = nn.Conv2d(32, 48, 3, padding=1)
        self.head = nn.Linear(48 * 4, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.pool(torch.relu(self.norm(self.stem(x))))
        y = torch.relu(self.wide(torch.tanh(self.depthwise(self.narrow(x))))) + x
        y = torch.cat([y, x * 0.5], 1)[:, 8:24]
        z = torch.relu(self.heavy(self.strided(y)))
        pooled = nn.functional.adaptive_avg_pool2d(z, 2).flatten(1)
        return self.head(pooled), z


def step(model: nn.Module, call: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Outputs, gradients and buffers of one step."""
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out, image = call(x)
    (out.square().sum() + image.sin().sum()).backward()
    grads = [p.grad for p in model.parameters()]
    return [out.detach(), image.detach(), x.grad, *grads, *model.buffers()]  # type: ignore[list-item]


@pytest.fixture(params=[False, True], ids=["mkl", "onednn"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_layout, "MIN_PRODUCTS", 0)
    monkeypatch.setattr(image_speed, "onednn_is_faster", lambda: request.param)


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_same_values_and_strides_as_eager(memory_format: torch.memory_format) -> None:
    torch.manual_seed(0)
    model = Net().to(memory_format=memory_format)  # type: ignore[call-overload]
    x = torch.randn(2, 3, 32, 32).to(memory_format=memory_format)
    mine = copy.deepcopy(model)
    wide = copy.deepcopy(model).double()
    got = step(mine, weft.compile(mine), x)
    wanted = step(model, model, x)
    exact = step(wide, wide, x.double())
    for a, b, c in zip(got, wanted, exact, strict=True):
        torch.testing.assert_close(a.to(c.dtype), c, rtol=2e-3, atol=2e-4)
        assert a.stride() == b.stride()


def _trained(model: nn.Module, x: torch.Tensor) -> list[AtenGraph]:
    """The graphs that training a model compiles."""
    with events.collect() as seen:
        step(model, weft.compile(model), x)
    return [e.gm for e in seen if e.kind == "aot"]


@pytest.mark.usefixtures("products")
def test_images_are_copied_once_and_products_replace_small_kernels() -> None:
    forward, backward = _trained(Net(), torch.randn(2, 3, 32, 32))
    aten = torch.ops.aten
    convolutions = [n for n in forward.graph.nodes if n.target is aten.convolution.default]
    layouts = [n.args[0].meta["val"].is_contiguous() for n in convolutions]
    assert layouts.count(True) == 1  # the one that is mostly weight
    as_products = image_speed.onednn_is_faster()
    assert len(convolutions) == (5 if as_products else 6)
    backwards = [n for n in backward.graph.nodes if n.target is aten.convolution_backward.default]
    assert len(backwards) == len(convolutions)


@pytest.mark.usefixtures("products")
def test_norms_of_inference_take_any_layout() -> None:
    """Each batch norm had its image brought back to NCHW, and the next convolution to NHWC."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3),
                          nn.BatchNorm2d(16), nn.ZeroPad2d(1), nn.Conv2d(16, 8, 3)).eval()
    with torch.no_grad(), events.collect() as seen:
        weft.compile(model, backend="aot_eager")(torch.randn(2, 3, 32, 32))
    (gm,) = (e.gm for e in seen if e.kind == "aot")
    note_graph(gm, GraphFacts(is_trained=True))  # on any device
    assert image_layout.use_channels_last(gm)
    copies = [n for n in gm.graph.nodes if n.target is torch.ops.aten.clone.default]
    assert len(copies) == 2  # of the input and of the output


class Grouped(nn.Module):
    """A residual around a grouped convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(16, 8, 1, bias=False)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
        self.wide = nn.Conv2d(8, 16, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.BatchNorm2d(16)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.norms[0](self.narrow(x)))
        y = torch.relu(self.norms[1](self.grouped(y)))
        y = x + self.norms[2](self.wide(y))
        return y.mean((2, 3)), torch.relu(y)


@pytest.mark.usefixtures("products")
def test_between_convolutions_on_nchw_all_else_is_nhwc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch norms beside a grouped convolution summed over images in both layouts."""
    monkeypatch.setattr(image_layout, "nhwc_is_faster", lambda *of: of[3] == 1)
    torch.manual_seed(0)
    model, x = Grouped(), torch.randn(2, 16, 12, 12)
    mine, wide = copy.deepcopy(model), copy.deepcopy(model).double()
    with events.collect() as seen:
        got = step(mine, weft.compile(mine), x)
    exact = step(wide, wide, x.double())
    for a, b in zip(got, exact, strict=True):
        torch.testing.assert_close(a.to(b.dtype), b, rtol=2e-3, atol=2e-4)
    for gm in (e.gm for e in seen if e.kind == "aot"):
        sums = [n for n in gm.graph.nodes if n.op == "call_function" and "sum" in str(n.target)]
        for node in sums:
            image = node.args[0].meta["val"]
            if image.shape == (2, 8, 12, 12):
                assert image.is_contiguous(memory_format=torch.channels_last), node.format_node()


class TwoResults(nn.Module):
    """The first convolution's gradient is the last value of the joint graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.relu(self.first(x))
        return self.second(h), h * 2


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize(("used", "reached"), [(0, [True, True]), (1, [True, False])])
def test_gradients_if_one_of_two_results_is_used(used: int, reached: list[bool]) -> None:
    torch.manual_seed(0)
    model = TwoResults()
    compiled = weft.compile(model, backend="aot_eager_decomposed", fullgraph=True)
    compiled(torch.randn(2, 3, 8, 8))[used].sum().backward()
    assert [p.grad is not None for p in model.parameters()] == reached


@pytest.mark.usefixtures("products")
def test_images_that_meet_no_nhwc_stay_as_they_are() -> None:
    """Between transposed convolutions all was laid out as NHWC and back: one image more."""
    decoder = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 16, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh(),
    )
    for gm in _trained(decoder, torch.randn(2, 3, 16, 16)):
        pointwise = [n for n in gm.graph.nodes if n.name.startswith(("relu", "threshold", "tanh"))]
        assert pointwise
        assert all(n.meta["val"].is_contiguous() for n in pointwise)


def test_small_convolutions_are_left_alone() -> None:
    forward, backward = _trained(Net(), torch.randn(2, 3, 32, 32))
    for gm in (forward, backward):
        note_graph(gm, GraphFacts(is_trained=True))
        assert not image_layout.use_channels_last(gm)
        assert all(n.meta["val"].is_contiguous() for n in gm.graph.nodes if _is_convolution(n))


def _is_convolution(node: torch.fx.Node) -> bool:
    return node.target is torch.ops.aten.convolution.default


def test_arguments_that_are_lists_of_nodes_are_evaluated() -> None:
    evaluator = Evaluator.current()
    graph = torch.fx.Graph()
    parts = [graph.placeholder(name) for name in ("a", "b")]
    for part in parts:
        part.meta["val"] = evaluator.fresh((2, 3), (3, 1), torch.float32, torch.device("cpu"))
    joined = graph.call_function(torch.ops.aten.cat.default, (parts, 1))
    made = evaluator.run(joined.target, joined.args, {}).value
    assert tuple(made.shape) == (2, 6)


def test_a_copy_of_an_image_that_the_program_made_is_saved(fresh: None) -> None:
    """Its view in channels-last memory counted as a copy too, and no cut was found."""
    model = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 3, 2, 1))

    def penalty(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return gradient.pow(2).mean()

    x = torch.linspace(-1, 1, 8 * 3 * 32 * 32).view(8, 3, 32, 32)
    found = torch.autograd.grad(weft.compile(penalty)(x), model[0].weight)[0]
    wanted = torch.autograd.grad(penalty(x), model[0].weight)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)  # sums in another order


@pytest.mark.usefixtures("products")
def test_gradients_of_permuted_images_in_a_batch_of_one() -> None:
    """Restored strides were given to a dimension of size 1 by `as_strided`, whose kernel read the
    image as row-major: a permuted gradient came out in another order."""

    def two_branches(rows: torch.Tensor, image: torch.Tensor, wide: torch.Tensor,
                     narrow: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        joined = torch.cat([image, rows.permute(0, 3, 1, 2)], 1)
        convolution = nn.functional.conv2d
        return convolution(joined, wide, None, 1, 1), convolution(joined, narrow)

    torch.manual_seed(0)
    inputs = [torch.randn(*size, requires_grad=True) for size in (
        (1, 4, 4, 24), (1, 24, 4, 4), (24, 48, 3, 3), (24, 48, 1, 1))]
    results = []
    for call in (two_branches, weft.compile(two_branches)):
        outputs = call(*inputs)
        tangents = [torch.linspace(0.5, 1.5, t.numel()).view(t.shape) for t in outputs]
        results.append([*outputs, *torch.autograd.grad(outputs, inputs, tangents)])
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        assert found.stride() == wanted.stride()
