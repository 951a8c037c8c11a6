"""What programs compute of sizes stays symbolic: one graph serves all sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import weft
from weft.codegen.values import estimate
from weft.errors import InternalError
from weft.runtime.generated_code import load
from weft.shapes.algebra.expr import applied, symbol
from weft.shapes.algebra.floats import apply
from weft.shapes.algebra.functions import BIT_AND, GCD, ISQRT
from weft.shapes.algebra.rounding import HOW, exponent, mantissa, rounded

pytestmark = pytest.mark.usefixtures("fresh")

Program = Callable[[torch.Tensor], Any]

ONE: dict[str, Program] = {
    "int of a fraction": lambda x: x.topk(int(x.shape[1] * 0.3)).values * 2,
    "round": lambda x: torch.zeros(x.shape[0], round(x.shape[1] / 3)) + round(x.shape[1] * 0.4),
    "ceil of a root": lambda x: x + math.ceil(math.sqrt(x.shape[1])),
    "common divisor": lambda x: x + math.gcd(*x.shape) + math.lcm(x.shape[0], 4),
    "integer root": lambda x: x + math.isqrt(x.shape[0] * x.shape[1]),
    "logarithms": lambda x: x + math.log(x.shape[1], 2) + math.log1p(x.shape[0]),
    "power": lambda x: x * math.pow(x.shape[1], -0.5) + math.hypot(x.shape[0], x.shape[1]),
    "bits": lambda x: x + (x.shape[1] & 3) + (x.shape[0] | 1) + (x.shape[0] ^ 1) + ~x.shape[1],
    "length in bits": lambda x: x + (x.shape[1] - 1).bit_length(),
    "power of two below": lambda x: x[:, : (1 << (x.shape[1].bit_length() - 1)) - 1] * 2,
    "sorted": lambda x: x + sorted([x.shape[0], 30, x.shape[1]], reverse=True)[1],
    "extremes": lambda x: x * min(x.shape[1], 14) + max(x.shape[0], 5) + min(x.shape),
    "parts of a number": lambda x: x + x.shape[0].numerator + x.shape[1].real,
    "power of two": lambda x: x * 2 ** x.shape[0] + 3 ** (x.shape[1] // 8) - 2 ** -x.shape[0],
    "numpy arrays": lambda x: x + torch.from_numpy(np.arange(x.shape[1])) + torch.from_numpy(
        np.zeros((x.shape[0], 1), dtype=np.float32)) + torch.tensor(np.ones(x.shape[1])),
    "random numbers": lambda x: torch.randn((x.shape[0], 1), generator=None) * 0 + x,
    "covariances": lambda x: (torch.cov(x), torch.cov(x[0], correction=0), torch.corrcoef(x)),
    "arguments by name": lambda x: (
        torch.corrcoef(input=x), torch.kron(x, other=x[:2]), torch.linalg.matrix_norm(input=x),
        F.one_hot(input=torch.arange(x.shape[0]), num_classes=x.shape[0])),
    "numpy product": lambda x: x.reshape(int(np.prod(x.shape))) * 2,
    "numpy root": lambda x: x / np.sqrt(x.shape[1]) + int(np.ceil(x.shape[1] / 2)),
    "numpy scalar": lambda x: x + x.shape[1] % np.int64(4) + np.int64(100) // x.shape[1],
    "numpy extremes": lambda x: x + np.maximum(x.shape[0], 5) + np.int64(x.shape[0]) * 2,
    "scale of an interpolation": lambda x: F.interpolate(x[:, None], scale_factor=0.7) + 1,
    "factors of a resized table": lambda x: F.interpolate(
        x[None, None, :3, :3], scale_factor=(x.shape[0] / 3, (x.shape[1] + 0.1) / 3),
        mode="bicubic"),
    "chunk of the whole": lambda x: [x[:, i:] * 2 for i in range(0, x.shape[1], x.shape[1])],
    "floats counted down from a size": lambda x: x + torch.arange(x.shape[1], 0, -1.0),
    "diagonals that are sizes": lambda x: x.triu(x.shape[1] // 2) + x.tril(x.shape[0]),
    "slopes that are sizes": lambda x: F.softplus(x, x.shape[0]) + F.elu(x, x.shape[1]),
    "pooling of sequences": lambda x: F.max_pool1d(x, (3,), 2, 1) + F.max_pool1d(x * 2, 3, 2, 1),
    "window of a range": lambda x: [x[:, i] * i for i in range(x.shape[1] - 3, x.shape[1])],
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", ONE)
def test_one_graph_serves_all_sizes(name: str, backend: str) -> None:
    program = ONE[name]
    compiled = weft.compile(program, backend=backend, dynamic=True)
    for rows, columns in ((4, 16), (6, 22), (3, 13)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(compiled(x), program(x))
    assert weft.stats()["graphs"] == 1 and weft.stats()["graph_breaks"] == 0


TRAINED: dict[str, Program] = {
    "masked select": lambda x: torch.masked_select(x, x > 0).exp().sum(),
    "places along a dimension": lambda x: x.take_along_dim(x.argmax(1, keepdim=True), 1),
    "running products": lambda x: x.round().cumprod(1) + torch.cumprod(x, 0),
    "weights of two ends": lambda x: x.lerp(x * 2, 1 / x.shape[0]),
    "powers": lambda x: (x**2) ** x.shape[0] + (1 / x.shape[0]) ** x + (x**2 + 1) ** (0.5 / len(x)),
    "two results": lambda x: (F.elu(x, x.shape[0] ** -0.5), F.hardtanh(x, -1 / x.shape[0], 1.0)),
    "scale of attention": lambda x: F.scaled_dot_product_attention(
        x[None], x[None], x[None], scale=1 / x.shape[0]),
    "norms of matrices": lambda x: torch.stack(
        [torch.linalg.matrix_norm(x, n, keepdim=True) for n in ("fro", 1, -1, math.inf)]),
    "diagonal blocks": lambda x: torch.block_diag(x, x[:2]),
    "shrunk values": lambda x: F.hardshrink(x, 0.3) + F.softshrink(x),
    "margins": lambda x: F.multi_margin_loss(x, torch.arange(len(x))),
    "largest of windows": lambda x: (
        F.max_pool1d(x, 3, 2, 1), F.max_pool2d(x[None], 2, (1, 2)),
        F.max_pool3d(x[None, None], 1, 2)),
    "averages of windows": lambda x: (
        F.avg_pool1d(x, 3, 2, 1), F.avg_pool2d(x[None], 3, 2, 1, count_include_pad=False),
        F.avg_pool3d(x[None, None], 1, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_one_graph_serves_all_sizes_with_gradients(name: str) -> None:
    """Derivatives that C++ writes for plain sizes or numbers fixed them."""
    program = TRAINED[name]
    compiled = weft.compile(program, backend="aot_eager", dynamic=True)
    for rows, columns in ((4, 16), (6, 22), (3, 13)):
        x = torch.randn(rows, columns, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        made, wanted = compiled(y), program(x)
        torch.testing.assert_close(made, wanted)
        for result in (made, wanted):
            results = result if isinstance(result, tuple) else (result,)
            sum((one * one).sum() for one in results).backward()
        torch.testing.assert_close(y.grad, x.grad, rtol=1e-4, atol=1e-4)
    stats = weft.stats()
    assert stats["graphs"] == 1 and not stats["graph_breaks"] and not stats["uncompiled_graphs"]


@pytest.mark.parametrize("root", [math.sqrt, lambda n: n**0.5, math.isqrt])
def test_side_of_a_square_is_computed_at_each_size(root: Callable[[int], float]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        side = int(root(x.shape[1]))
        return (x.view(x.shape[0], side, side, -1).permute(0, 3, 1, 2) * 2).contiguous()

    compiled = weft.compile(program, backend="inductor", dynamic=True)
    for side in (4, 5, 6, 7):
        x = torch.randn(2 + side, side * side, 8)
        torch.testing.assert_close(compiled(x), program(x))
    assert weft.stats()["graphs"] == 1
    with pytest.raises(RuntimeError):
        compiled(torch.randn(4, 17, 8))


SPECIALISED: dict[str, Program] = {
    "list times size": lambda x: x + len([1] * x.shape[0]) + len(x.shape[0] * (2,)),
    "text times size": lambda x: x + len("ab" * x.shape[0]),
    "narrower numpy types": lambda x: x * (np.float32(2) * x.shape[0]) + np.int8(9) % x.shape[0],
    "numpy scalar equals size": lambda x: x * 2 if np.int64(4) == x.shape[0] else x * 3,
    "numpy bool": lambda x: x + np.bool_(True) * x.shape[0],
}


@pytest.mark.parametrize("name", SPECIALISED)
def test_operation_without_a_rule_fixes_the_size_instead_of_breaking(name: str) -> None:
    program = SPECIALISED[name]
    compiled = weft.compile(program, backend="eager", dynamic=True)
    for rows in (4, 6, 3):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(compiled(x), program(x))
    assert weft.stats()["graph_breaks"] == 0


def test_numpy_numbers_made_of_sizes_keep_their_type() -> None:
    def program(x: torch.Tensor) -> tuple[Any, ...]:
        n = x.shape[1]
        root, half = np.sqrt(n), n / np.float64(2)
        return np.prod(x.shape), root, np.int64(2) * n, np.ceil(n / 3), half, root > 2

    compiled = weft.compile(program, backend="eager", dynamic=True)
    for columns in (16, 5):
        x = torch.randn(3, columns)
        given, wanted = compiled(x), program(x)
        assert given == wanted and list(map(type, given)) == list(map(type, wanted))


def test_rounded_floats_lie_in_their_bounds() -> None:
    n, m = symbol("n", 2, 40), symbol("m", 1, 9)
    for how in HOW:
        for value in (apply("mul", n, 0.37), apply("truediv", n, apply("mul", m, 1.1)),
                      apply("sub", apply("sqrt", n), apply("float", m)), apply("pow", n, -0.5)):
            made = rounded(how, value)
            assert made is not None and not isinstance(made, int)
            for i in range(2, 41):
                for j in range(1, 10):
                    assert made.lo <= _value(how, value, {n: i, m: j}) <= made.hi


def test_a_size_is_estimated_where_its_function_has_no_value() -> None:
    n = symbol("n", 0, 1)
    side = rounded("int", apply("sqrt", apply("sub", 1.0, n)))
    assert side is not None and estimate(side * n) == 64 * 64


def test_powers_and_shifts_by_numbers_that_change_stay_symbolic() -> None:
    def quantized(x: torch.Tensor, bits: int) -> torch.Tensor:
        return (x * (2**bits - 1)).round() / (1 << bits)

    compiled = weft.compile(quantized, backend="eager")
    for bits in (4, 8, 6, 2, 31, 62):
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x, bits), quantized(x, bits))
    assert weft.stats()["graphs"] == 2
    x = torch.randn(5)
    with pytest.raises(ValueError, match="negative shift count"):
        compiled(x, -1)


def kept(x: torch.Tensor, rate: float) -> tuple[torch.Tensor, int]:
    return x[:, : int(x.shape[1] * rate)].exp(), round(rate * 10)


def zoomed(x: torch.Tensor, rate: float) -> torch.Tensor:
    return F.interpolate(x[None], scale_factor=rate, recompute_scale_factor=True)


@pytest.mark.parametrize("program", [kept, zoomed])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_ints_of_floats_that_change_need_no_variant(
    program: Callable[..., Any], backend: str
) -> None:
    compiled = weft.compile(program, backend=backend)
    calls = [(8, 0.3), (9, 0.4), (20, 0.55), (16, 0.9), (24, 0.25)]
    for columns, rate in [*calls, (12, -0.5), (9, 5e-324), (7, 0.0), (6, 1e300), (5, math.nan)]:
        x = torch.randn(2, columns)
        expected = _result_or_error(program, x, rate)
        torch.testing.assert_close(_result_or_error(compiled, x, rate), expected)
        if (columns, rate) in calls:
            assert weft.stats()["graphs"] <= 2


def test_gradients_of_images_resized_by_a_factor_that_changes_need_no_variant() -> None:
    """The rule asked for sizes that are positive whatever the factor."""
    compiled = weft.compile(lambda x, rate: F.interpolate(x, scale_factor=rate, mode="bilinear"),
                            backend="aot_eager")
    for columns, rate in ((8, 1.5), (9, 1.25), (10, 0.75)):
        x = torch.randn(1, 2, 5, columns, requires_grad=True)
        expected = F.interpolate(x, scale_factor=rate, mode="bilinear")
        given = compiled(x, rate)
        torch.testing.assert_close(given, expected)
        gradients = [torch.autograd.grad(y.exp().sum(), x) for y in (given, expected)]
        torch.testing.assert_close(*gradients)
    assert weft.stats()["graphs"] == 2


def _result_or_error(program: Callable[..., Any], x: torch.Tensor, rate: float) -> Any:
    try:
        return program(x, rate)
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        return len(type(error).__name__)


@pytest.mark.parametrize("value", [0.3, -1e300, 5e-324, 3e-310, 2.0**-1022, 1.7976931348623157e308])
def test_a_float_is_its_mantissa_and_exponent(value: float) -> None:
    assert mantissa(value) * 2.0 ** exponent(value) == value
    assert abs(mantissa(value)) < 2**53


def _value(how: str, value: Any, env: Any) -> int:
    from weft.shapes.algebra.floats import evaluate

    return HOW[how](evaluate(value, env))


def test_functions_are_computed_on_constants_and_bounded_on_symbols() -> None:
    n = symbol("n", 2, 64)
    assert applied(GCD, 12, 18) == 6 and applied(ISQRT, 17) == 4
    assert applied(BIT_AND, n, 7).bounds == (0, 127) and applied(GCD, n, 12).bounds == (1, 12)  # type: ignore[union-attr]
    assert applied(GCD, n, 12) is applied(GCD, n, 12)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_float_of_a_size_that_was_fixed_later_is_spelled_with_the_fixed_size(backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x * x.shape[1] ** 0.5
        return torch.cat([x[:, i : i + 1] * i for i in range(x.shape[1])], 1)

    compiled = weft.compile(program, backend=backend, dynamic=True)
    for columns in (3, 5):
        x = torch.randn(2, columns)
        torch.testing.assert_close(compiled(x), program(x))


def test_name_that_nothing_defines_is_an_error_when_code_is_written() -> None:
    with pytest.raises(InternalError, match="nothing defines u0"):
        load("def call(args):\n    return args[0] + u0", "<test>", {})


@pytest.mark.parametrize("function", [
    math.log, math.log2, math.log10, math.log1p, math.sqrt, math.acos, math.asin,
])
def test_numbers_out_of_a_functions_domain_raise_where_the_program_catches(
    function: Callable[[float], float],
) -> None:
    """Once the number was an input of the graph, the error passed the program's `except`."""
    def program(x: torch.Tensor, n: float) -> tuple[torch.Tensor, object]:
        try:
            return x * function(n), None
        except ValueError as error:
            return x + 1, str(error)

    compiled = weft.compile(program, backend="eager")
    for n in (0.5, 0.25, 0.75, -2.0, 0.125):
        (value, said), (wanted, expected) = (f(torch.ones(3), n) for f in (compiled, program))
        torch.testing.assert_close(value, wanted)
        assert said == expected


def _outcome(function: Callable[..., object], *args: object) -> object:
    try:
        return function(*args)
    except (ArithmeticError, ValueError) as error:
        return type(error).__name__, str(error)


def _partial_functions(x: torch.Tensor, a: float, b: float) -> tuple[object, ...]:
    of_one = (math.exp, math.cosh, math.expm1, math.sin, math.atanh, math.exp2)
    of_two = (operator.pow, operator.mod, operator.floordiv, divmod, math.fmod, math.pow,
              math.remainder)
    return (x + 1, *[_outcome(function, a) for function in of_one],
            *[_outcome(function, a, b) for function in of_two], x.shape[0] // 0.1)


def test_operations_without_a_value_for_later_numbers_raise_where_the_program_catches() -> None:
    """Overflows, remainders of zero and negative bases raised past the program's own `except`."""
    compiled = weft.compile(_partial_functions, backend="eager")
    numbers = [(0.5, 2.0), (1.5, 3.5), (800.0, 2.0), (-1.5, 0.5), (0.0, -1.0), (-2.0, math.inf),
               (math.inf, 1.0), (0.0, 0.0)]
    for pair in numbers:
        expected, actual = (f(torch.ones(3), *pair)[1:] for f in (_partial_functions, compiled))
        assert repr(expected) == repr(actual), pair


@pytest.mark.parametrize("function", [int, round, math.floor])
def test_a_float_that_has_no_whole_number_once_has_one_later(function: Callable[..., int]) -> None:
    def program(x: torch.Tensor, a: float) -> tuple[torch.Tensor, object]:
        return x + 1, _outcome(function, a)

    compiled = weft.compile(program, backend="eager")
    for a in (0.5, 1.5, math.inf, 2.5, math.nan, 3.5):
        assert compiled(torch.ones(3), a)[1] == program(torch.ones(3), a)[1], a


def test_texts_with_sizes_fix_none_until_they_are_looked_at() -> None:
    """Messages that nobody reads made a variant for each size."""

    def named(x: torch.Tensor, step: int) -> Any:
        n = x.shape[0]
        torch._assert(x.shape[1] == 4, f"got {x.shape}")
        numbers = f"{n:5d}|{n!r}|{n!s:>4}|{n / 3:.2f}"
        return x * 2, numbers, "a" + str(n * 2), f"{tuple(x.shape)} {step}"

    compiled = weft.compile(named, backend="eager", dynamic=True)
    for n in (6, 7, 13, 31):
        x = torch.randn(n, 4)
        assert compiled(x, n + 3)[1:] == named(x, n + 3)[1:]
    assert weft.stats()["graphs"] <= 2


def test_texts_with_sizes_that_are_looked_at_are_constants() -> None:
    def looked_up(x: torch.Tensor) -> Any:
        name = f"k{x.shape[0]}"
        count = {"k6": 1}.get(name, 2)
        try:
            wrong = f"{x.shape[0]:.2}"
        except ValueError as error:
            wrong = str(error)
        return x * count, name == "k6", name in ("k7",), len(name), name.upper(), wrong

    compiled = weft.compile(looked_up, backend="eager", dynamic=True)
    for n in (6, 7, 13, 6):
        x = torch.randn(n, 4)
        assert compiled(x)[1:] == looked_up(x)[1:]
        assert torch.equal(compiled(x)[0], looked_up(x)[0])


def test_divisors_of_numbers_of_either_sign_are_one_graph():
    """`gcd` took a variant each of Python ints that change: only of sizes is the sign known."""
    def f(x, old, new):
        by = math.gcd(old, new)
        return torch.arange(x.shape[0]) * (old // by) + math.lcm(old, new) + math.isqrt(abs(old))

    compiled = weft.compile(f, dynamic=True, backend="aot_eager")
    for size, old, new in ((9, 16, 8), (5, 44, 16), (7, -6, 4), (3, 11, 7), (4, 8, -4), (6, 0, 2)):
        x = torch.ones(size)
        assert torch.equal(compiled(x, old, new), f(x, old, new))
    assert weft.stats()["graphs"] == 1
