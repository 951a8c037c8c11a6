"""How often autograd counts a tensor as written: as often as in eager, whatever its names."""

from __future__ import annotations

import random

import pytest

from tests.capture.failing_programs import difference_of

_STEPS = (
    "s.m.t_()", "s.m.transpose_(0, 1)", "s.m.resize_(3, 3)", "s.o.unsqueeze_(0)", "s.o.squeeze_()",
    "s.flat.add_(1)", "s.m.diagonal().mul_(2)", "s.m.data.add_(1)", "s.p.data = s.o * 2",
    "s.p.data = s.p.data + 1", "s.p.data.mul_(2)", "s.p.requires_grad_(False)",
    "s.p.requires_grad_()", "s.both.add_(1)", "s.o.data = s.n * 1.0", "s.o.add_(1)",
    "with torch.no_grad(): s.p.add_(1)", "with torch.no_grad(): s.p[0] = 3",
)
"""Writes, assignments of data, and changes in place that others undo."""


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("seed", range(10))
def test_writes_through_several_names_are_counted(seed: int, backend: str) -> None:
    """`m.t_()` twice counted no write, nor did writes behind `p.data = ...`."""
    steps = random.Random(seed).choices(_STEPS, k=5)
    twice = random.Random(seed).choice(("s.m.t_()", "s.o.unsqueeze_(0); s.o.squeeze_()"))
    lines = "".join(f"    {line}\n" for line in (twice, *steps, twice))
    source = f"def program(x, k, z, s):\n{lines}    return x + s.m[0] + s.p.detach()\n"
    assert difference_of(source, "counted", backend, n_calls=2) == ""
