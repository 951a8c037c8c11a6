"""What a compiled model's result is worth where it is not eager's to the last digits.

Used by `transformers_sweep` and `training_sweep`. Two things besides an error of the compiler make results differ:

- rounding, in models that amplify it: then the result is as near to float64 as eager's is;
- programs that ask `torch.compiler.is_compiling()` and go another way (some transformers models
  build other masks there): then the result is that of eager on that way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

import torch

from benchmarks.small_models import same
from weft.diagnostics.accuracy import as_float64

ROOM: Final = 3.0
"""How much further from float64 than eager a result may be."""
TELLING: Final = 1e-3
"""Eager's relative error above which float64 is another program (other random numbers, say)."""


WRONG: Final = "wrong"


def seeded(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """A result, from the same random numbers each time."""
    torch.manual_seed(0)
    return function(**kwargs)


def verdict(model: torch.nn.Module, kwargs: dict[str, Any], result: Any, expected: Any) -> str:
    """Nothing for eager's result, WRONG, or why another result is right."""
    if same(result, expected):
        return ""
    if _as_near(result, expected, model, kwargs):
        return "as near to float64 as eager"
    told = _told(model, kwargs)
    if not isinstance(told, Exception) and same(result, told):
        return "the model's answer where is_compiling() is true, which is not eager's"
    return WRONG


def raises_itself(model: torch.nn.Module, kwargs: dict[str, Any], error: Exception) -> bool:
    """Whether the program raises that error when it is told that it is being compiled."""
    told = _told(model, kwargs)
    return isinstance(told, Exception) and repr(told) == repr(error)


def _told(model: torch.nn.Module, kwargs: dict[str, Any]) -> Any:
    """What the program gives, or raises, when it is told that it is being compiled."""
    try:
        with mock.patch("torch.compiler.is_compiling", lambda: True):
            return seeded(model, kwargs)
    except Exception as error:  # the program's own
        return error


def _as_near(found: Any, wanted: Any, model: torch.nn.Module, kwargs: dict[str, Any]) -> bool:
    try:
        exact = list(_tensors(seeded(as_float64(model), as_float64(kwargs))))
    except RuntimeError:  # an operator without float64
        return False
    pairs = list(zip(_tensors(found), _tensors(wanted), exact, strict=False))
    return len(pairs) == len(exact) and all(near(*pair) for pair in pairs)


def near(
    found: torch.Tensor, wanted: torch.Tensor, exact: torch.Tensor, telling: float = TELLING
) -> bool:
    """Whether a result is as near to the float64 one as eager's, whose error must be small
    enough (`telling`, of the largest value) to be one of rounding."""
    if found.shape != exact.shape or found.dtype != wanted.dtype:
        return False
    if not found.is_floating_point():
        return torch.equal(found, wanted)
    limit = ROOM * float((wanted - exact).abs().max()) if exact.numel() else 0.0
    scale = float(exact.abs().max()) if exact.numel() else 0.0
    tells = limit <= ROOM * telling * scale
    return tells and bool(((found - exact).abs() <= limit + 1e-6 * scale).all())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a model's output, in order, those of caches too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "__dict__"):
        yield from _tensors(vars(value))
