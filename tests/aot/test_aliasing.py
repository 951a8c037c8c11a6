"""Mutation and aliasing, seen from outside: sixty programs against eager.

Each program gets x (4, 8), w (6, 8) and a buffer b (8,), once without gradients and once with x a
computed tensor (so that it may be written) and w a leaf. Compared are results, inputs, versions
(written or not), which tensors share memory or are the same object, strides and gradients.
"""

import inspect
from collections.abc import Callable

import pytest
import torch
import torch.fx
from observing import assert_alike, flat, make_inputs, run

import weft
from weft.backends import resolve

F = torch.nn.functional
PROGRAMS: list[Callable] = []


def program(function: Callable) -> Callable:
    PROGRAMS.append(function)
    return function


def _chain(*steps: Callable) -> Callable:
    def run(x, w, b):
        for step in steps:
            x = step(x)
        return x

    return run


# -- writes to intermediate values -----------------------------------------------------------------

for name, write in {
    "add": lambda y: y.add_(1),
    "mul_view": lambda y: y.view(-1).mul_(2),
    "select": lambda y: y[1].sub_(3),
    "slice": lambda y: y[1:3, ::2].mul_(0.5),
    "transpose": lambda y: y.t()[2].add_(1),
    "permute": lambda y: y.view(2, 2, 8).permute(2, 0, 1)[3].fill_(2),
    "diagonal": lambda y: y.diagonal().mul_(3),
    "unsqueeze": lambda y: y.unsqueeze(0)[0, 1].zero_(),
    "squeeze": lambda y: y.view(4, 1, 8).squeeze(1)[0].add_(5),
    "narrow": lambda y: y.narrow(1, 2, 3).exp_(),
    "chunk": lambda y: y.chunk(2, 1)[1].neg_(),
    "split": lambda y: y.split([1, 3])[1].sin_(),
    "unbind": lambda y: y.unbind(1)[3].add_(2),
    "as_strided": lambda y: y.as_strided((2, 2), (8, 1), 3).add_(4),
    "expand": lambda y: y.view(1, 4, 8).expand(1, 4, 8).add_(1),
    "index_put": lambda y: y.index_put_((torch.tensor([0, 2]),), torch.tensor(1.5)),
    "setitem_mask": lambda y: y.masked_fill_(y > 0, 0.25),
    "copy": lambda y: y[0].copy_(y[1]),
    "copy_broadcast": lambda y: y.copy_(y[0].clone()),
    "view_of_view": lambda y: y[1:].view(3, 2, 4)[:, 1].add_(7),
    "scatter": lambda y: y.scatter_(1, torch.zeros(4, 1, dtype=torch.long), 9.0),
    "clamp": lambda y: y.clamp_(-0.5, 0.5),
    "addcmul": lambda y: y.addcmul_(y.detach(), y.detach(), value=0.5),
    "relu_inplace": lambda y: F.relu(y, inplace=True),
    "swap": lambda y: y.copy_(y.flip(0)),
    "type_change": lambda y: y.add_(torch.ones(8, dtype=torch.float64)),
}.items():

    def on_intermediate(x, w, b, write=write):
        y = x * 2
        z = y.view(2, 16)
        write(y)
        return y.sum() + z[0, 3], z * 1

    on_intermediate.__name__ = f"intermediate_{name}"
    program(on_intermediate)


# -- writes to inputs ------------------------------------------------------------------------------


@program
def input_add(x, w, b):
    x.add_(1)
    return x * 2


@program
def input_returned_after_write(x, w, b):
    x.mul_(2)
    return x


@program
def input_view_returned_after_write(x, w, b):
    x.mul_(2)
    return x[1], x.t()


@program
def input_written_through_view(x, w, b):
    x[0].add_(b)
    return x.sum()


@program
def input_written_twice(x, w, b):
    x.add_(1)
    y = x * 3
    x.mul_(y)
    return y


@program
def input_read_before_and_after(x, w, b):
    before = x.exp()
    x.zero_()
    return before + x


@program
def buffer_counts(x, w, b):
    b.add_(1)
    return x * b


@program
def buffer_running_mean(x, w, b):
    with torch.no_grad():
        b.lerp_(x.mean(0), 0.1)
    return x - b


@program
def batch_norm_statistics(x, w, b):
    mean = b
    var = b.clone().abs() + 1
    y = F.batch_norm(x, mean, var, training=True)
    return y, var


@program
def leaf_written_without_gradient(x, w, b):
    with torch.no_grad():
        w.add_(1)
    return x @ w.t()


@program
def buffer_gets_a_gradient(x, w, b):
    b.add_(w[0])
    return b * 2


@program
def write_under_no_grad_to_computed_input(x, w, b):
    with torch.no_grad():
        x.mul_(2)
    return x * w[0]


@program
def input_out_argument(x, w, b):
    with torch.no_grad():
        torch.mul(x.detach()[0], 2, out=b)
    return b + 0


@program
def input_copied_into(x, w, b):
    x.copy_(w[:4] * b)
    return x + 1


@program
def input_transposed_copy(x, w, b):
    x.t().copy_(x.t().flip(0).clone())
    return x * 1


# -- results that share memory ---------------------------------------------------------------------


@program
def result_is_input(x, w, b):
    return x, w, x


@program
def results_are_views_of_input(x, w, b):
    return x[0], x.t(), w.view(-1), x.view(4, 8)


@program
def results_share_an_intermediate(x, w, b):
    y = x + 1
    return y, y.t(), y[0]


@program
def results_are_views_without_base(x, w, b):
    y = x + 1
    return y[:2], y[2:]


@program
def one_result_is_a_view(x, w, b):
    return (x + 1).t()


@program
def same_result_twice(x, w, b):
    y = x + 1
    return y, y


@program
def chunks(x, w, b):
    return (x * w[0]).chunk(2, 1)


@program
def detached_result(x, w, b):
    y = x * 2
    return y, y.detach()


@program
def detached_input(x, w, b):
    return x.detach(), x * 1


@program
def copies_stay_copies(x, w, b):
    return x.clone(), x.clone(), x + 0


@program
def view_written_after_base_returned(x, w, b):
    y = x * 2
    v = y[1]
    v.add_(1)
    return y, v


@program
def contiguous_of_contiguous(x, w, b):
    return x.contiguous(), x.t().contiguous()


@program
def reshape_views_and_copies(x, w, b):
    return x.reshape(2, 16), x.t().reshape(-1)


@program
def metadata_changes_of_intermediate(x, w, b):
    y = x.clone()
    y.t_()
    y.unsqueeze_(0)
    y.add_(1)
    return y


@program
def expanded_result(x, w, b):
    return b.expand(3, 8), (b + 1).expand(3, 8)


@program
def integer_results(x, w, b):
    return x.argmax(1), x.shape[0], x > 0, (x * 2).sum()


@program
def unused_inputs(x, w, b):
    return b * 2


@program
def requires_grad_of_intermediate(x, w, b):
    y = (x.detach() * 2).requires_grad_()
    return (y * w[0]).sum()


@program
def set_data_of_intermediate(x, w, b):
    y = x * 2
    z = torch.empty(0)
    z.set_(y.detach())
    return z + 1


@program
def data_attribute(x, w, b):
    y = x * 2
    y.data.mul_(3)
    return y * 1


@program
def dropout_and_mask(x, w, b):
    return F.dropout(x, 0.5, True) * w[0]


@program
def none_and_numbers(x, w, b):
    return x * 2, None, 3, [x + 1, (x + 2,)], {"a": x.t()}


def as_graph(function: Callable) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(name) for name in ("x", "w", "b")]
    graph.output(graph.call_function(function, tuple(nodes)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda p: p.__name__)
def test_equals_eager(function: Callable, gradients: bool, backend: str) -> None:
    gm = as_graph(function)
    try:
        wanted = run(gm.forward, gradients)
    except RuntimeError:
        pytest.skip("eager refuses it")
    with weft.config.patch(strict=True):
        compiled = resolve(backend)(gm, make_inputs(gradients))
    call = compiled if not getattr(compiled, "boxed", False) else lambda *i: compiled(list(i))
    found = run(call, gradients)
    # Eager writes statistics without counting a version.
    assert_alike(found, wanted, counted=function is not batch_norm_statistics)


def test_there_are_sixty_programs() -> None:
    assert len(PROGRAMS) >= 60 and len({p.__name__ for p in PROGRAMS}) == len(PROGRAMS)
    assert all(len(inspect.signature(p).parameters) >= 3 for p in PROGRAMS)


@pytest.mark.parametrize("backend", ["aot_eager"])
def test_inputs_that_share_memory(backend: str) -> None:
    """Compiled for separate inputs, called with overlapping ones: a write shows in both."""

    def f(x, y):
        x.add_(1)
        return x * y

    graph = torch.fx.Graph()
    graph.output(graph.call_function(f, (graph.placeholder("x"), graph.placeholder("y"))))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    compiled = resolve(backend)(gm, [torch.ones(4), torch.ones(4)])
    for views in (lambda t: (t[:4], t[:4]), lambda t: (t[:4], t[2:6]), lambda t: (t[:2], t[4:6])):
        wanted, given = torch.arange(6.0), torch.arange(6.0)
        torch.testing.assert_close(compiled(list(views(given))), f(*views(wanted)))
        torch.testing.assert_close(given, wanted)


def _write_view(a, b):
    view = a[1:]
    view.add_(b[1:])
    return view


ON_TWO = {
    "write_one": lambda a, b: (a.add_(1), a * b),
    "write_other": lambda a, b: (b.mul_(2), a.sum() + b.sum()),
    "copy": lambda a, b: (a.copy_(b), a),
    "write_both": lambda a, b: (a.zero_(), b.add_(1), a, b),
    "write_view": _write_view,
    "views": lambda a, b: (a.view(-1), b.view(-1), a + b),
}
SHARED = {
    "one_object": lambda t: (t, t),
    "views": lambda t: (t[:4], t[:4]),
    "overlapping": lambda t: (t[:4], t[2:6]),
    "apart": lambda t: (t[:4], t[4:8]),
    "interleaved": lambda t: (t[::2], t[1::2]),
}


@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("name", ON_TWO)
def test_inputs_that_alias_each_other(name: str, gradients: bool, fresh: None) -> None:
    """One compiled function, called with inputs that share memory in every way."""
    function = ON_TWO[name]

    def run_on(call: Callable, share: Callable) -> list:
        leaf = (torch.arange(8.0) * 0.5 + 1).requires_grad_(gradients)
        memory = leaf * 1
        results = flat(call(*share(memory)))
        loss = sum(r.square().sum() for r in results)
        gradient = torch.autograd.grad(loss, leaf) if gradients else ()
        return [*results, memory, *gradient]

    for shares in (list(SHARED.values()), list(SHARED.values())[::-1]):
        weft.reset()
        compiled = weft.compile(function, backend="aot_eager")
        for share in shares:
            try:
                wanted = run_on(function, share)
            except RuntimeError:  # eager refuses to copy between overlapping tensors
                with pytest.raises(RuntimeError, match="single memory location"):
                    run_on(compiled, share)
            else:
                torch.testing.assert_close(run_on(compiled, share), wanted)


@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "grad"])
def test_written_row_of_a_broadcast_input_was_refused(gradients: bool, fresh: None) -> None:
    """Elements of such an input share memory: its new value cannot be written back whole."""

    def function(y: torch.Tensor) -> torch.Tensor:
        y[0].mul_(2)
        return y.sum()

    def run_on(call: Callable) -> list:
        leaf = torch.arange(4.0).requires_grad_(gradients)
        row = leaf * 1
        total = call(row.expand(3, 4))
        return [total, row, *(torch.autograd.grad(total, leaf) if gradients else ())]

    for call in weft.compile(function, backend="aot_eager"), weft.compile(function, dynamic=True):
        torch.testing.assert_close(run_on(call), run_on(function))


@pytest.mark.parametrize(
    "function",
    [lambda a: a.sin().t(), lambda a: (a @ a).view(-1)[1:], lambda a: (a.cos(), (a @ a)[1:])[1]],
)
def test_views_that_the_graph_returns_may_be_written(function: Callable, fresh: None) -> None:
    """Autograd refuses writes to views that a custom function returns."""

    def run_on(call: Callable) -> list:
        leaf = (torch.arange(16.0) / 16).view(4, 4).requires_grad_()
        result = call(leaf)
        result[0] = 0
        return [result, *torch.autograd.grad(result.sum(), leaf)]

    torch.testing.assert_close(
        run_on(weft.compile(function, backend="aot_eager")), run_on(function)
    )


def test_input_that_gets_a_gradient_by_a_write(fresh: None) -> None:
    """It is no input that gradients are taken for, though it has one afterwards."""

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        b.copy_(a)
        b[:2] = 1
        return b.sum()

    def run_on(call: Callable) -> list:
        a, b = torch.ones(3, requires_grad=True), torch.zeros(3, dtype=torch.float64)
        call(a, b).backward()
        return [a.grad, b]

    compiled = weft.compile(function, backend="aot_eager")
    torch.testing.assert_close(run_on(compiled), run_on(function))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_writes_in_place_count_as_in_eager(backend: str, fresh: None) -> None:
    def write(x, y, z):
        torch._foreach_mul_([x, y], 2.0)
        x[0] = 1
        z.data.add_(1)  # not counted
        return x.add_(1)

    x, y, z = torch.zeros(3), torch.zeros(3), torch.zeros(3)
    assert weft.compile(write, backend=backend)(x, y, z) is x
    assert (x._version, y._version, z._version) == (3, 1, 0)


def test_a_part_of_a_broadcast_tensor_is_written() -> None:
    """Only a write to the first copy arrived."""

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        wide = x.expand(2, 3, 3)
        wide[1].add_(y)
        wide[0, 1].mul_(3)
        return wide * 2

    x, y = torch.randn(3, 3), torch.randn(3)
    mine = x.clone()
    torch.testing.assert_close(weft.compile(f, backend="aot_eager")(mine, y), f(x, y))
    torch.testing.assert_close(mine, x)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_writes_to_one_of_several_views_are_refused(backend: str) -> None:
    """As autograd refuses them of what `chunk` returns: the compiled function's were slices."""
    def parts(x):
        with torch.no_grad():
            row = x[0]
        return (*x.chunk(2), row)

    for x in (torch.ones(4, 2), torch.ones(4, 2, requires_grad=True) * 1):
        for view in weft.compile(parts, backend=backend)(x):
            with pytest.raises(RuntimeError, match="is being modified inplace"):
                view.mul_(torch.ones((), requires_grad=True))
    assert torch.equal(x, torch.ones(4, 2))
