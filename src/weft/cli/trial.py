"""``weft doctor``'s trial of a target: compile a function, run it forward and backward, compare.

Place in the pipeline: command line; `doctor.py` runs it in a process of its own, which may crash::

    python -m weft.cli.trial cpu        # prints "forward and backward work, 4 kernels"; status 0
    python -m weft.cli.trial cuda       # prints "the backward fails: CompilationFailed: ..."; 1
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable

import torch

import weft
from weft.config import config
from weft.errors import WeftError

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _attention(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Elementwise operators, a reduction and a library call."""
    return torch.softmax((x * weight).relu() + x.sigmoid(), -1) @ weight


def _forward(function: Function, x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    return [function(x, weight)]


def _backward(function: Function, x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    leaves = [t.clone().requires_grad_() for t in (x, weight)]
    result = function(*leaves)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), leaves)]


def _failure(device: str) -> str:
    """What fails, as a sentence; empty if nothing does."""
    x, weight = (torch.linspace(-2, 2, 256, device=device).sin().view(16, 16) * k for k in (1, 2))
    for name, run in (("forward", _forward), ("backward", _backward)):
        try:
            results = run(weft.compile(_attention, fullgraph=True), x, weight)
        except Exception as error:  # noqa: BLE001  whatever it is: it is what doctor reports
            traceback.print_exc()
            first = " ".join(str(error).splitlines()[:2])  # of a compiler's message, the cause
            do = error.do if isinstance(error, WeftError) else None
            return f"the {name} fails: {type(error).__name__}: {first}" + (f"\n{do}" if do else "")
        for got, want in zip(results, run(_attention, x, weight), strict=True):
            if not torch.allclose(got, want, rtol=1e-4, atol=1e-5):
                return f"the {name} is wrong by {float((got - want).abs().max()):.2g}"
    return ""


def main(device: str) -> int:
    """Try the target of a device; returns the exit status."""
    with tempfile.TemporaryDirectory() as folder, config.patch(strict=True, cache_dir=folder):
        failure = _failure(device)
        print(failure or f"forward and backward work, {weft.stats()['kernels']} kernels compiled")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
