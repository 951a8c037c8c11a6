"""User classes derived from torch.autograd.Function under capture."""

from __future__ import annotations

import types
from typing import ClassVar

import pytest
import torch

import weft
from tests.capture.harness import check


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        ctx.save_for_backward(x)
        return x * k

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.k + x * 0, None


class Pair(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, product, total):
        x, y = ctx.saved_tensors
        a = product * y if product is not None else 0
        b = product * x if product is not None else 0
        return (a, b) if total is None else (a + total, b + total)


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return grad * 2


class Sorted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        values, order = x.sort()
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        ctx.shape = x.shape
        return values, order

    @staticmethod
    def backward(ctx, grad, _):
        (order,) = ctx.saved_tensors
        return torch.zeros(ctx.shape).scatter(-1, order, grad)


class Unmaterialized(Sorted):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return Sorted.forward(ctx, x)

    @staticmethod
    def backward(ctx, grad, none):
        assert none is None
        return Sorted.backward(ctx, grad, none)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad if ctx.needs_input_grad[0] else None


PROGRAMS = {
    "scaled": lambda x: Scaled.apply(x.sin(), 3).cos(),
    "pair": lambda x: sum(Pair.apply(x.sin(), x.cos())),
    "one of a pair": lambda x: Pair.apply(x, x * 2)[0],
    "dirty": lambda x: Dirty.apply(x.sin()).cos(),
    "sorted": lambda x: Sorted.apply(x)[0] * 2,
    "unmaterialized": lambda x: Unmaterialized.apply(x)[0] * 2,
    "straight": lambda x: Straight.apply(x * 3) * 2,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_same_as_eager(name, backend):
    weft.reset()
    f = PROGRAMS[name]
    compiled = weft.compile(f, backend=backend, fullgraph=True)
    for _ in range(2):
        a = torch.randn(3, 4, requires_grad=True)
        b = a.detach().clone().requires_grad_()
        expected, actual = f(a), compiled(b)
        assert torch.allclose(expected, actual, atol=1e-6)
        expected.sum().backward()
        actual.sum().backward()
        assert torch.allclose(a.grad, b.grad, atol=1e-6)


def test_side_effects_happen_once_a_call():
    seen = []

    class Noted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append("forward")
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append("backward")
            return grad * 2

    f = weft.compile(lambda x: Noted.apply(x + 1) * 3, backend="eager")
    for calls in (1, 2, 3):
        f(torch.ones(2, requires_grad=True)).sum().backward()
        assert seen == ["forward", "backward"] * calls


def test_what_a_forward_reads_is_guarded():
    factor = [2.0]

    class ByFactor(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * factor[0]

        @staticmethod
        def backward(ctx, grad):
            return grad * factor[0]

    f = weft.compile(lambda x: ByFactor.apply(x), backend="aot_eager", fullgraph=True)
    x = torch.ones(2, requires_grad=True)
    assert torch.equal(f(x).detach(), torch.full((2,), 2.0))
    factor[0] = 5.0
    out = f(x)
    assert torch.equal(out.detach(), torch.full((2,), 5.0))
    out.sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 5.0))


def test_a_tensor_that_a_forward_reads_and_the_program_replaces():
    """The first tensor was used for ever after."""
    weft.reset()
    layer = torch.nn.Linear(2, 2)

    class Frozen(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return layer(x)

        @staticmethod
        def backward(ctx, grad):
            return grad @ layer.weight

    f = weft.compile(lambda x: Frozen.apply(x), backend="aot_eager", fullgraph=True)
    for _ in range(2):
        layer.weight = torch.nn.Parameter(torch.randn(2, 2))
        for _ in range(2):
            x = torch.ones(1, 2, requires_grad=True)
            out = f(x)
            out.sum().backward()
            torch.testing.assert_close(out, layer(x))
            torch.testing.assert_close(x.grad, layer.weight.sum(0, keepdim=True))
    assert weft.stats()["recompiles"] == 1


class Listing(torch.autograd.Function):
    """Takes modules, fills a list, keeps what no backward will read."""

    @staticmethod
    def forward(ctx, x, layers, seen, again=False):
        for layer in layers:
            x = layer(x)
            seen.append(x)
        ctx.save_for_backward(x)
        ctx.layers = layers
        return (x, x.sum()) if again else x

    @staticmethod
    def backward(ctx, grad):
        raise AssertionError


class SetUp(torch.autograd.Function):
    @staticmethod
    def forward(x, factor):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        assert ctx.needs_input_grad == (True, False) and inputs[1] == 3
        ctx.save_for_backward(output)


def test_a_forward_whose_gradient_nobody_can_ask_for_is_a_call_like_others():
    layers, leaf = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.ReLU()]), torch.ones(
        2, 3, requires_grad=True)

    def f(x):
        seen = []
        out = Listing.apply(x, layers, seen, True)
        with torch.no_grad():
            more = SetUp.apply(leaf, 3)
        return out, seen, more, more.requires_grad, out[0].requires_grad

    check(f, (torch.ones(2, 3),), graphs=1)


def test_a_function_class_made_inside():
    def f(x, scale):
        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * scale

            @staticmethod
            def backward(ctx, grad):
                return grad * scale

        return Scale.apply(x)

    check(f, (torch.ones(3), 2), (torch.ones(3), 3), breaks=0)
    compiled = weft.compile(f, backend="eager")
    x = torch.ones(3, requires_grad=True)
    compiled(x, 4).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 4.0))


class Curve:
    def __init__(self, scale):
        self.scale = scale

    def value(self, x):
        return x.sin() * self.scale

    def slope(self, x):
        return x.cos() * self.scale


class Along(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, value, slope, kind=Curve):
        ctx.slope = slope
        ctx.save_for_backward(x)
        return value(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.slope(x), None, None, None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_arguments_that_a_graph_cannot_show(backend):
    curves = [Curve(torch.tensor(2.0)), Curve(3)]

    def f(x, curve):
        y = Along.apply(x, curve.value, curve.slope) + Along.apply(x, torch.exp, torch.exp, Curve)
        return y + Along.apply(x, lambda t: t * 2, lambda t: torch.full_like(t, 2))

    weft.reset()
    compiled = weft.compile(f, backend=backend)
    for curve in (*curves, *curves):
        x = torch.ones(2, requires_grad=True)
        expected, actual = f(x, curve), compiled(x, curve)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (actual, expected)))
    assert weft.stats()["graph_breaks"] == 0
    assert weft.stats()["graphs"] == 2


FACTOR = 1


class ByFactor(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * FACTOR

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_a_global_variable_changed_before_a_function_reads_it():
    def f(x):
        global FACTOR
        FACTOR = 5
        return ByFactor.apply(x)

    check(f, (torch.ones(2, requires_grad=True),), breaks=None)


class SavesIfNeeded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.requires_grad:
            ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos()


def test_forward_may_ask_whether_inputs_require_gradients():
    def f(x):
        return SavesIfNeeded.apply(x) + SavesIfNeeded.apply(x.detach())

    check(f, (torch.ones(2, requires_grad=True),), graphs=1)


class Older(torch.autograd.Function):
    def __init__(self, k):
        self.k = k

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_an_instance_of_a_function_class_did_not_exist():
    def f(x):
        older = Older(3)
        return older.apply(x) * older.k, older

    x = torch.ones(2, requires_grad=True)
    result, older = weft.compile(f, backend="eager", fullgraph=True)(x)
    result.sum().backward()
    assert type(older) is Older and older.k == 3
    torch.testing.assert_close(x.grad, torch.full((2,), 6.0))


# -- variables that change between forward and backward -------------------------------------------

SCALE = 2.0
OFFSET = 3.0
SETTINGS = types.SimpleNamespace(scale=2.0, table={"a": [1.0, 2.0]})
WEIGHT = torch.full((4,), 2.0)


class ReadsLate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * OFFSET)
        return x * OFFSET

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return grad * y * SCALE * SETTINGS.scale * SETTINGS.table["a"][1] * OFFSET


class ReadsTensorLate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * WEIGHT.cos() * WEIGHT.sum()


def late(x):
    return ReadsLate.apply(x.sin() * OFFSET).sum()


def late_tensor(x):
    return ReadsTensorLate.apply(x.sin()).sum()


def clamped(grad):
    return grad * SCALE


def late_hook(x):
    y = x.sin()
    y.register_hook(clamped)
    return (y * y).sum()


def gradients(f, change, monkeypatch, *, create_graph=False):
    """Of three steps, in the middle one of which the program changes something."""
    found = []
    for step in range(3):
        with monkeypatch.context() as patched:
            x = torch.arange(4.0, requires_grad=True)
            loss = f(x)
            if step == 1:
                change(patched)
            found += torch.autograd.grad(loss, x, create_graph=create_graph)
    return found


CHANGES = {
    "variable": lambda p: p.setitem(globals(), "SCALE", 5.0),
    "of both": lambda p: p.setitem(globals(), "OFFSET", 5.0),
    "attribute": lambda p: p.setattr(SETTINGS, "scale", 7.0),
    "item": lambda p: p.setitem(SETTINGS.table, "a", [1.0, 9.0]),
    "tensor": lambda p: p.setitem(globals(), "WEIGHT", torch.full((4,), 3.0)),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("f", [late, late_tensor, late_hook])
def test_backwards_took_the_values_that_variables_had_in_the_forward(
        f, change, create_graph, monkeypatch):
    expected = gradients(f, CHANGES[change], monkeypatch, create_graph=create_graph)
    got = gradients(
        weft.compile(f, fullgraph=True), CHANGES[change], monkeypatch, create_graph=create_graph)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


class Read:
    factor = 2.0
    items: ClassVar = [1.0, 2.0]

    @property
    def doubled(self):
        return self.factor * 2


READ = Read()


def read_by_helper():
    return SCALE


class ReadsManyWays(torch.autograd.Function):
    own = 3.0

    @staticmethod
    def forward(ctx, x):
        return x * read_by_helper() * sum(Read.items)

    @staticmethod
    def backward(ctx, grad):
        return grad * ReadsManyWays.own * sum(Read.items) * READ.doubled * read_by_helper()


OTHER_CHANGES = {
    "class attribute": lambda p: p.setattr(Read, "factor", 7.0),
    "attribute over one of the class": lambda p: p.setattr(READ, "factor", 7.0, raising=False),
    "of the function's class": lambda p: p.setattr(ReadsManyWays, "own", 7.0),
    "items of a list": lambda p: p.setattr(Read, "items", [*Read.items, 4.0]),
    "read by a helper": lambda p: p.setitem(globals(), "SCALE", 7.0),
    "the helper": lambda p: p.setitem(globals(), "read_by_helper", lambda: 7.0),
}


@pytest.mark.parametrize("change", OTHER_CHANGES)
def test_backwards_took_old_values_however_they_read_them(change, monkeypatch):
    def f(x):
        return ReadsManyWays.apply(x.sin()).sum()

    expected = gradients(f, OTHER_CHANGES[change], monkeypatch)
    got = gradients(weft.compile(f, fullgraph=True), OTHER_CHANGES[change], monkeypatch)
    torch.testing.assert_close(got, expected)


def test_a_tensor_written_after_the_forward_that_a_backward_reads_was_an_error():
    results = []
    for f in (late_tensor, weft.compile(late_tensor, fullgraph=True)):
        x = torch.arange(4.0, requires_grad=True)
        loss = f(x)
        WEIGHT.mul_(3)
        loss.backward()
        WEIGHT.fill_(2.0)
        results.append(x.grad)
    torch.testing.assert_close(*results)


def test_a_closure_of_a_hook_argument_was_that_of_the_first_call():
    def step(x, hook):
        y = x.sin()
        y.register_hook(hook)
        return (y * y).sum()

    def times(k):
        return lambda grad: grad * k

    compiled = weft.compile(step)
    for k in (2.0, 3.0, 4.0):
        pair = [torch.ones(3, requires_grad=True) for _ in range(2)]
        for f, x in zip((step, compiled), pair, strict=True):
            f(x, times(k)).backward()
        torch.testing.assert_close(pair[0].grad, pair[1].grad)


def test_a_change_between_forward_and_backward_of_one_frame_was_not_seen():
    def train(x):
        global SCALE
        y = ReadsLate.apply(x.sin())
        SCALE = 7.0
        y.sum().backward()
        SCALE = 2.0
        return y.detach()

    def change_before(x):
        old, SETTINGS.scale = SETTINGS.scale, 5.0
        y = ReadsLate.apply(x.sin()).sum()
        y.backward()
        SETTINGS.scale = old
        return y.detach()

    for f in (train, change_before):
        compiled, results = weft.compile(f), []
        for g in (f, compiled, compiled):
            x = torch.arange(4.0, requires_grad=True)
            results.append((g(x), x.grad))
        for got in results[1:]:
            torch.testing.assert_close(got, results[0])


stored_apply = Scaled.apply


class Holder:
    shared = Scaled.apply

    def __init__(self) -> None:
        self.own = Scaled.apply


holder = Holder()


@pytest.mark.parametrize("apply", [
    lambda x: stored_apply(x, 2.0),
    lambda x: holder.shared(x, 2.0) + holder.own(x, 3.0),
    lambda x, apply=Scaled.apply: apply(x, 2.0),
    lambda x: vars(torch.autograd.Function)["apply"].__get__(None, Scaled)(x, 2.0),
])
def test_apply_read_before_the_call_is_the_class_methods(apply) -> None:
    for needs in (False, True):
        check(apply, (torch.randn(3, requires_grad=needs),), breaks=None)


KEPT: dict = {"list": [1.0, 2.0], "table": {"a": 1.0}}


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * sum(KEPT["list"])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.items, ctx.table = KEPT["list"], KEPT["table"]

    @staticmethod
    def backward(ctx, grad):
        return grad * (sum(ctx.items) + len(ctx.table))


CHANGES_OF_KEPT = {
    "nothing": lambda: None,
    "longer": lambda: KEPT["list"].append(5.0),
    "empty": lambda: KEPT["list"].clear(),
    "reversed": lambda: KEPT["list"].reverse() or KEPT["list"].pop(),
    "entry": lambda: KEPT["table"].update(b=1.0),
    "another": lambda: KEPT.update(list=[7.0]),
}


def test_containers_that_a_backward_had_from_its_forward():
    def program(x):
        return Keeps.apply(x.sin()).cos()

    def gradient(call, change):
        KEPT.update(list=[1.0, 2.0], table={"a": 1.0})
        x = torch.ones(2, requires_grad=True)
        y = call(x)
        change()
        y.sum().backward()
        return x.grad

    compiled = weft.compile(program, backend="aot_eager")
    for change in CHANGES_OF_KEPT.values():
        torch.testing.assert_close(gradient(compiled, change), gradient(program, change))
