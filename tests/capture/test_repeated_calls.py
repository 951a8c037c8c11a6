"""A call that repeats an earlier one leaves what its interpretation would leave: nodes, guards."""

from __future__ import annotations

import functools
import os
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.hooks import RemovableHandle

import weft
from weft.capture.repeats import replay
from weft.capture.repeats.recordings import tensor_form
from weft.config import config
from weft.diagnostics import events

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Settings:
    def __init__(self) -> None:
        self.flag = False
        self.kept: list[torch.Tensor] | None = None


class Layer(nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.first, self.last, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)
        self.drop = nn.Dropout(0.1)
        self.settings, self.scale, self.kind, self.heads = settings, 0.5, "relu", 2
        self.factors, self.table, self.function = [1, 2], {"k": 2.0}, F.relu
        self.extra: Any = None
        self.inner: Any = None
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        y = self.first(self.norm(x)) * self.scale
        y = y.relu() if self.kind == "relu" else y.sin()
        y = y.view(y.shape[0], self.heads, -1).flatten(1)
        y = self.function(y) + self.shift
        for factor in self.factors:
            y = y * factor
        y = self.drop(y * self.table["k"])
        y = y if mask is None else y * mask
        y = y if self.extra is None else y + self.extra.sum()
        y = y.cos() if self.settings.flag else y
        if self.settings.kept is not None:
            self.settings.kept.append(y)
        y = y if self.inner is None else self.inner(y)
        return self.last(y) + x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()
        self.layers = nn.ModuleList(Layer(self.settings) for _ in range(4))
        self.step: Callable[[Model, int, Layer, torch.Tensor], torch.Tensor] = plain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, layer in enumerate(self.layers):
            x = self.step(self, index, layer, x)  # type: ignore[arg-type]
        return x


def plain(model: Model, index: int, layer: Layer, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = layer(x)
    return y


Change = Callable[[Model], None]
CHANGES: dict[str, Change] = {}
STEPS: dict[str, Callable[[Model, int, Layer, torch.Tensor], torch.Tensor]] = {"plain": plain}


def change(function: Change) -> Change:
    """Register something in which one layer, or each, differs from the others."""
    CHANGES[function.__name__] = function
    return function


def step(function: Any) -> Any:
    """Register a way to call the layers."""
    STEPS[function.__name__] = function
    return function


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


class OwnParameter(nn.Parameter):
    pass


def set_last(name: str, value: Callable[[], Any]) -> None:
    """A change of one attribute of one layer."""

    def apply(model: Model) -> None:
        setattr(model.layers[3], name, value())

    CHANGES[name + " of one"] = apply


CHANGES["nothing"] = lambda model: None
set_last("scale", lambda: 0.25)
set_last("kind", lambda: "sin")
set_last("heads", lambda: 4)
set_last("factors", lambda: [1])
set_last("table", lambda: {"k": 3.0})
set_last("function", lambda: F.gelu)
set_last("extra", lambda: torch.ones(2))
set_last("settings", Settings)
set_last("unknown", lambda: 1)
set_last("first", lambda: Doubled(4, 4))
set_last("last", lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()))


@change
def dtype(model: Model) -> None:
    model.layers[3].double()


@change
def hook(model: Model) -> None:
    model.layers[3].first.register_forward_hook(lambda module, args, out: out * 2)


@change
def frozen(model: Model) -> None:
    model.layers[3].first.bias.requires_grad_(False)


@change
def mode(model: Model) -> None:
    model.layers[3].drop.train(not model.training)


@change
def own_forward(model: Model) -> None:
    layer = model.layers[3]
    layer.forward = types.MethodType(lambda self, x: self.first(x).cos(), layer)


@change
def buffer_of_another(model: Model) -> None:
    model.layers[3].shift = model.layers[0].shift


@change
def view_of_another(model: Model) -> None:
    model.layers[3].shift = model.layers[0].shift[:]


@change
def weight_of_another(model: Model) -> None:
    model.layers[3].first.weight = model.layers[1].first.weight


@change
def module_of_another(model: Model) -> None:
    model.layers[3].first = model.layers[1].first


@change
def tied_weights(model: Model) -> None:
    model.layers[3].last.weight = model.layers[3].first.weight


@change
def same_layer(model: Model) -> None:
    model.layers[2] = model.layers[1]


@change
def own_settings(model: Model) -> None:
    for layer in model.layers:
        layer.settings = Settings()


@change
def closures(model: Model) -> None:
    for index, layer in enumerate(model.layers):
        layer.function = (lambda factor: lambda x: x * factor)(index % 2 + 1.5)


@change
def partials(model: Model) -> None:
    for index, layer in enumerate(model.layers):
        layer.function = functools.partial(F.leaky_relu, negative_slope=0.1 + (index > 2))


@change
def signed_zeros(model: Model) -> None:
    model.layers[2].scale, model.layers[3].scale = 0.0, -0.0


@change
def equal_numbers(model: Model) -> None:
    model.layers[1].scale, model.layers[2].scale, model.layers[3].scale = 1.0, 1, True


@change
def other_strides(model: Model) -> None:
    model.layers[3].first.weight = nn.Parameter(torch.ones(4, 4).t()[:, ::1].t().mT)


@change
def own_parameter(model: Model) -> None:
    model.layers[3].first.weight = OwnParameter(torch.ones(4, 4))


@step
def with_masks(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    return layer(x, (x > 0) if index == 2 else x.abs())


@step
def without_gradients(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    with torch.set_grad_enabled(index != 2 and torch.is_grad_enabled()):
        return layer(x)


@step
def twice(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    return model.layers[index // 2](x)


@step
def writing(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    y = layer(x)
    return y.mul_(2) if index == 1 else y


@step
def breaking(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    y = layer(x)
    if index == 2:
        print(end="")
    return y


@step
def growing(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    y = layer(x)
    return torch.cat([y, y]) if index == 1 else y


@step
def setting_a_flag(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    model.settings.flag = index == 2
    return layer(x)


@step
def setting_numbers_before(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    for number, other in enumerate(model.layers if index == 0 else ()):
        other.scale = 0.1 * number
    return layer(x)


@step
def setting_a_buffer_before(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    if index == 0:
        model.layers[3].shift = x.sum(0)
    return layer(x)


@step
def writing_to_a_buffer(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    if index == 0:
        model.layers[3].shift.add_(1)
    return layer(x)


@step
def reading_the_next_layer(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    return layer(x + model.layers[3].shift if index == 1 else x)


@step
def keeping_results(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    if index == 0:
        model.settings.kept = []
    y = layer(x)
    return y if index < 3 else y + sum(model.settings.kept)


@step
def counting_in_a_closure(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    count = 0

    def run(x: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count += 1
        y: torch.Tensor = layer(x) * count
        return y

    return run(run(run(x)))


@step
def checkpointed(model: Model, index: int, layer: Layer, x: torch.Tensor) -> Any:
    from torch.utils.checkpoint import checkpoint
    return checkpoint(layer, x, use_reentrant=False)


PAIRS = [*((name, "plain") for name in CHANGES), *(("nothing", name) for name in STEPS)]
ALL = bool(int(os.environ.get("ALL_CASES", "0")))
"""Whether each pair is tried in evaluation and in training, not in one of them."""
CASES = [(*pair, train) for index, pair in enumerate(PAIRS) for train in (False, True)
         if ALL or train is bool(index % 2)]


def make(change: str, way: str, *, train: bool) -> Model:
    torch.manual_seed(0)
    RemovableHandle.next_id = 0
    model = Model().train(train)
    model.step = STEPS[way]
    CHANGES[change](model)
    return model


def outcome(call: Callable[[torch.Tensor], torch.Tensor], model: Model) -> list[Any]:
    """What two calls give, and the gradients, or the name of what they raise."""
    seen: list[Any] = []
    for _ in range(2):
        torch.manual_seed(1)
        try:
            with torch.set_grad_enabled(model.training):
                y = call(X)
            if y.requires_grad:
                y.sum().backward()
        except RuntimeError as error:
            seen.append(type(error).__name__)
            continue
        seen += [y.detach(), *(p.grad for p in model.parameters())]
    return [*seen, model.settings.flag, [layer.scale for layer in model.layers]]


def described(gm: Any) -> list[tuple[object, ...]]:
    """All that a backend can see of the nodes."""
    rows = []
    for node in gm.graph.nodes:
        example = node.meta.get("example_value")
        form = tensor_form(example) if isinstance(example, torch.Tensor) else type(example)
        modules = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
        target = node.target if isinstance(node.target, str) else node.target.__name__
        rows.append((node.name, node.op, target, str(node.args), str(node.kwargs), str(form),
                     node.meta.get("stack"), modules, sorted(node.meta)))
    return rows


def compiled(change: str, way: str, *, train: bool, repeat: bool) -> tuple[Any, Any]:
    """What the captures give, and what the calls give."""
    model = make(change, way, train=train)
    graphs: list[Any] = []
    guards: list[Any] = []
    weft.reset()

    def note(event: events.Event) -> None:
        if event.kind == "graph":
            graphs.append(described(event.gm))
        elif event.kind == "guards":
            guards.append(Counter(event.guards))

    unsubscribe = events.subscribe(note)
    try:
        with config.patch(repeat_calls=repeat):
            seen = outcome(weft.compile(model, backend="eager"), model)
    finally:
        unsubscribe()
    return (graphs, guards, weft.stats()["graph_breaks"]), seen


@pytest.mark.parametrize(("change", "way", "train"), CASES)
def test_repeated_calls_leave_the_same(change: str, way: str, train: bool) -> None:
    model = make(change, way, train=train)
    expected = outcome(model, model)
    captures, seen = compiled(change, way, train=train, repeat=True)
    interpreted, _ = compiled(change, way, train=train, repeat=False)
    assert captures == interpreted
    assert [*map(type, seen)] == [*map(type, expected)]
    for value, wanted in zip(seen, expected, strict=True):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(value, wanted, equal_nan=True)
        else:
            assert repr(value) == repr(wanted)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the steps that were not interpreted."""
    steps: list[int] = []
    run = replay.Replay.run

    def counting(self: replay.Replay) -> Any:
        steps.append(self._recording.end.step - self._recording.begin.step)
        return run(self)

    monkeypatch.setattr(replay.Replay, "run", counting)
    return steps


@pytest.mark.parametrize("train", [False, True])
def test_equal_layers_are_interpreted_once(train: bool, replays: list[int]) -> None:
    """If all that is tested above were interpreted, nothing would be tested."""
    model = make("nothing", "plain", train=train)
    weft.compile(model, backend="eager")(X)
    assert len(replays) >= 2 and max(replays) > 100


def test_a_marked_region_is_interpreted_once(replays: list[int]) -> None:
    layers = [Layer(Settings()) for _ in range(6)]

    @torch.compiler.nested_compile_region  # type: ignore[untyped-decorator]
    def region(layer: Layer, x: torch.Tensor) -> Any:
        return layer(x)

    def run(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = region(layer, x)
        return x

    for layer in layers:
        layer.eval()
    torch.testing.assert_close(weft.compile(run, backend="eager")(X), run(X))
    assert len(replays) >= 3


def test_changed_numbers_of_repeated_layers_become_symbolic() -> None:
    """Capture learns the numbers of all layers, also of those that were not interpreted."""
    model = make("nothing", "plain", train=False)
    f = weft.compile(model, backend="eager")
    for scale in (0.5, 0.25, 0.125, 2.5):
        for layer in model.layers:
            layer.scale = scale
        torch.testing.assert_close(f(X), model(X))
    assert weft.stats()["graphs"] == 2
