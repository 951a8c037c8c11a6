"""`str.format` and `%`: objects are asked for their texts, numbers in texts stay symbolic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils.checkpoint

import weft
from tests.capture.harness import check

X = torch.ones(3)


class Meter:
    """The way training scripts print averages."""

    def __init__(self, name: str, form: str) -> None:
        self.name, self.form, self.value, self.sizes = name, form, 0.0, [1, 2]

    def __float__(self) -> float:
        return float(self.value)

    def __format__(self, spec: str) -> str:
        return f"<{spec}>"

    def __str__(self) -> str:
        return ("{name} {value" + self.form + "} {sizes[0]}").format(**self.__dict__)


def test_fields_of_objects_are_read_and_converted() -> None:
    def f(x: Any, n: int) -> Any:
        meter = Meter("loss", ":.2f")
        meter.value = n + 0.25
        return (x + n, str(meter), "{!s:>20}|{:>3}|{.name}".format(meter, meter, meter),  # noqa: UP032
                "{0[1]} {0[0]:{w}}".format([1, x.shape[0]], w=4),
                "%s %5.1f %r%%" % (meter, meter, n),
                "%(a)s/%(b)03d" % {"a": x.dtype, "b": n}, "{} {}".format(*x.shape, n))

    check(f, (X, 1), (torch.ones(4), 2), (torch.ones(5), 3), breaks=0)


def test_losses_in_texts_do_not_end_the_graph() -> None:
    def f(x: Any, step: int) -> Any:
        loss = (x * step).sum()
        parts = ["%d" % step, f"{loss.item():.3f}", "%.1e" % loss.item()]
        return x * 2, "\t".join(parts), "step " + "-".join(parts[:1])

    check(f, *[(torch.ones(3 + i), i) for i in range(4)], breaks=0)
    assert weft.stats()["graphs"] <= 2


@pytest.mark.parametrize("text", [
    "{} {}", "{0} {}", "{zz}", "{:d}x", "{", "{.zz}", "{[0]}", "%d %d", "%z", "%(a)s", "text",
])
def test_formats_that_do_not_fit_raise_what_python_raises(text: str) -> None:
    def f(x: Any, n: float) -> Any:
        try:
            return x, text % n if "%" in text or text == "text" else text.format(n)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            return x, type(error).__name__, str(error)

    check(f, (X, 1.5), (X, 2.5), (X, 3.5), breaks=None)


def test_text_of_an_operator_is_not_its_repr() -> None:
    def f(x):
        op = torch.ops.aten.sin.default
        return x + 1, str(op), f"{op}", repr(op), "%s" % torch.ops.aten.sin, str(len)

    check(f, (torch.ones(2),), graphs=1)


def _checked(holds: Any, message: str) -> None:
    if not isinstance(holds, bool):
        return  # what a library does with tensors while it is being compiled
    raise ValueError(message)


def test_messages_of_tensors_that_nobody_reads_do_not_end_the_graph() -> None:
    def f(x: Any) -> Any:
        y = x.square()
        _checked((y >= 0).all(), f"negative: {y}, {y.min():.3f}" + " of %s" % x)
        try:
            raise ValueError(str(y.sum()))
        except ValueError:
            y = y + 1
        return y * 2

    check(f, (torch.randn(3),), (torch.randn(3, requires_grad=True),), breaks=0)


def test_texts_of_tensors_tell_the_data_of_the_moment_when_they_were_written() -> None:
    def f(x: Any) -> Any:
        found = {"repr": repr(x), "texts": []}
        y = x + 1
        for n in range(3):
            found["texts"].append(f"step {n}: {y.sum():.1f} " + "{!r}".format(y[:1]))  # noqa: UP032
            y.mul_(2)
            x.add_(1)
        return y, found, "%s %r" % (x, y)

    check(f, (torch.arange(3.0),), (torch.ones(3),), breaks=0)


def test_a_text_of_a_tensor_that_is_read_ends_the_graph_where_it_was_written() -> None:
    def f(x: Any) -> Any:
        text = f"{x.sum()}"
        y = x + 1
        return y * 2 if "6" in text else y * 3

    check(f, (torch.full((3,), 2.0),), (torch.zeros(3),), breaks=None)
    assert weft.stats()["graph_breaks"] > 0


def test_numbers_in_texts_do_not_tell_where_gradients_come_from() -> None:
    def f(x: Any) -> Any:
        loss = x.square().sum()
        print(f"loss {loss:.3f}", f"{loss}")
        return loss * 2

    check(f, *[(torch.full((3,), float(n), requires_grad=True),) for n in range(6)], breaks=1)
    assert weft.stats()["recompiles"] == 0


def test_texts_of_tensors_with_gradients_tell_where_these_come_from() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y.sum(), str(x), "grad_fn=" in repr(y)

    check(f, (torch.ones(3, requires_grad=True),), breaks=None)


def test_texts_written_in_functions_of_operators_do_not_leave_them() -> None:
    texts: list[str] = []

    def inner(x: Any) -> Any:
        _checked(x > 0, f"{x} {x.sum():.2f}")
        texts.append(f"{x.sum():.3f}")
        return x.sin()

    def f(x: Any) -> Any:
        y = torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
        return y.sum(), texts[-1]

    check(f, (torch.ones(3),), breaks=None)
