"""NumPy in captured code: arrays that follow from constants, and what PyTorch does otherwise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.capture.harness import check
from tests.capture.test_numpy import equal
from weft.capture.library.tensors import known_data

# -- arrays that follow from constants ------------------------------------------------------------


def test_arrays_of_constants_are_evaluated() -> None:
    def mel_bank(x):
        points = np.floor(np.linspace(0.0, 9.0, 6)).astype(int)
        bank = np.zeros((4, 10))
        for m in range(1, 5):
            for k in range(points[m - 1], points[m]):
                bank[m - 1, k] = (k - points[m - 1]) / (points[m] - points[m - 1])
        rows = [f"{row.sum():.1f}" for row in bank if row.any()]
        names = np.array(["a", "b"])[bank[1:3, 3].astype(int)]
        return x @ torch.from_numpy(bank).float(), bank, rows, names, 3 in points, points.tolist()

    check(mel_bank, (torch.ones(4),), graphs=1, breaks=0)


def test_arrays_of_constants_are_new_in_each_call() -> None:
    def f(x):
        table = np.arange(6.0).reshape(2, 3)
        row, back = table[1], table[:, ::-1]
        row += 1
        return table, row, back, np.broadcast_to(row, (2, 3)), x + 1

    compiled = check(f, (torch.ones(2),), graphs=1, breaks=0)
    one, other = compiled(torch.ones(2)), compiled(torch.ones(2))
    one[1][:] = 9
    assert (one[0][1] == 9).all() and (one[2][1] == 9).all() and not one[3].flags.writeable
    assert other[0][1, 0] == 4


def test_unknown_numbers_written_to_an_array_of_constants() -> None:
    def f(x):
        out = np.zeros((3, 2))
        last, scale = out[2], np.array([1.0, 10.0])
        for i in range(3):
            out[i] = x[i] * scale
        scale[0] = 5
        return out, last, out.sum() + scale, np.array([x.min(), 1.0, float(x[0])])

    compiled = check(f, (np.arange(3.0),), graphs=1, breaks=0)
    out, last, *_ = compiled(np.arange(3.0))
    last[:] = -1
    assert (out[2] == -1).all()


def test_item_assignments_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    can_run = known_data.can_run
    monkeypatch.setattr(known_data, "can_run", lambda node: (looked.append(node), can_run(node))[1])

    def looks(n: int) -> int:
        def f(x):
            out = np.zeros(n)
            for i in range(n):
                out[i] = x[i] * 2
            return out

        looked.clear()
        weft.compile(f, backend="eager")(np.arange(float(n)))
        return len(looked)

    assert looks(40) < 3 * looks(20)


def test_a_tensor_over_an_array_of_constants_shares_its_memory() -> None:
    def f(x):
        array = np.arange(3.0)
        tensor = torch.from_numpy(array)
        tensor += x
        array[0] = 7
        return tensor * 1, array

    check(f, (torch.ones(3),), graphs=1, breaks=0)


def test_numpy_warns_and_raises_in_each_call() -> None:
    def warns(x):
        return x + 1, np.log(np.zeros(2))

    compiled = weft.compile(warns, backend="eager")
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            compiled(torch.ones(2))

    def raises(x):
        with np.errstate(divide="ignore"):
            quiet = np.log(np.zeros(2))
        return x + 1, quiet, np.zeros(3)[int(x.shape[0]) + 3]

    check(raises, (torch.ones(2),), breaks=0)


# -- what PyTorch does otherwise ------------------------------------------------------------------

ROWS = np.array([[1.5, np.nan, -2.0], [0.0, 4.0, np.inf]])
INTS = np.array([[3, -4, 0], [7, 1, 2]])

LIKE_NUMPY: dict[str, Callable[..., Any]] = {
    "loop_types": lambda x, n: (n / 3, n / n[:, :1], np.arctan2(n, 2), np.hypot(n, n), np.cbrt(n),
                                n.astype(np.int8) // 2, np.float32(1) / n[n != 0].astype(np.int16)),
    "small_integers": lambda x, n: (n.astype(np.int8).cumprod(),
                                    np.cumprod((n * 16).astype(np.int8), axis=1)),
    "zero_divisors": lambda x, n: (5 // n, 5 % n, np.fmod(7, n), n // n, x // n),
    "nan": lambda x, n: (np.sign(x), np.median(x, axis=0), np.nanmean(x, axis=1), np.nansum(x),
                         np.nanmax(x, axis=0), np.nanstd(x[:, ::2], axis=0), np.percentile(x, 30)),
    "order": lambda x, n: (x.T.copy("K"), np.concatenate([x.T, x.T]), x.T.cumsum(0), n.T.argsort(1),
                           np.stack([n.T, n.T])),
    "ufunc_methods": lambda x, n: (np.add.reduce(n), np.maximum.reduce([n, n + 1]),
                                   np.add.accumulate(n), np.subtract.outer(n[0], n[1]),
                                   np.add.reduce(x, axis=1, where=~np.isnan(x))),
    "out_and_where": lambda x, n: (np.divide(1, n, where=n != 0, out=np.zeros(n.shape)),
                                   np.clip(n, 0, 2, out=n.copy()), np.sum(n, initial=10),
                                   np.max(x, where=~np.isnan(x), initial=-1)),
    "python_forms": lambda x, n: (np.pad(n, 1), np.pad(n, (1, 2), mode="edge"), np.cov(n),
                                  np.isin(n, [1, 2]), np.interp(n, [0.0, 1, 2], [3.0, 5, 4]),
                                  np.trapezoid(n), np.digitize(n, [0, 2]), np.unwrap(n * 1.0)),
    "numbers": lambda x, n: (n.sum().item() + 1, n[0].tolist(), f"{n.mean()} {n.sum():d}", n.nbytes,
                             n.strides, n.flags.c_contiguous, np.result_type(n, 1.5)),
}


OF_SMALL_TYPES: dict[str, Callable[..., Any]] = {
    **{name: lambda a, name=name: getattr(np, name)(a) for name in (
        "sum", "prod", "cumsum", "cumprod", "nansum", "nanprod", "nancumsum", "mean", "var", "std",
        "square", "trunc", "negative", "abs", "ptp", "diff", "max", "average", "median", "sqrt",
        "any", "count_nonzero", "argmax", "sort", "add.reduce", "sign", "floor", "trace",
        ) if hasattr(np, name)},
    "methods": lambda a: (a.sum(), a.prod(0), a.cumsum(), a.cumprod(axis=0), a.mean(1), a.std(),
                          a.trace(), a.dot(a.T)),
    "axes": lambda a: (np.sum(a, axis=0), np.sum(a, 1), np.cumsum(a, 1), np.mean(a, 0)),
    "ufunc methods": lambda a: (np.add.reduce(a), np.multiply.reduce(a[0]), np.add.accumulate(a),
                                np.multiply.accumulate(a), np.add.outer(a[0], a[0])),
    "products": lambda a: (np.dot(a, a.T), a @ a.T, np.vdot(a, a), np.inner(a, a),
                           np.einsum("ij,ij->", a, a), np.tensordot(a, a, 2), np.outer(a[0], a[0]),
                           np.einsum("ij->j", a)),
    "dtype": lambda a: (np.sum(a, dtype=np.int16), np.cumsum(a, dtype=np.int8),
                        np.prod(a, dtype=np.float32), np.mean(a, dtype=np.float32)),
    "out": lambda a: (np.sum(a, out=np.zeros((), np.int16)), np.add(a, a, out=np.zeros(a.shape))),
    "operators": lambda a: (a + a, a * a, a + a[0, 0], a * 3, a - a.T[0, 0], a / 3, a // 2, a % 7),
}


def limits(dtype: Any) -> Any:
    """Numbers whose sums and products need more bits, and a column of them that f16 cannot add."""
    if dtype == np.bool_:
        return np.arange(48).reshape(16, 3) % 5 > 1
    some = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo(dtype)
    numbers = [3, some.max, some.max, some.min, some.max, some.min, some.min]
    return np.resize(np.array(numbers, dtype), (16, 3))


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "float16"])
def test_types_are_decided_before_numbers_are_computed(dtype: str) -> None:
    """A scan of int8 wrapped at 8 bits, and became int64 then."""
    array = limits(np.dtype(dtype).type)
    for name, function in OF_SMALL_TYPES.items():
        try:
            wanted = function(array.copy())
        except TypeError:
            continue
        weft.reset()
        with np.errstate(all="ignore"):
            actual = weft.compile(function, backend="eager")(array.copy())
        both = zip(wanted, actual, strict=True) if isinstance(wanted, tuple) else [(wanted, actual)]
        for one, other in both:
            assert type(one) is type(other) and one.dtype == other.dtype, (name, one, other)
            loose = {"rtol": 2e-3 if dtype == "float16" else 1e-5}
            near = np.allclose(one, other, equal_nan=True, **loose)
            assert near if one.dtype.kind == "f" else equal(one, other), (name, one, other)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", LIKE_NUMPY)
def test_results_are_numpys(name: str) -> None:
    function = LIKE_NUMPY[name]
    weft.reset()
    actual = weft.compile(function, backend="eager")(ROWS.copy(), INTS.copy())
    for one, other in zip(function(ROWS.copy(), INTS.copy()), actual, strict=True):
        assert equal(one, other) and type(one) is type(other), (one, other)
        if isinstance(one, np.ndarray):
            assert one.strides == other.strides and one.flags.writeable == other.flags.writeable
    assert weft.stats()["graph_breaks"] == 0


def test_memory_is_shared_as_numpy_shares_it() -> None:
    def copies(a):
        parts = a.flatten(), a.astype(a.dtype), +a, np.round(a), np.abs(a), a[1]
        for part in parts[:-1]:
            part += 1
        a[0], a[2] = a[2], a[0]
        a[1:] = a[:-1]
        return parts

    def read_only(a):
        try:
            np.broadcast_to(a, (2, 4))[0] = 1
        except ValueError as error:
            return str(error), np.diagonal(a.reshape(2, 2))

    for f in (copies, read_only):
        check(f, (np.arange(4),), breaks=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_errors_that_depend_on_data_are_numpys() -> None:
    check(lambda a: a ** a, (np.array([2, -1]),), (np.array([2, 1]),), breaks=None)


def test_errstate_goes_on_after_a_break() -> None:
    def f(a):
        with np.errstate(divide="ignore"):
            b = a + 1
            print("between")
            return b, np.log(a), np.geterr()["divide"]

    compiled = weft.compile(f, backend="eager")
    for _ in range(2):
        assert compiled(np.zeros(2))[2] == "ignore" and np.geterr()["divide"] == "warn"


def test_seeding_numpy_happens_in_each_call() -> None:
    def f(x):
        np.random.seed(3)
        return x + 1, np.random.rand(2)

    compiled = weft.compile(f, backend="eager")
    for _ in range(2):
        np.random.seed(0)
        assert np.array_equal(compiled(torch.ones(2))[1], f(torch.ones(2))[1])


def test_symbolic_numbers_and_arrays() -> None:
    def f(x, at):
        table = np.arange(12.0).reshape(4, 3)
        rows = table[at], table[at, 1], np.sqrt(table[at, 0]) * x.shape[0], np.clip(at, 0, 2)
        table[at] = x.numpy() * x.shape[0]
        return rows, table, np.array([x.mean().item(), 1.0]) * x.shape[0]

    calls = [(torch.arange(3.0), at) for at in (1, 2, 3)]
    check(f, *calls, graphs=2, breaks=0)


def test_the_order_of_equal_items_is_numpys() -> None:
    rows = np.tile(np.array([3.0, 1.0, 2.0, 1.0]), 20)

    def f(x, a):
        return np.argsort(a), np.argsort(a, kind="stable"), np.partition(a, 7), a.argsort()[::-1]

    for backend in ("eager", "inductor"):
        weft.reset()
        compiled = weft.compile(f, backend=backend)(torch.ones(1), rows)
        for one, other in zip(f(None, rows), compiled, strict=True):
            assert np.array_equal(one, other)


def test_copies_and_structured_arrays() -> None:
    def f(x, a):
        table = np.zeros(2, dtype=[("a", "f8"), ("b", "i4")])
        table["a"] = a[:2]
        deep = copy.deepcopy({"a": a, "b": [a]})
        deep["a"][0] = 9
        return table["a"], copy.copy(a) + x.shape[0], deep, np.delete(a, 1), np.block([a, a])

    check(f, (torch.ones(2), np.arange(3.0)), breaks=None)


def test_indices_of_data_and_other_conversions() -> None:
    def f(a, t):
        top = a.ravel()[a.argmax()], a[np.argmax(a[:, 0])], np.argwhere(a > 0), np.diag(a)
        plain = a.astype(a.dtype, copy=False) * 2, "%.2f" % a.mean(), round(a.mean(), 2)
        row = np.sort(a[0])
        found = np.searchsorted(row, a), np.select([a > 1, a < 0], [a, -a], default=7)
        return top, plain, found, torch.asarray(a) + t, torch.Tensor(a), torch.FloatTensor(a) * 2

    check(f, (np.arange(12.0).reshape(3, 4) - 5, torch.ones(4)), graphs=1, breaks=0)


def test_an_array_of_one_element_is_no_number() -> None:
    def f(a):
        try:
            return float(a)
        except TypeError as error:
            return str(error)

    check(f, (np.ones((1, 1)),), (np.array(2.5),), breaks=None)


def test_arrays_of_constants_under_a_transform() -> None:
    """Their tensor was one of the transform's level."""
    def gradient(x):
        w = np.linspace(0, 1, 3).astype(np.float32)
        return torch.func.grad(lambda row: (row * torch.as_tensor(w)).pow(2).sum())(x)

    check(gradient, (torch.ones(4, 3),), graphs=1, breaks=0)


def test_sizes_beside_arrays_stay_symbolic() -> None:
    """NumPy's float64 equals None, so its types were not found, and each size had a graph."""
    def f(x):
        n = x.shape[0]
        return x * 2 + n, np.arange(3) * n, n * np.ones(2), np.ones(2, np.float32) / n

    compiled, before = weft.compile(f), weft.stats()["graphs"]
    for n in (4, 7, 12, 9):
        equal(compiled(np.ones((n, 3))), f(np.ones((n, 3))))
    assert weft.stats()["graphs"] == before + 2


def test_arrays_converted_as_the_array_api_does() -> None:
    """The graph broke at an order in memory, at a mode of copying and at an array's device."""
    def f(x):
        array = x.numpy()
        made = (
            np.asarray(array, order="F", dtype=np.float64), np.asarray(array, order=None),
            np.asarray(array.T, order="C"), np.array(array, copy=np._CopyMode.IF_NEEDED),
            np.array(array, copy=np._CopyMode.ALWAYS, dtype=None), np.asarray(array[::2]),
        )
        return x * 2, [one + 1 for one in made], made[4], made[0], array.device

    check(f, (torch.randn(4, 3),), graphs=1, breaks=0)


def test_floats_that_change_stay_symbolic_in_numpys_functions() -> None:
    """Averages of losses: NumPy was asked for their values, so that each call compiled anew."""
    def f(x, losses):
        first = losses[0]
        found = (np.mean(losses), float(np.std(losses)), int(np.argmax(losses)), np.array(losses),
                 np.array(first), np.log(first), np.clip(first, 0.2, 0.8), np.float32(first),
                 np.array([[first, 0], [1, first]]), bool(np.isfinite(losses).all()),
                 np.full((2,), first))
        return x * np.sqrt(first), found

    weft.reset()
    compiled = weft.compile(f, backend="eager")
    for k in range(5):
        losses = [k + 0.25, 0.5, 3.0 / (k + 2)]
        found, expected = compiled(torch.ones(2), losses), f(torch.ones(2), losses)
        torch.testing.assert_close(found[0], expected[0])
        for one, other in zip(found[1], expected[1], strict=True):
            assert type(one) is type(other) and np.allclose(one, other, rtol=1e-12)
    assert weft.stats()["graphs"] == 2


@pytest.mark.parametrize("scalar", [np.bool_(True), np.complex64(1j), np.float32(2), np.int64(3)])
@pytest.mark.parametrize("f", [
    lambda x, v: x == v, lambda x, v: torch.full((2,), v), lambda x, v: torch.mul(x, v)])
@pytest.mark.filterwarnings("ignore:Casting complex values")
def test_numpy_scalars_of_truth_and_complex_numbers_were_taken_for_python_s(f, scalar) -> None:
    x = torch.ones(2)
    expected, got = f(x, scalar), weft.compile(f, backend="eager")(x, scalar)
    assert torch.equal(expected, got) and expected.dtype == got.dtype
