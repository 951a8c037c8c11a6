"""PyTorch older or newer than the versions that weft is tested with.

Programs run in processes of their own, in which torch says that it is of another version.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft import torch_version

SRC = Path(__file__).resolve().parents[2] / "src"

NEWER = """
import torch.version
torch.version.__version__ = torch.__version__ = "99.1.0"
import warnings
warnings.simplefilter("always")
warnings.showwarning = lambda message, kind, file, line, *rest: print(kind.__name__, message)
"""

NORM = """
import weft
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.InstanceNorm2d(8, affine=True))
def loss(x):
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x).float()
    return (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum()
def gradients(f):
    model.zero_grad()
    f(torch.linspace(-2, 2, 768).sin().view(4, 3, 8, 8)).backward()
    return [p.grad for p in model.parameters()]
for got, want in zip(gradients(weft.compile(loss)), gradients(loss)):
    torch.testing.assert_close(got, want, rtol=0.03, atol=0.03)
print(weft.stats()["graphs"], weft.stats()["fallbacks"])
"""


def output(program: str, **variables: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(SRC), "WEFT_STRICT": "0", **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_newer_torch_is_named_once_and_norms_under_autocast_are_right(tmp_path: Path) -> None:
    lines = output(NEWER + NORM + "weft.compile(loss)", WEFT_CACHE_DIR=str(tmp_path))
    assert lines[0].startswith("UntestedTorchWarning PyTorch 99.1.0 is newer")
    assert torch_version.TESTED in lines[0]
    assert lines[1:] == ["1 0"]


def test_warning_about_a_newer_torch_was_not_to_be_silenced() -> None:
    program = NEWER + "import weft; weft.compile(lambda x: x)"
    assert output(program, WEFT_WARN_UNTESTED_TORCH="0") == []


def test_meta_kernel_that_no_longer_fits_gave_garbage(tmp_path: Path) -> None:
    """A kernel returns another type than PyTorch's meta kernel promises."""
    program = NEWER + """
import weft
library = torch.library.Library("probe", "DEF")
library.define("wide(Tensor x) -> Tensor")
library.impl("wide", lambda x: x.double(), "CPU")
library.impl("wide", lambda x: x.clone(), "Meta")
f = lambda x: torch.ops.probe.wide(x) * 2
x = torch.arange(4.0)
compiled = weft.compile(f)
print(all(torch.equal(compiled(x), f(x)) for _ in range(3)), weft.stats()["fallbacks"])
"""
    lines = output(program, WEFT_CACHE_DIR=str(tmp_path), WEFT_WARN_UNTESTED_TORCH="0")
    assert lines[0].startswith("FallbackWarning weft failed during the trial of a graph")
    assert lines[1:] == ["True 1"]


MOVED = NEWER + """
del torch._C._len_torch_dispatch_stack
import weft
@weft.compile(dynamic=True)
def f(x):
    return x + 1
print(f(torch.ones(())).item(), weft.compile(f) is f, weft.stats())
try:
    weft.explain(f)
except weft.errors.UnsupportedTorch as error:
    print("no explain:", "_len_torch_dispatch_stack" in str(error))
"""


def test_symbol_that_a_newer_torch_has_moved_failed_the_import() -> None:
    lines = output(MOVED)
    assert lines[0].startswith("UntestedTorchWarning weft does not work with PyTorch 99.1.0")
    assert "_len_torch_dispatch_stack" in lines[0]
    assert lines[1:] == ["2.0 True {}", "no explain: True"]


def test_import_says_that_torch_is_too_old(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise AssertionError('imported')")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.10.1+cpu'\n")
    done = subprocess.run(
        [sys.executable, "-c", "import weft"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{SRC}"})
    assert "UnsupportedTorch: weft needs PyTorch 2.11 or newer; PyTorch 2.10.1+cpu" in done.stderr


@pytest.mark.parametrize(("version", "expected"), [
    ("2.14.1+cu130", (2, 14)), ("2.11.0", (2, 11)), ("2.16.0a0+git1234", (2, 16)), ("3.0", (3, 0)),
])
def test_release_of_a_version(version: str, expected: tuple[int, int]) -> None:
    assert torch_version.release(version) == expected
