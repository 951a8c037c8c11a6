"""C callables that make, view and multiply tensors: the same as torch's own, errors included."""

from __future__ import annotations

import gc
import resource
import weakref

import numpy as np
import pytest
import torch

from weft.runtime import tensor_calls
from weft.runtime.tensor_calls import empty, product, view

CPU = torch.device("cpu")
F32 = torch.float32


def test_torch_has_what_they_need() -> None:
    assert tensor_calls.configured()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_empty_makes_the_promised_form(dtype: torch.dtype) -> None:
    made = empty(((2, 3, 4), (12, 1, 3), 0), dtype, CPU)()
    assert (made.shape, made.stride(), made.dtype) == ((2, 3, 4), (12, 1, 3), dtype)
    assert made.untyped_storage().nbytes() == 24 * made.element_size()


def test_sizes_may_be_given_at_the_call() -> None:
    make = empty(((None, 3, None), (None, 1, 3), 0), F32, CPU)
    assert make(5, 2, 6).shape == (5, 3, 2)
    see = view(((None, 2), (2, 1), None))
    x = torch.arange(12.0)
    assert torch.equal(see(x, 3, 4), x[4:10].view(3, 2))
    with pytest.raises(TypeError):
        make(5)


def test_offsets_count_from_the_first_element_of_what_is_viewed() -> None:
    base = torch.arange(40.0)
    x = base[10:]
    see = view(((2, 3), (1, 4), 5))
    wanted = torch.as_strided(x, (2, 3), (1, 4), 15)
    assert torch.equal(see(x), wanted)
    assert torch.equal(see.fallback(x), wanted)  # type: ignore[attr-defined]
    see(x)[0, 0] = -1.0
    assert base[15] == -1.0


def test_products_see_their_operands_in_a_form() -> None:
    a, b, bias = torch.randn(2, 6), torch.randn(5, 4), torch.randn(5)
    left, right = ((3, 4), (4, 1), 0), ((4, 5), (1, 4), 0)
    matrix = a.view(3, 4) @ b.t()
    torch.testing.assert_close(product("mm", (left, right), ((3, 5), (5, 1), 0), F32, CPU)(a, b),
                               matrix)
    add = product("addmm", (None, left, right), ((3, 5), (5, 1), 0), F32, CPU)
    torch.testing.assert_close(add(bias, a, b), matrix + bias)
    x, y = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    batch = product("bmm", (None, None), ((2, 3, 5), (15, 5, 1), 0), F32, CPU)
    torch.testing.assert_close(batch(x, y), x @ y)


def test_parameters_are_no_obstacle() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))
    multiply = product("mm", (None, ((4, 4), (1, 4), 0)), ((4, 4), (4, 1), 0), F32, CPU)
    with torch.no_grad():
        result = multiply(weight, weight)
    assert not result.requires_grad
    torch.testing.assert_close(result, weight.detach() @ weight.detach().t())


def test_errors_are_torchs() -> None:
    multiply = product("mm", (None, None), ((3, 5), (5, 1), 0), F32, CPU)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        multiply(torch.randn(3, 4), torch.randn(3, 5))
    with pytest.raises(RuntimeError):
        empty(((1 << 60,), (1,), 0), F32, CPU)()


def test_operands_are_released() -> None:
    see = view(((8, 8), (8, 1), 0))
    multiply = product("mm", (((8, 8), (1, 8), 0), None), ((8, 8), (8, 1), 0), F32, CPU)
    array = np.ones(64, np.float32)
    released = weakref.ref(array)
    x = torch.from_numpy(array)
    multiply(see(x), see(x))
    del array, x
    gc.collect()
    assert released() is None


def test_results_are_released() -> None:
    make = empty(((1 << 20,), (1,), 0), F32, CPU)
    multiply = product("mm", (((1024, 1), (1, 1), 0), ((1, 1024), (1, 1), 0)),
                       ((1024, 1024), (1024, 1), 0), F32, CPU)
    x = torch.ones(1024)
    multiply(x, x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        make().fill_(1.0)
        multiply(x, x)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def test_products_of_sizes_that_are_given_at_the_call() -> None:
    left = ((None, 7), (1, None), 0)  # a transposed matrix
    x, y = torch.randn(7, 5), torch.randn(7, 3)
    in_c = product("mm", (left, None), ((None, 3), None, 0), F32, CPU)
    for call in (in_c, in_c.fallback):
        torch.testing.assert_close(call(x, y, 5, 5, 5), x.t() @ y)
    batched = product("bmm", (((2, None, 7), None, 0), None), ((2, None, 4), None, 0), F32, CPU)
    x, y = torch.randn(2, 5, 7), torch.randn(2, 7, 4)
    for call in (batched, batched.fallback):
        torch.testing.assert_close(call(x, y, 5, 5), x @ y)
    with pytest.raises(TypeError, match="4 arguments wanted, got 3"):
        batched(x, y, 5)


def test_without_torchs_c_functions_python_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_calls, "configured", lambda: False)
    layout = ((2, 7), (7, 1), 0)
    make = empty.__wrapped__(layout, F32, CPU)
    assert make().shape == (2, 7)
    multiply = product.__wrapped__("mm", (None, None), ((2, 2), (2, 1), 0), F32, CPU)
    x = torch.randn(2, 7)
    torch.testing.assert_close(multiply(x, x.t()), x @ x.t())
