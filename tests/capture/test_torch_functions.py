"""Functions of torch whose Python and C forms share a name, and single operators found wrong."""

from __future__ import annotations

import contextlib
import copy
import subprocess
import sys
from collections import deque

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_map

import weft
from tests.capture.harness import check, compare, run

X = torch.randn(4, 6)


def test_functions_with_a_c_function_of_the_same_name():
    def f(x):
        a, b = torch.broadcast_tensors(x, x[:1])
        c = torch.einsum("ij,kj->ik", a, b)
        d = torch.split(c, 2, dim=1)
        e = torch.meshgrid(d[0][:, 0], d[1][0], indexing="ij")
        return torch.cdist(x, x), torch.norm(x, dim=1), torch.tensordot(x, x, 2), e

    check(f, (X,), graphs=1)


def test_losses():
    def f(x):
        far, near = F.smooth_l1_loss(x, x * 2), F.huber_loss(x, -x)
        return F.mse_loss(x, x + 1), far, F.l1_loss(x, x), near

    check(f, (X,), graphs=1)


def test_unpacking_with_a_star():
    def f(x):
        first, *rest = torch.split(x, [1, 2, 1])
        return first, rest, torch.stack(torch.unbind(x, 1))

    check(f, (X,), graphs=1)


def test_out_is_the_result():
    def f(x):
        o = torch.empty(3, 4)
        r = torch.add(x, 1, out=o)
        v, i = torch.empty(3), torch.empty(3, dtype=torch.long)
        m = torch.max(x, 1, out=(v, i))
        return o, r is o, m[0] is v, m.indices is i, v, i

    check(f, (torch.randn(3, 4),), graphs=1)


def test_out_that_comes_from_outside():
    def f(x, o):
        torch.sin(x, out=o)
        torch.ops.aten.neg.out(o, out=o)
        return o + 1

    check(f, (torch.randn(3, 4), torch.zeros(3, 4)), graphs=1)


def test_tensor_of_tensors_and_numbers():
    def f(x):
        s = x.sum()
        return (torch.tensor([s, x.mean()]), torch.tensor([s, 1.0, 2]),
                torch.tensor([[s], [3]], dtype=torch.float64), torch.tensor([True, False]))

    check(f, (torch.randn(3, 4),), graphs=1)


def test_new_of_a_size_and_of_data():
    check(lambda x: (x.new(torch.Size([2, 3])).shape, x.new(2, 3).shape, x.new([1, 2]),
                     x.type(torch.DoubleTensor), x.type()), (torch.randn(3, 4),), graphs=1)


def test_settings_that_stay_as_they_are():
    def f(x):
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float32)
        with torch.autograd.set_detect_anomaly(False):
            x = x * 2
        torch.compiler.cudagraph_mark_step_begin()
        return x + 1

    check(f, (torch.randn(3, 4),), graphs=1)


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_default_dtype_that_the_program_sets(backend):
    def f(x, i, n):
        with default_dtype(torch.float64):
            made = torch.ones(3) + x, torch.tensor([1.5]), torch.linspace(0, 1, 3), i * 1.5, i.sin()
            if n > 1:
                raise ValueError("large")
        return *made, torch.ones(1), i / 2

    weft.reset()
    compiled = weft.compile(f, backend=backend)
    for n in (1, 2, 1):
        args = torch.ones(3), torch.tensor([1, 2, 3]), n
        compare(run(f, args, {}), run(compiled, args, {}))
        assert torch.get_default_dtype() is torch.float32
    assert weft.stats()["graph_breaks"] == 0


def test_a_default_dtype_that_is_none():
    def f(x):
        try:
            torch.set_default_dtype(torch.int32)
        except TypeError as error:
            return x + 1, str(error)

    check(f, (torch.ones(2),), graphs=1)


def test_copies_of_modules_and_tensors():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
    weight = torch.ones(4)

    def f(x):
        twin = copy.deepcopy(model)
        own = copy.deepcopy(weight)
        own += 1
        return twin(x) * own, weight, twin[0].weight is model[0].weight

    check(f, (torch.randn(3, 4),), graphs=1)


def test_methods_named_as_builtins():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))

    def f(x):
        model.eval()
        y = model(x)
        model.train()
        return y

    check(f, (torch.randn(3, 4),), graphs=1)


def test_an_argument_named_self():
    def f(self):
        return self + 1

    check(f, (torch.randn(3, 4),), graphs=1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_backward_hooks_of_modules(backend):
    results = []
    for compiler in (lambda m: m, lambda m: weft.compile(m, backend=backend)):
        weft.reset()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        seen = []
        model[0].register_full_backward_hook(lambda m, gi, go, s=seen: s.append(go[0].clone()))
        model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
        model[1].register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
        run = compiler(model)
        x = torch.randn(3, 4, requires_grad=True)
        for _ in range(2):
            run(x).sum().backward()
        results.append([x.grad, *(p.grad for p in model.parameters()), *seen])
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_the_call_of_a_module_with_backward_hooks_is_one_break():
    """And none where nothing needs gradients."""
    def make():
        torch.manual_seed(0)
        inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
        model = torch.nn.Sequential(inner, torch.nn.Linear(4, 3), torch.nn.Tanh())
        seen: list[float] = []
        inner[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].sum().item()))

        def f(x):
            return model(x.sin()), seen

        return f

    args = (torch.randn(3, 4),)
    check(None, args, make=make, breaks=1)
    with torch.no_grad():
        check(None, args, make=make, breaks=0, graphs=1)


@pytest.mark.filterwarnings("ignore")
def test_quantised_tensors_break():
    def f(x):
        return torch.quantize_per_tensor(x + 1, 0.1, 0, torch.qint8).dequantize() * 2

    check(f, (torch.randn(3, 4),), breaks=None)


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_layouts_break():
    def f(x, s, c):
        nested = torch.nested.nested_tensor([x, x[:2]])
        return (torch.sparse.mm(s, x.T) + 1, (c @ x.T) * 2, nested.to_padded_tensor(0.0),
                x.relu().to_sparse().to_dense())

    weft.reset()
    args = torch.randn(3, 4), torch.eye(4).to_sparse(), torch.eye(4).to_sparse_csr()
    compiled = weft.compile(f, backend="eager")
    for _ in range(2):
        for a, b in zip(f(*args), compiled(*args), strict=True):
            assert torch.allclose(a, b)


def test_jacobian_of_a_function_of_an_outside_tensor_is_one_graph():
    """Its fake is first made inside of the transform, which must not wrap it."""
    x = torch.randn(4, 3)

    def jacobian(w):
        return torch.func.jacrev(lambda v: (x @ v).tanh())(w)

    w = torch.randn(3)
    torch.testing.assert_close(weft.compile(jacobian, fullgraph=True)(w), jacobian(w))


def test_results_with_names_are_containers_to_pytree() -> None:
    """`torch.return_types` are pytree nodes: flattening one gives its tensors."""
    compiled = weft.compile(
        lambda x: (tree_flatten(torch.mode(x))[0], tree_map(torch.neg, x.max(0))), backend="eager"
    )
    x = torch.arange(6.0).view(2, 3)
    leaves, mapped = compiled(x)
    assert len(leaves) == 2
    assert type(mapped) is torch.return_types.max
    assert mapped.values.tolist() == [-3, -4, -5]


def test_imported_behind_pytorchs_testing_package() -> None:
    """It replaces the method that scripted functions are called by."""
    program = (
        "import torch.testing._internal.common_utils, torch, weft\n"
        "relu = weft.compile(torch.nn.Sequential(torch.nn.ReLU()), backend='eager')\n"
        "print(relu(torch.ones(1)).item())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "1.0", done.stderr


def test_distribution_with_lazy_attributes_is_one_graph():
    def f(logits, chosen):
        made = torch.distributions.Categorical(logits=logits, validate_args=True)
        return made.log_prob(chosen), made.entropy(), made.probs

    check(f, (torch.randn(4, 3), torch.tensor([0, 1, 2, 0])), graphs=1, breaks=0)


def test_no_tensor_to_write_to():
    def f(x, out):
        return torch.stack([x, x], out=None), torch.add(x, 1, out=out), torch.sum(x, 0, out=None)

    check(f, (X, None), (X, torch.zeros(4, 6)), graphs=2)


def test_deques_and_ranges_as_arguments():
    def f(x):
        made = torch.tensor(deque([1.0, 2.0])), torch.tensor(range(4)), x[range(2)]
        try:
            torch.stack(deque([x]))  # type: ignore[arg-type]
        except TypeError as error:
            return made, str(error)

    check(f, (X,), graphs=1, breaks=1)


def test_tensors_made_by_typed_constructors():
    def f(x):
        return (torch.LongTensor([1, 2]) + 1, torch.Tensor([[x[0, 0], 2]]), torch.Tensor(), x + 1,
                torch.BoolTensor((0, 2)), torch.DoubleTensor(range(3)), torch.Tensor(x.shape).shape)

    check(f, (X,), graphs=1, breaks=0)


def test_builtins_on_tensors():
    def f(x):
        rows = list(reversed(x))
        rows[0].add_(1)  # of a copy
        try:
            return rows, torch.block_diag(x, x), round(x)  # type: ignore[call-overload]
        except TypeError as error:
            return rows, x, str(error)

    check(f, (X,), breaks=1)
    weft.reset()
    assert weft.compile(torch.block_diag, backend="eager")(X, X).shape == (8, 12)


def test_operators_refuse_what_their_meta_kernels_accept():
    def f(x, way):
        if way == "softmax":
            return x.softmax(5)
        if way == "index_add":
            return x.index_add(0, torch.tensor([0, 2]), x[:2, :1])
        return F.one_hot(x.long(), 3)

    for way, error in (("softmax", IndexError), ("index_add", RuntimeError), ("", RuntimeError)):
        bad = torch.full((4, 6), 9.0)
        got = run(weft.compile(f, backend="inductor"), (bad, way), {})
        compare(run(f, (bad, way), {}), got)
        assert type(got.error) is error


def test_first_observation_by_channel_resizes_the_ranges():
    from torch.ao.quantization import get_default_qat_qconfig

    observer = get_default_qat_qconfig("fbgemm").weight()
    twin = copy.deepcopy(observer)
    compiled = weft.compile(twin, backend="aot_eager")
    for x in (X, 2 * X):
        torch.testing.assert_close(compiled(x), observer(x))
    torch.testing.assert_close(dict(twin.named_buffers()), dict(observer.named_buffers()))


def test_views_of_normal_tensors_in_inference_mode():
    """They are normal tensors, too: fakes of their results were inference tensors, and refused."""
    table = torch.nn.Parameter(torch.randn(4, 6))

    def f(x):
        first, *_ = table.unbind()
        return x + first + table[:2].sum(0), table.t(), x.view(-1)[::2], table.view(2, 12).detach()

    with torch.inference_mode():
        check(f, (torch.randn(6),), graphs=1, breaks=0)
        made = weft.compile(f, backend="inductor", fullgraph=True)(torch.randn(6))
    assert [one.is_inference() for one in made] == [True, False, True, False]


def test_methods_that_ask_for_the_memory_or_the_object():
    """The first answered for the fake; the others became nodes of the graph."""
    def f(x):
        y = x[1:] * 1
        same = x.is_set_to(x.view(-1)), x.is_set_to(y)
        return y, same, y.__hash__() == hash(y), y.__sizeof__() > 0

    check(f, (torch.ones(3),), breaks=None)


def _largest(buffer: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    buffer.copy_(torch.maximum(buffer, x))
    return buffer.sum()


def test_operators_that_write_are_kept_where_tensors_have_no_versions():
    """In inference mode, `aten.mul_.Tensor` and operators of the program that write were dropped if
    their results were not used."""
    operator = torch.library.custom_op("weft_test::largest", _largest, mutates_args=("buffer",))
    operator.register_fake(lambda buffer, x: buffer.new_empty(()))

    def f(x):
        y = x * 1
        torch.ops.aten.mul_.Tensor(y, 2)
        torch.ops.aten.add_(y, 1)
        operator(y, x + 5)
        torch.ops.weft_test.largest(y[:2], x[:2] + 6)
        return y

    with torch.inference_mode():
        check(f, (torch.ones(3),), graphs=1)


def test_a_function_decorated_with_a_profiler_range_broke_the_graph() -> None:
    @torch.profiler.record_function("scaled")
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    check(lambda x: scaled(x).sin(), (torch.ones(2),), graphs=1, breaks=0)
