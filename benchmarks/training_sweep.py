"""A training step of one small transformers model: results and all gradients against eager.

Used by `transformers_sweep --train`. The loss is a fixed random projection of every output that
has a gradient; the model is in training mode, so dropout draws (the same numbers as in eager).
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.verdicts import ROOM, near
from weft.diagnostics.accuracy import as_float64, tensors

TOLERANCE = 2e-3
"""Of a gradient's largest element, and a tenth of that of the largest gradient of all."""
TELLING = 0.05
"""Eager's relative error in a gradient above which float64 is another program."""
NUDGE = 1e-7
"""What parameters are moved by, relatively, to see what rounding may do to a gradient."""
NUDGES = 3
"""Random nudges that are tried."""


def differences(model: torch.nn.Module, kwargs: dict[str, Any], steps: int,
                compile_model: Callable[[torch.nn.Module], Any]) -> tuple[str, str]:
    """What is wrong in `steps` steps, as text (nothing if all is right), and why what differs from
    eager is right."""
    model = model.train()
    peer, start = copy.deepcopy(model), copy.deepcopy(model)
    compiled = compile_model(model)
    note = ""
    for k in range(steps):
        wanted = step(peer, peer, kwargs)
        found = step(compiled, model, kwargs)
        if list(found) != list(wanted):
            return "other outputs than eager", note
        texts = different(found, wanted)
        first = next((f"{name}: {text}" for name, text in texts.items()), "")
        reason = excuse(texts, found, wanted, start, kwargs, k + 1) if texts else ""
        if texts and not reason:
            return first, note
        note = note or (texts and f"{reason}: {first}") or ""
    return "", note


def excuse(names: Iterable[str], found: dict[str, Any], wanted: dict[str, Any],
           start: torch.nn.Module, kwargs: dict[str, Any], steps: int) -> str:
    """Why results that differ from eager's after so many steps are right; nothing if they are not.
    """
    names = list(names)
    if are_rounding(names, found, wanted, exact_step(start, kwargs, steps)):
        return "as near to float64 as eager"
    with mock.patch("torch.compiler.is_compiling", lambda: True):
        if not different(found, last_step(copy.deepcopy(start), kwargs, steps)):
            return "eager's answer where is_compiling() is true"
    moved = [last_step(nudged(start, seed), kwargs, steps) for seed in range(NUDGES)]
    if all(_distance(found[n], wanted[n]) <= ROOM * max(_distance(m[n], wanted[n]) for m in moved)
           for n in names):
        return "as near as eager with parameters moved by a rounding error"
    return ""


def nudged(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """A copy whose parameters are off by about a float32's rounding error."""
    moved, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in moved.parameters():
            p.mul_(1 + NUDGE * torch.randn(p.shape, generator=generator).to(p))
    return moved


def _distance(left: Any, right: Any) -> float:
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return 0.0 if left is right else math.inf
    if left.shape != right.shape:
        return math.inf
    return float((left.double() - right.double()).abs().max()) if left.numel() else 0.0


def last_step(model: torch.nn.Module, kwargs: dict[str, Any], steps: int) -> dict[str, Any]:
    """What the last of so many steps of the model gives."""
    found: dict[str, Any] = {}
    for _ in range(steps):
        found = step(model, model, kwargs)
    return found


def exact_step(model: torch.nn.Module, kwargs: dict[str, Any], steps: int) -> dict[str, Any]:
    """What the last of these steps gives in float64; nothing where an operator has no float64."""
    try:
        return last_step(as_float64(model), as_float64(kwargs), steps)
    except RuntimeError:
        return {}


def are_rounding(
    names: Iterable[str], found: dict[str, Any], wanted: dict[str, Any], exact: dict[str, Any]
) -> bool:
    """Whether these results are as near to the float64 ones as eager's are."""
    trios = [(found[name], wanted[name], exact.get(name)) for name in names]
    return all(
        all(isinstance(t, torch.Tensor) for t in trio) and near(*trio, TELLING) for trio in trios
    )


def step(call: Any, model: torch.nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Outputs, gradients and buffers after one forward and backward."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # models draw from all three
    model.zero_grad()
    outputs = [t for t in tensors(call(**kwargs)) if t.is_floating_point()]
    roots = [t for t in outputs if t.requires_grad]
    generator = torch.Generator().manual_seed(1)
    loss = sum((t * torch.randn(t.shape, generator=generator).to(t)).mean() for t in roots)
    if isinstance(loss, torch.Tensor):
        loss.backward()
    found: dict[str, Any] = {f"output {i}": t.detach() for i, t in enumerate(outputs)}
    found |= {f"gradient {n}": p.grad for n, p in model.named_parameters()}
    return found | {f"buffer {n}": b.clone() for n, b in model.named_buffers()}


def different(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, str]:
    """What differs in each of the results that are not eager's."""
    gradients = [w for k, w in wanted.items() if k.startswith("gradient") and w is not None]
    scale = max((float(g.abs().max()) for g in gradients if g.numel()), default=0.0) / 10
    texts = {
        name: _difference(found[name], expected, scale if name.startswith("gradient") else 1.0)
        for name, expected in wanted.items()
    }
    return {name: text for name, text in texts.items() if text}


def _difference(found: Any, wanted: Any, floor: float) -> str:
    if found is None or wanted is None:
        return "" if found is wanted else f"{type(found).__name__} for {type(wanted).__name__}"
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype} {tuple(found.shape)} for {wanted.dtype} {tuple(wanted.shape)}"
    if wanted.numel() == 0 or torch.equal(found, wanted):
        return ""
    limit = TOLERANCE * max(float(wanted.abs().max()), floor)
    close = torch.allclose(found, wanted, rtol=0, atol=limit, equal_nan=True)
    return "" if close else f"off by {float((found - wanted).abs().max()):.3g}, limit {limit:.3g}"
