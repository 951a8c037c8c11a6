"""while_loop, map, the scans and scripted functions, captured whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import weft
from tests.capture.harness import check

X = torch.randn(3, 4)
ROOT = str(Path(weft.__file__).parents[1])


def captured(function, *args):
    weft.reset()
    with torch.no_grad():
        out = weft.compile(function, backend="eager", fullgraph=True)(*args)
    assert weft.stats()["graphs"] == 1
    return out


def test_while_loop():
    scale = torch.full((3, 4), 2.0)

    def f(x):
        n = torch.zeros((), dtype=torch.int64)
        return while_loop(lambda n, y: n < 5, lambda n, y: (n + 1, y * scale + x), (n, x))

    n, y = captured(f, X)
    expected = X
    for _ in range(5):
        expected = expected * scale + X
    assert n.item() == 5 and torch.allclose(y, expected)


def test_map():
    out = captured(lambda x: map_over(lambda row, k: row.sin() * k, x, 3.0), X)
    assert torch.allclose(out, X.sin() * 3)


def test_scan():
    def f(x):
        return scan(lambda carry, row: (carry + row, carry * 2), torch.zeros(4), x, dim=0)

    last, ys = captured(f, X)
    carry, rows = torch.zeros(4), []
    for row in X:
        rows.append(carry * 2)
        carry = carry + row
    assert torch.allclose(last, carry) and torch.allclose(ys, torch.stack(rows))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("mode", ["pointwise", "generic"])
def test_associative_scan(length, mode):
    """`pointwise` is for GPUs in eager: the sums of a linear recurrence tell what is right."""
    def recurrence(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    def program(a, x, reverse):
        return associative_scan(recurrence, (a, x), 1, reverse, mode)[1]

    a, x = torch.rand(2, length, 3), torch.randn(2, length, 3)
    for reverse in (False, True):
        state, states = torch.zeros(2, 3), {}
        for t in reversed(range(length)) if reverse else range(length):
            state = states[t] = a[:, t] * state + x[:, t]
        wanted = torch.stack([states[t] for t in range(length)], 1)
        torch.testing.assert_close(captured(program, a, x, reverse), wanted)


SCRIPTED = """
import torch, weft

@torch.jit.script
def scripted(x, k: int):
    return x * k + 1

x = torch.randn(3, 4)
with torch.no_grad():
    found = weft.compile(lambda x: scripted(x, 3) * 2, backend="eager", fullgraph=True)(x)
assert torch.equal(found, scripted(x, 3) * 2)

@torch.jit.script
def asks(x):
    if torch.jit.is_scripting():
        return x.cos()
    return x.sin()

f = lambda x: asks(x) + torch.jit.is_scripting()
assert torch.equal(weft.compile(f, backend="eager", fullgraph=True)(x), f(x))
"""


def test_scripted_functions_are_inlined(tmp_path):
    """With the branch of `is_scripting` that they took. In a process of its own: PyTorch's testing
    package changes how such functions are called."""
    file = tmp_path / "scripted.py"
    file.write_text(SCRIPTED)
    subprocess.run([sys.executable, str(file)], check=True, env={**os.environ, "PYTHONPATH": ROOT})


def test_a_number_that_was_computed_in_a_subgraph_first():
    def f(x, n):
        y = torch.cond(x.sum() > 0, lambda t: t * (n * 2), lambda t: t + (n * 2), (x,))
        return y + n * 2

    check(f, *((torch.ones(3), n) for n in (2, 3, 5)), breaks=0)


COMPILED_BY_TORCH = """
import torch, weft

layer = torch.compile(torch.nn.Linear(3, 3), backend="eager")

@torch.compile(backend="eager")
def wave(x, k=2):
    return x.sin() * k

@weft.disable
def eagerly(x):
    return wave(x, k=3)

def f(x):
    return wave(eagerly(wave(layer(x))))

x = torch.ones(2, 3)
compiled = weft.compile(f, backend="eager")
for _ in range(2):
    torch.testing.assert_close(compiled(x), f(x))
assert weft.stats()["graph_breaks"] == 1
"""


def test_functions_that_torch_compiled_are_inlined(tmp_path):
    """Their hook on frames, put over weft's, had both hooks call each other without end."""
    file = tmp_path / "compiled.py"
    file.write_text(COMPILED_BY_TORCH)
    subprocess.run([sys.executable, "-W", "ignore", str(file)], check=True, timeout=200,
                   env={**os.environ, "PYTHONPATH": ROOT})


COMPILED_TWICE = """
import torch, weft

weft.config.suppress_errors = False
x = torch.ones(2, 3)
inner = weft.compile(lambda x: x.sin() * 2, backend="eager")
outer = torch.compile(inner, backend="eager")
for n in (2, 3, 4):
    torch.testing.assert_close(outer(torch.ones(n)), torch.ones(n).sin() * 2)
assert weft.stats()["fallbacks"] == 0
"""


def test_torch_compile_of_a_compiled_function(tmp_path):
    """Its frame hook compiled weft's own frames, which failed."""
    file = tmp_path / "twice.py"
    file.write_text(COMPILED_TWICE)
    subprocess.run([sys.executable, "-W", "ignore", str(file)], check=True, timeout=200,
                   env={**os.environ, "PYTHONPATH": ROOT})
