"""`weft.Dim`, `dynamic_shapes=` and marks: what they make symbolic, and what they refuse."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft import Dim
from weft.errors import BadValue, DimensionError, FixedDimensionError

Tensor = torch.Tensor


pytestmark = pytest.mark.usefixtures("fresh")


def graphs(program: Callable[..., Any], calls: list[tuple[Any, ...]], **settings: Any) -> int:
    """Compilations that serve all calls, each compared with eager."""
    compiled = weft.compile(program, backend="eager", **settings)
    before = weft.stats()["graphs"]
    for args in calls:
        torch.testing.assert_close(compiled(*args), program(*args))
    return weft.stats()["graphs"] - before


def x_of(*shapes: tuple[int, ...]) -> list[tuple[Tensor]]:
    return [(torch.randn(shape),) for shape in shapes]


BATCH = Dim("batch", min=1, max=64)
TWO_SIZES = x_of((4, 3), (7, 3), (9, 3))

FORMS: dict[str, Any] = {
    "dict of dict": {"x": {0: BATCH}},
    "dict of tuple": {"x": (BATCH, None)},
    "dict of list": {"x": [BATCH, 3]},
    "tuple of dict": ({0: BATCH},),
    "negative dimension": {"x": {-2: BATCH}},
    "dynamic": {"x": {0: Dim.DYNAMIC}},
    "auto": {"x": {0: Dim.AUTO}},
    "hint for all": {"x": Dim.AUTO},
    "hint with limits": {"x": {0: Dim.DYNAMIC(min=2, max=16)}},
    "torch.export's Dim": {"x": {0: torch.export.Dim("batch", min=2, max=64)}},
    "torch.export's hint": {"x": {0: torch.export.Dim.DYNAMIC}},
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    assert graphs(lambda x: x * x.shape[0], TWO_SIZES, dynamic_shapes=FORMS[form]) == 1


class Model(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (x * x.shape[0]).sum() + y


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class Wrapped(Model):
    forward = wrapped(Model.forward)  # type: ignore[assignment]


class Hooked(Model):
    def __init__(self) -> None:
        super().__init__()
        self.register_forward_hook(lambda module, args, output: output + 1)


@pytest.mark.parametrize("target", [Model(), Wrapped(), Hooked(), Model().forward,
                                    lambda *xs: xs[0] + xs[1].sum()])
def test_targets(target: Any) -> None:
    """Modules, modules with hooks or wrapped forwards, methods and ``*args`` take tuples alike."""
    calls = [(torch.randn(n, 2), torch.randn(m, 2)) for n, m in ((3, 4), (6, 6), (5, 9))]
    first, second = Dim("first"), Dim("second")
    if isinstance(target, nn.Module):
        named = {"y": {0: second}, "x": {0: first}}
        assert graphs(target, calls, dynamic_shapes=named) == 1
    assert graphs(target, calls, dynamic_shapes=({0: first}, {0: second})) == 1


def test_inplace_compilation_takes_names() -> None:
    model = weft.compile_inplace(Model(), backend="eager", dynamic_shapes={"x": {0: Dim("n")}})
    for n in (3, 5, 8):
        model(torch.randn(n, 2), torch.ones(1))
    assert weft.stats()["graphs"] == 1


def test_containers() -> None:
    def program(xs: list[Tensor], d: dict[str, Any]) -> Tensor:
        return xs[0].sum() + xs[1] + d["y"][0].sum()

    calls = [([torch.randn(n), torch.randn(2)], {"y": (torch.randn(m),), "z": 1})
             for n, m in ((3, 4), (6, 6), (5, 9))]
    n, m = Dim("n"), Dim("m")
    said = {"xs": [{0: n}, None], "d": {"y": ({0: m},)}}
    assert graphs(program, calls, dynamic_shapes=said) == 1


def test_keywords_of_a_variadic_function() -> None:
    compiled = weft.compile(lambda **inputs: inputs["x"] + 1, backend="eager",
                            dynamic_shapes={"x": {0: Dim("n")}})
    for n in (3, 5, 8):
        compiled(x=torch.ones(n))
    assert weft.stats()["graphs"] == 1


def test_numbers() -> None:
    calls = [(torch.ones(3), k, t) for k, t in ((2, 0.5), (5, 0.7), (1, 3.0))]
    said = {"k": Dim("k", max=9), "t": Dim.DYNAMIC}
    assert graphs(lambda x, k, t: x * k / t, calls, dynamic_shapes=said) == 1


def test_parts_behind_a_graph_break_see_declarations() -> None:
    def program(x: Tensor) -> Tensor:
        y = x + 1
        print("", end="")
        return x * x.shape[0] + y

    compiled = weft.compile(program, backend="eager", dynamic_shapes={"x": {0: Dim("n")}})
    for n in (4, 6, 8):
        torch.testing.assert_close(compiled(torch.ones(n)), program(torch.ones(n)))
    assert weft.stats()["graphs"] == 2


def test_static_dimensions_stay_static() -> None:
    assert graphs(lambda x: x + 1, TWO_SIZES, dynamic_shapes={"x": {0: Dim.STATIC}}) == 3
    assert graphs(lambda x: x + 2, TWO_SIZES, dynamic_shapes={"x": {0: None}}, dynamic=True) == 3


def test_one_name_is_one_symbol() -> None:
    calls = [(torch.randn(n, 2), torch.randn(n, 2)) for n in (4, 6)]
    said = ({0: BATCH}, {0: BATCH})
    assert graphs(lambda x, y: x + y, calls, dynamic_shapes=said) == 1


@pytest.mark.parametrize("said", [
    ({0: BATCH}, {0: 2 * BATCH + 1}),
    ({0: 2 * BATCH}, {0: 4 * BATCH + 1}),
])
def test_derived_dimensions(said: Any) -> None:
    calls = [(torch.randn(n, 2), torch.randn(2 * n + 1, 2)) for n in (4, 6, 8)]
    assert graphs(lambda x, y: torch.cat([x, x]) + y[1:], calls, dynamic_shapes=said) == 1


def test_derived_dimension_is_divisible() -> None:
    calls = x_of((4, 3), (8, 3))
    program = lambda x: x.view(2, x.shape[0] // 2, 3) if x.shape[0] % 2 == 0 else x
    compiled = weft.compile(program, backend="eager", dynamic_shapes={"x": {0: 2 * Dim("half")}})
    for args in calls:
        compiled(*args)
    assert weft.stats()["graphs"] == 1


def test_batch_of_one_gets_a_variant_of_its_own() -> None:
    calls = [(torch.randn(n, 2), torch.randn(2 * n, 2)) for n in (1, 6, 8)]
    said = ({0: BATCH}, {0: 2 * BATCH})
    assert graphs(lambda x, y: x.sum() + y, calls, dynamic_shapes=said) == 2


def fixes_the_batch(x: Tensor) -> Tensor:
    return x.reshape(8, 3) + 1


@pytest.mark.parametrize("said", [Dim("n"), Dim.DYNAMIC])
def test_fixed_dimension_names_the_line(said: Any) -> None:
    compiled = weft.compile(fixes_the_batch, backend="eager", dynamic_shapes={"x": {0: said}})
    with pytest.raises(FixedDimensionError, match=r"(?s)x.size\(0\).*only for 8.*fixes_the_batch"):
        compiled(torch.ones(8, 3))


def test_auto_may_be_fixed() -> None:
    compiled = weft.compile(fixes_the_batch, backend="eager", dynamic_shapes={"x": Dim.AUTO})
    assert compiled(torch.ones(8, 3)).shape == (8, 3)


def test_names_that_the_program_ties() -> None:
    compiled = weft.compile(lambda x, y: x + y, backend="eager",
                            dynamic_shapes=({0: Dim("a")}, {0: Dim("b")}))
    with pytest.raises(DimensionError, match=r"(?s)Dim [ab].*works only where.*test_declared"):
        compiled(torch.ones(4), torch.ones(4))


def test_names_that_the_program_ties_with_an_offset_are_told_in_the_users_words() -> None:
    compiled = weft.compile(lambda x, y: x[1:] + y, backend="eager",
                            dynamic_shapes=({0: Dim("a")}, {0: Dim("b")}))
    with pytest.raises(DimensionError, match=r"(?s)it is x\.size\(0\)-1.*declare it as a-1"):
        compiled(torch.ones(6), torch.ones(5))


def test_unequal_sizes_of_one_name() -> None:
    compiled = weft.compile(lambda x, y: x.sum() + y, backend="eager",
                            dynamic_shapes=({0: BATCH}, {0: BATCH}))
    compiled(torch.ones(4), torch.ones(4))
    with pytest.raises(DimensionError, match=r"y.size\(0\) is 5 and x.size\(0\) is 4"):
        compiled(torch.ones(4), torch.ones(5))


@pytest.mark.parametrize(("said", "size", "message"), [
    (BATCH, 65, "x.size.0. is 65, and was declared as Dim batch, 1 to 64"),
    (Dim("n", min=4), 3, "3, and was declared as Dim n, 4 or more"),
    (2 * Dim("n"), 5, r"5, and was declared as Dim 2\*n"),
    (7, 8, "8, and was declared to be 7"),
])
def test_sizes_outside_of_what_was_declared(said: Any, size: int, message: str) -> None:
    compiled = weft.compile(lambda x: x + 1, backend="eager", dynamic_shapes={"x": {0: said}})
    with pytest.raises(DimensionError, match=message):
        compiled(torch.ones(size))


def test_a_later_call_outside_of_the_limits() -> None:
    compiled = weft.compile(lambda x: x + 1, backend="eager", dynamic_shapes={"x": {0: BATCH}})
    compiled(torch.ones(8))
    with pytest.raises(DimensionError, match="is 100"):
        compiled(torch.ones(100))


@pytest.mark.parametrize(("said", "message"), [
    ({"z": {0: BATCH}}, "names 'z'"),
    (({0: BATCH}, None), "has 2 entries"),
    (3, "dict or a tuple"),
])
def test_bad_specifications_are_refused_at_once(said: Any, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        weft.compile(lambda x: x, dynamic_shapes=said)


@pytest.mark.parametrize(("said", "message"), [
    ({"x": {5: BATCH}}, "dimension 5 of x"),
    ({"x": (BATCH,)}, "1 are described"),
    ({"x": {0: "batch"}}, "described by 'batch'"),
])
def test_bad_descriptions_are_refused_at_the_call(said: Any, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        weft.compile(lambda x: x + 1, dynamic_shapes=said)(torch.ones(4, 3))


@pytest.mark.parametrize("make", [
    lambda: Dim("two words"), lambda: Dim("n", min=5, max=3), lambda: Dim("n", min=-1),
    lambda: Dim("n") * 0, lambda: Dim("n") + 0.5, lambda: Dim.AUTO(min=3, max=2),
])
def test_bad_dims(make: Callable[[], Any]) -> None:
    with pytest.raises(BadValue):
        make()


def test_marks_with_limits() -> None:
    compiled = weft.compile(lambda x: x + 1, backend="eager")
    for size in (4, 9):
        x = torch.ones(size)
        weft.mark_dynamic(x, 0, min=3, max=16)
        compiled(x)
    assert weft.stats()["graphs"] == 1
    x = torch.ones(17)
    weft.mark_dynamic(x, 0, min=3, max=16)
    with pytest.raises(DimensionError, match=r"x.size\(0\) is 17, and was declared 3 to 16"):
        compiled(x)


def test_marks_of_torch_dynamo_count() -> None:
    import torch._dynamo as dynamo

    for mark, expected in ((dynamo.mark_dynamic, 1), (dynamo.maybe_mark_dynamic, 1),
                           (dynamo.mark_static, 3)):
        weft.reset()  # calls of the same code share what was compiled
        calls = x_of((4, 3), (7, 3), (9, 3))
        for (x,) in calls:
            mark(x, 0)
        weft.reset()
        assert graphs(lambda x: x + 1, calls) == expected


def test_sizes_that_torch_lets_change_and_that_were_equal_by_chance_made_variants() -> None:
    """PyTorch 2.11 marks the parts of nested tensors so."""
    import torch._dynamo as dynamo

    calls = [(torch.ones(n), torch.ones(m)) for n, m in ((4, 4), (5, 6), (8, 3))]
    for call in calls:
        for x in call:
            dynamo.maybe_mark_dynamic(x, 0)
    assert graphs(lambda x, y: (x + 1, y * 2), calls) == 1
