"""Operators with autograd formulas in Python: what the formulas read was what it had been when the
graph was compiled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import weft

names = itertools.count()
scale = 1.0
table = {"scale": 1.0}
items = [1.0]
nested = {"row": ([1.0], SimpleNamespace(value=1.0))}
settings = SimpleNamespace(scale=1.0)
tensor = torch.tensor(1.0)


class Holder:
    scale = 1.0


def _cell() -> tuple[Callable[[], float], Callable[[float], None]]:
    value = 1.0

    def read() -> float:
        return value

    def write(new: float) -> None:
        nonlocal value
        value = new

    return read, write


def _set_global(value: float) -> None:
    globals()["scale"] = value


read_cell, write_cell = _cell()

VARIABLES: dict[str, tuple[Callable[[], Any], Callable[[float], object]]] = {
    "global": (lambda: scale, _set_global),
    "dictionary": (lambda: table["scale"], lambda v: table.update(scale=v)),
    "list": (lambda: sum(items), lambda v: items.append(v - sum(items))),
    "list in a tuple": (lambda: nested["row"][0][0], lambda v: nested["row"][0].__setitem__(0, v)),
    "attribute": (lambda: settings.scale, lambda v: setattr(settings, "scale", v)),
    "attribute below": (
        lambda: nested["row"][1].value, lambda v: setattr(nested["row"][1], "value", v)),
    "class attribute": (lambda: Holder.scale, lambda v: setattr(Holder, "scale", v)),
    "cell": (read_cell, write_cell),
    "tensor": (lambda: tensor, lambda v: tensor.fill_(v)),
}


def _custom_op(read: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    @torch.library.custom_op(f"weft_test::scaled{next(names)}", mutates_args=())
    def scaled(x: Tensor) -> Tensor:
        return x.clone()

    scaled.register_fake(torch.empty_like)
    scaled.register_autograd(lambda ctx, g: g * read())
    return scaled


def _with_context(read: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    @torch.library.custom_op(f"weft_test::scaled{next(names)}", mutates_args=())
    def scaled(x: Tensor, k: float = 2.0) -> Tensor:
        return x * k

    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, ctx.k = inputs
        ctx.factor = read()
        ctx.save_for_backward(x)

    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        (x,) = ctx.saved_tensors
        return (grad * ctx.k * ctx.factor + 0 * x if ctx.needs_input_grad[0] else None), None

    scaled.register_fake(lambda x, k=2.0: torch.empty_like(x))
    scaled.register_autograd(backward, setup_context=setup_context)
    return scaled


def _of_lists(read: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    @torch.library.custom_op(f"weft_test::scaled{next(names)}", mutates_args=())
    def scaled(xs: list[Tensor], *, by: int = 3) -> list[Tensor]:
        return [x * by for x in xs]

    def setup_context(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.by = keyword_only_inputs["by"]

    def backward(ctx: Any, grads: list[Tensor]) -> list[Tensor]:
        return [grad * ctx.by * read() for grad in grads]

    scaled.register_fake(lambda xs, by=3: [torch.empty_like(x) for x in xs])
    scaled.register_autograd(backward, setup_context=setup_context)
    return lambda x: sum(scaled([x, x + 1], by=2))


def _defined(read: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
    name = f"weft_test::scaled{next(names)}"
    torch.library.define(name, "(Tensor x) -> Tensor")
    torch.library.impl(name, "cpu", lambda x: x.clone())
    torch.library.register_fake(name, torch.empty_like)
    torch.library.register_autograd(name, lambda ctx, g: g * read())
    return lambda x: getattr(torch.ops.weft_test, name.split("::")[1])(x)


REGISTRATIONS = [_custom_op, _with_context, _of_lists, _defined]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    for _, write in VARIABLES.values():
        write(1.0)


def _gradients(call: Any, write: Callable[[float], object]) -> list[Tensor]:
    found = []
    for before, after in ((1.0, 1.0), (1.0, 5.0), (7.0, 7.0), (2.0, 3.0)):
        x = torch.ones(3, requires_grad=True)
        write(before)
        y = call(x)
        write(after)
        y.sum().backward()
        found.append(x.grad)
    write(1.0)
    return found


@pytest.mark.parametrize("register", REGISTRATIONS)
def test_what_a_formula_reads_is_read_when_it_runs(register: Any) -> None:
    for i, (name, (read, write)) in enumerate(VARIABLES.items()):
        turn = (i + REGISTRATIONS.index(register)) % 4
        if register is not _custom_op and turn:
            continue
        backend = "aot_eager" if turn else "inductor"
        operator = register(read)

        def program(x: Tensor, operator: Any = operator) -> Tensor:
            return operator(x.sin()).cos()

        with weft.config.patch(strict=True):
            found = _gradients(weft.compile(program, backend=backend), write)
        torch.testing.assert_close(found, _gradients(program, write), msg=lambda m, n=name: n + m)


def test_a_formula_with_effects_breaks_the_graph() -> None:
    seen: list[int] = []

    @torch.library.custom_op("weft_test::noted", mutates_args=())
    def noted(x: Tensor) -> Tensor:
        return x.clone()

    def backward(ctx: Any, grad: Tensor) -> Tensor:
        seen.append(1)
        return grad

    noted.register_fake(torch.empty_like)
    noted.register_autograd(backward)
    compiled = weft.compile(lambda x: noted(x.sin()).cos())
    for n in range(1, 4):
        compiled(torch.ones(3, requires_grad=True)).sum().backward()
        assert len(seen) == n


def test_a_formula_that_is_registered_again() -> None:
    @torch.library.custom_op("weft_test::again", mutates_args=())
    def again(x: Tensor) -> Tensor:
        return x.clone()

    again.register_fake(torch.empty_like)
    again.register_autograd(lambda ctx, g: g * 2)
    compiled = weft.compile(lambda x: again(x).sin())

    def gradient() -> float:
        x = torch.zeros(1, requires_grad=True)
        compiled(x).backward()
        return x.grad.item()

    assert gradient() == 2
    again._backward_fn = lambda ctx, g: g * 3  # what registering again would do
    assert gradient() == 3


def test_a_formula_without_effects_does_not_break_the_graph() -> None:
    operator = _with_context(VARIABLES["dictionary"][0])
    compiled = weft.compile(lambda x: operator(x.sin()).cos(), fullgraph=True)
    assert compiled(torch.ones(3, requires_grad=True)).requires_grad
