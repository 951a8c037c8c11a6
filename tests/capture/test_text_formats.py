"""`str.format` and `%`: objects are asked for their texts, numbers in texts stay symbolic."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
