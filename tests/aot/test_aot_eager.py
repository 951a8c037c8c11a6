"""aot_eager against eager: values, mutation, aliasing and strides."""

import inspect
from collections.abc import Callable

import pytest
import torch
import torch.fx

import weft
from weft.backends import resolve

F = torch.nn.functional


def _linear_softmax(x, w):
    return torch.softmax(F.linear(x, w), -1)


def _view_mutation(x, w):
    y = x @ w.t()
    y.view(-1).add_(1)
    y[0].mul_(2)
    return y.relu()


def _input_mutation(x, w):
    x.add_(1)
    return x * 2, x


def _input_slice_mutation(x, w):
    x[1:, ::2].zero_()
    return x.sum()


def _aliases_of_input(x, w):
    return x.t(), x[0], x.view(-1), w


def _aliases_of_intermediate(x, w):
    y = x + 1
    a, b = y.split(2)
    return y, a, b, y.t()


def _out_argument(x, w):
    out = torch.empty(4, 8)
    torch.add(x, 1, out=out)
    return out


def _metadata(x, w):
    y = x.clone()
    y.t_().unsqueeze_(0)
    y.add_(1)
    return y


def _copy_and_fill(x, w):
    y = torch.zeros(8, 4, dtype=torch.float64)
    y.t().copy_(x)
    z = torch.empty(3)
    z.fill_(2)
    return y, z


def _same_value_twice(x, w):
    return x.clone(), x.clone(), x + 0.0, x.view(2, 16).view(4, 8).clone()


def _dropout(x, w):
    return F.dropout(x, 0.5, True), torch.rand(3)


def _constant(x, w):
    return x + torch.tensor([1.0] * 8) * torch.tensor(2.0)


def _integer_division(x, w):
    y = x.long()
    y += 1
    return y / 2, y // 2, y.bool() & True


def _diagonal(x, w):
    y = x.clone()
    y.diagonal().add_(1)
    y.unfold(1, 2, 2)
    return y.expand(2, 4, 8).contiguous()


PROGRAMS: list[Callable] = [
    _linear_softmax, _view_mutation, _input_mutation, _input_slice_mutation, _aliases_of_input,
    _aliases_of_intermediate, _out_argument, _metadata, _copy_and_fill, _same_value_twice, _dropout,
    _constant, _integer_division, _diagonal,
]


def as_graph(program: Callable) -> torch.fx.GraphModule:
    """A graph of one node that calls `program`: tracing must look inside."""
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(name) for name in inspect.signature(program).parameters]
    graph.output(graph.call_function(program, tuple(nodes)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def inputs() -> list[torch.Tensor]:
    return [torch.arange(32.0).view(4, 8) / 16 - 1, torch.linspace(-1, 1, 48).view(6, 8)]


def tensors(result) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


@pytest.fixture(autouse=True)
def _strict():
    with weft.config.patch(strict=True):
        yield


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_equals_eager(program: Callable, inference: bool) -> None:
    gm = as_graph(program)
    wanted_inputs, given = inputs(), inputs()
    with torch.inference_mode(inference):
        compiled = resolve("aot_eager")(gm, inputs())
        assert getattr(compiled, "boxed", False), "runs without aot"
        torch.manual_seed(0)
        wanted = tensors(gm(*wanted_inputs))
        torch.manual_seed(0)
        found = tensors(compiled(list(given)))
    assert len(found) == len(wanted)
    for f, w in zip(found + given, wanted + wanted_inputs, strict=True):
        assert f.dtype == w.dtype and f.stride() == w.stride()
        torch.testing.assert_close(f, w, rtol=0, atol=0)
    _assert_same_aliasing(found + given, wanted + wanted_inputs)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_program_may_use_the_names_of_generated_code(backend: str, dynamic: bool) -> None:
    """A tensor named `inputs` took the place of the list of all."""
    def program(inputs, math, s0, args, outputs, in0, buf0, inf):
        return inputs[:, :1] + math * s0 - args, outputs * in0.sum() + buf0 * inf.shape[0]

    for rows in (3, 5):
        given = [torch.randn(rows, 2) for _ in range(8)]
        compiled = weft.compile(program, backend=backend, dynamic=dynamic)
        torch.testing.assert_close(compiled(*given), program(*given))
    assert weft.stats()["fallbacks"] == 0


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_views_of_normal_tensors_in_inference_mode(backend: str) -> None:
    def views(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.view(-1), x.t() @ x, x[0]]

    x = torch.ones(2, 3)
    with torch.inference_mode():
        wanted, found = views(x), weft.compile(views, backend=backend)(x)
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f, w)
        assert f.is_inference() == w.is_inference()
    _assert_same_aliasing([*found, x], [*wanted, x])


def _assert_same_aliasing(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    def pattern(ts: list[torch.Tensor]) -> list[tuple[int, int]]:
        pointers = [t.untyped_storage().data_ptr() for t in ts]
        identities = [id(t) for t in ts]
        return [(pointers.index(p), identities.index(i))
                for p, i in zip(pointers, identities, strict=True)]

    assert pattern(found) == pattern(wanted)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_sparse_results(backend: str) -> None:
    """There are no kernels that read or copy them: the graph runs as it was captured."""
    for function in (
        lambda x: x.to_sparse(),
        lambda x: torch.sparse.mm(x.to_sparse(), x) + 1,
        lambda x: (x * 2).to_sparse().to_dense(),
    ):
        x = torch.eye(3)
        torch.testing.assert_close(weft.compile(function, backend=backend)(x), function(x))


def test_factories_that_write_to_a_given_tensor():
    """PyTorch has no functional form of `eye.out`; weft's own takes the tensor, too."""
    def f(x):
        made, numbers = torch.empty(3, 3), torch.empty(4)
        torch.eye(3, out=made)
        torch.linspace(0, 1, 4, out=numbers[:])
        return made + x, numbers, torch.eye(*x.shape, out=x)

    found, given = torch.ones(3, 3), torch.ones(3, 3)
    compiled = weft.compile(f, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(given), f(found))
    torch.testing.assert_close(given, found)
