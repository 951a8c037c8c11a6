"""NumPy in captured code: results, dtypes and kinds (array or scalar) are NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.capture.harness import check

A = np.arange(12.0).reshape(3, 4) - 5
B = (np.arange(12).reshape(3, 4) % 5).astype(np.int32)
F = np.linspace(-1, 1, 4, dtype=np.float32)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "arithmetic": lambda a, b, f: (a + b, a - f, b * 2, a / 3, b // 2, b % 3, a**2, 1 - a, 2 / f),
    "int_division": lambda a, b, f: (b / b.max(), b // np.int64(2), b / 2, b**2),
    "matmul": lambda a, b, f: (a @ a.T, np.dot(a, f), a.dot(f), np.matmul(a, f), np.outer(f, f)),
    "compare": lambda a, b, f: (a > 0, b == 2, a <= f, ~(a > 0), (a > 0) & (b > 1), a != a),
    "reductions": lambda a, b, f: (
        a.sum(), b.sum(), f.sum(), a.mean(axis=0), b.mean(), f.mean(), f.std(), a.var(axis=1),
        a.max(), b.min(axis=0), b.prod(axis=1), a.argmax(), b.argmin(axis=1), (a > 0).any(),
        (a > 0).all(axis=0), np.sum(a, axis=1, keepdims=True), np.linalg.norm(a), b.cumsum(),
    ),
    "elementwise": lambda a, b, f: (
        np.exp(f), np.sqrt(np.abs(a)), np.sin(b), np.tanh(f), np.maximum(a, f), np.minimum(b, 2),
        np.clip(a, -1, 1), np.where(a > 0, a, b), np.floor(f), np.sign(a), np.log1p(np.abs(f)),
        np.power(b, 2), np.square(f), np.abs(b), -a, +b, abs(f), np.isnan(a), np.round(a),
    ),
    "scalars": lambda a, b, f: (
        f + 1, f + 1.5, f * np.float64(2), f * np.float32(2), b + 1.5, b + np.float32(1), np.pi * f,
        f + a.sum(), b + f.sum(), f.sum() * 2, f.sum() * a.sum(), b.sum() / 2, f[0] + 1, f[0] * a,
    ),
    "indexing": lambda a, b, f: (
        a[0], a[1, 2], a[:, 1:3], a[..., None], a[::2, ::2], a[a > 0].shape[0:0], a[[0, 2]], a[-1,
        -1],
        a[np.array([0, 1]), np.array([1, 2])], f[1:][0], a[1:, :-1].T,
    ),
    "shape": lambda a, b, f: (
        a.reshape(4, 3), a.reshape(-1), a.T, a.ravel(), np.concatenate([a, a], axis=0), a.flatten(),
        np.stack([f, f]), np.expand_dims(f, 0), a.transpose(1, 0), np.squeeze(f[None]), a.shape,
        a.ndim,
        a.size, len(a), np.vstack([f, f]), np.hstack([f, f]), np.repeat(f, 2), np.tile(f, 2),
        np.broadcast_to(f, (2, 4)), np.split(f, 2), np.swapaxes(a, 0, 1), a.dtype, b.itemsize,
    ),
    "making": lambda a, b, f: (
        np.zeros(3), np.ones((2, 2), dtype=np.float32), np.arange(5), np.arange(1.0, 2.0, 0.25),
        np.linspace(0, 1, 5), np.eye(3), np.full((2,), 7), np.array([1, 2]), np.array([1.5, 2]),
        np.zeros_like(b), np.ones_like(f), np.array([[1, 2], [3, 4]], dtype="float32"), np.empty(0),
        np.asarray(f), np.array(f),
    ),
    "constants": lambda a, b, f: (
        np.sqrt(2.0), np.prod((2, 3)), np.log(10), np.float32(3), np.dtype("int8"), np.int64(4) + 1,
        a * np.sqrt(a.shape[1]), np.ceil(2.5),
    ),
    "casts": lambda a, b, f: (
        a.astype(np.float32), b.astype(float), a.astype("int64"), f.astype(np.float64),
        b.astype(bool),
    ),
    "sorting": lambda a, b, f: (np.sort(a, axis=0), np.argsort(f), np.flip(f),
        np.unique(b).shape[1:]),
    "fft": lambda a, b, f: (np.fft.fft(f), np.fft.rfft(a, axis=1), np.fft.ifft(np.fft.fft(f)).real),
    "iteration": lambda a, b, f: ([row * 2 for row in a], sum(f), [x + 1 for x in f], list(zip(a,
        b))),
}


def equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, (np.ndarray, np.generic)):
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and np.allclose(one, other, equal_nan=True, rtol=1e-6, atol=1e-7)
    return bool(one == other)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_like_numpy(name: str) -> None:
    function = FUNCTIONS[name]
    expected = function(A.copy(), B.copy(), F.copy())
    compiled = weft.compile(function, backend="eager")
    for _ in range(2):
        actual = compiled(A.copy(), B.copy(), F.copy())
        for n, (one, other) in enumerate(zip(expected, actual, strict=True)):
            assert equal(one, other), (n, one, other, type(one), type(other))


def test_numpy_calls_are_nodes_of_one_graph() -> None:
    def f(x: Any) -> Any:
        y = np.zeros(4) + x * 2
        return np.where(y > 1, y, -y).sum() + np.linalg.norm(y)

    weft.reset()
    compiled = weft.compile(f, backend="eager", fullgraph=True)
    assert compiled(np.arange(4.0)) == f(np.arange(4.0))
    assert weft.stats()["graphs"] == 1


def test_writes_reach_the_array() -> None:
    def f(x: Any) -> Any:
        x[0] = 5
        x += 1
        x[1:] *= 2
        return x

    one, other = np.arange(4.0), np.arange(4.0)
    f(one)
    result = weft.compile(f, backend="eager")(other)
    assert result is other
    assert (one == other).all()


def test_tensors_and_arrays_share_memory() -> None:
    def f(t: Any) -> Any:
        array = t.numpy()
        array += 1
        back = torch.from_numpy(array) * 2
        return back, torch.tensor(array), array

    one, other = torch.arange(3.0), torch.arange(3.0)
    expected, actual = f(one), weft.compile(f, backend="eager")(other)
    assert torch.equal(one, other)
    assert torch.equal(expected[0], actual[0]) and torch.equal(expected[1], actual[1])
    assert (expected[2] == actual[2]).all() and isinstance(actual[2], np.ndarray)


def test_another_dtype_or_shape_is_another_variant() -> None:
    compiled = weft.compile(lambda x: x * 2 + 1, backend="eager")
    for x in (np.ones(3), np.ones(3, np.float32), np.ones((2, 2)), np.ones(3, np.int8), np.ones(3)):
        assert equal(compiled(x), x * 2 + 1)


def test_data_decides_in_python() -> None:
    def f(x: Any) -> Any:
        if x.sum() > 0:
            return x * int(x[0] + 2)
        return x.tolist(), float(x.max()), str(x.dtype)

    compiled = weft.compile(f, backend="eager")
    for x in (np.ones(3), -np.ones(3)):
        assert repr(compiled(x)) == repr(f(x))


def test_what_torch_has_no_tensor_for_runs_eagerly() -> None:
    def f(x: Any) -> Any:
        return np.array([str(v) for v in x.tolist()])

    names = np.array(["a", "b"])
    assert (weft.compile(f, backend="eager")(names) == f(names)).all()


@pytest.mark.parametrize("array", [
    np.array([1.7, -2.5, 0.4]), np.array([3, 200, 100], np.uint8), np.array([-3, 4, 1]),
])
@pytest.mark.filterwarnings("ignore:numpy.fix is deprecated:DeprecationWarning")
def test_where_pytorchs_version_of_a_function_differs(array: Any) -> None:
    def f(x: Any) -> Any:
        return (np.fix(x), np.cbrt(x), np.modf(x)[0], x.cumsum(), np.hypot(x, x), np.fft.ifft(x),
                np.histogram(x, bins=3)[1], np.result_type(x, 1.0))

    for one, other in zip(f(array), weft.compile(f, backend="eager")(array), strict=True):
        assert one.dtype == other.dtype if isinstance(one, np.ndarray) else one is other
        assert np.allclose(one, other) if isinstance(one, np.ndarray) else True


def test_powers_are_nodes() -> None:
    compiled = weft.compile(lambda x: x**2 + x**0.5, backend="eager", fullgraph=True)
    assert equal(compiled(np.arange(3.0)), np.arange(3.0) ** 2 + np.arange(3.0) ** 0.5)


def test_arrays_with_their_elements_backwards_share_memory() -> None:
    def written(x: Any) -> Any:
        np.flip(x)[0] = 7
        x[::-1][0] += 1
        return x.sum()

    def given(x: Any) -> Any:
        return x[::-1]

    def read(x: Any) -> Any:
        return x[::-1].cumsum()[::-1] * 2

    for f, breaks in ((written, None), (given, 1), (read, 0)):
        one, other = np.arange(4.0), np.arange(4.0)
        weft.reset()
        expected, actual = f(one), weft.compile(f, backend="eager")(other)
        one += 5
        other += 5
        assert (one == other).all() and np.array_equal(expected, actual)
        assert breaks in (None, weft.stats()["graph_breaks"])


def test_numpy_scalar_of_a_tensor() -> None:
    compiled = weft.compile(lambda t: np.float32(t), backend="eager")
    assert type(compiled(torch.tensor(1.5))) is np.float32


def test_scalars_of_arrays_are_numbers_for_torch() -> None:
    table = np.array([0.5, 2.0, 3.0])

    def f(x, n):
        made = torch.tensor([v * 2 for v in np.linspace(0.0, 1.0, 3)]), torch.as_tensor([table[0]])
        mixed = torch.add(n, table[1]), n * table[0], table[1] - x, x == table[1], x[n.numpy()]
        return x * table[0], x.clamp(max=table[1]), torch.full((2,), table[2]), *made, *mixed

    check(f, (torch.arange(3.0), torch.tensor([2, 0, 1])), graphs=1, breaks=0)


def test_what_torch_refuses_of_arrays_it_refuses_compiled() -> None:
    table = np.array([0.5, 2.0])

    def f(x, name):
        try:
            if name == "to":
                return x.to(table)
            return torch.add(x, table) if name == "add" else torch.maximum(x, table[0])
        except TypeError as error:
            return type(error)

    check(f, *[(torch.ones(2), name) for name in ("to", "add", "maximum")], breaks=None)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_functions_of_numpy_give_tensors_for_tensors() -> None:
    def f(x):
        return np.sqrt(x), np.sign(x) + x, np.clip(x, 0, 1), x == np.ones(3)

    check(f, (torch.arange(3.0),), breaks=None)


def test_a_range_up_to_a_float_of_data_ends_the_graph() -> None:
    check(lambda x: torch.arange(x.sum().item()), (torch.arange(3.0),), breaks=1)


def test_scalars_of_arrays_become_numbers() -> None:
    table = np.array([0.5, 2.0, 3.0])

    def f(x):
        mean = x.numpy().mean().item()
        return float(table[0]) * x, int(table[1]), x * mean, {"mean": mean, "top": float(table[2])}

    check(f, (torch.arange(3.0),), graphs=1, breaks=0)


def test_a_slice_bounded_by_a_scalar_of_data_ends_the_graph() -> None:
    starts = np.array([1, 3])

    def f(x):
        mask = np.zeros(6, dtype=bool)
        for i in starts:
            mask[i : i + 2] = True
        return x + torch.from_numpy(mask)

    compiled = weft.compile(f)
    assert torch.equal(compiled(torch.ones(6)), f(torch.ones(6)))


@pytest.mark.parametrize("scalar", [np.True_, np.complex64(1), np.int32(2), np.float32(2.5)])
@pytest.mark.parametrize("operation", [
    lambda x, n: x == n, lambda x, n: n != x, lambda x, n: torch.full((2,), n), lambda x, n: x[n],
    lambda x, n: torch.where(x > 0, x, n), lambda x, n: x.add(n), lambda x, n: torch.arange(n),
    lambda x, n: x.sum(0, keepdim=n)])
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_numpy_bools_and_complex_numbers_were_python_numbers_to_torch(scalar, operation):
    check(operation, (torch.arange(3), scalar), breaks=None)


def test_tensors_of_numpy_bools_have_their_dtype():
    def f(x, done):
        return torch.tensor(done), torch.as_tensor([done, done]), x if done else -x

    check(f, (torch.ones(2), np.True_), (torch.ones(2), np.False_), graphs=2)


def test_divmod_of_numpy_numbers():
    check(lambda x, n: (divmod(n, 2), x + 1), (torch.ones(2), np.int32(5)), graphs=1)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("shared", [
    lambda a: torch.from_numpy(a), lambda a: torch.from_numpy(a[1:]),
    lambda a: torch.from_dlpack(torch.from_numpy(a)),
], ids=["whole", "part", "capsule"])
def test_an_array_and_a_tensor_in_its_memory_are_both_written(
    shared: Callable[[Any], torch.Tensor], backend: str
) -> None:
    """Their storages differ: the graph took their memory for two, and one write was lost."""
    def f(array: Any, tensor: torch.Tensor) -> torch.Tensor:
        array += 1
        tensor.mul_(2)
        return tensor + 1

    weft.reset()
    compiled = weft.compile(f, backend=backend)
    compiled(np.arange(4.0), torch.ones(4, dtype=torch.float64))
    ours, eagers = np.arange(4.0), np.arange(4.0)
    assert torch.equal(compiled(ours, shared(ours)), f(eagers, shared(eagers)))
    assert ours.tolist() == eagers.tolist()
