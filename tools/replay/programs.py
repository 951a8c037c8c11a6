"""The programs that are replayed: operators, Python's language, gradients, models, examples.

Place in the pipeline: read by `recording.py`. They are those of the benchmarks and tests; each is
called with `wrap`, which is `weft.compile` with the settings of the recording::

    PROGRAMS["operators/softmax_last"](weft.compile)
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks import operator_programs, small_models
from tests.capture import language, user_programs

Wrap = Callable[..., Callable[..., Any]]
Program = Callable[[Wrap], object]

MODELS: Final = {
    "bert": ("call", "train"), "gpt2": ("call", "dynamic"), "llama": ("call", "train", "dynamic"),
    "t5": ("call",), "vit": ("call", "train"), "resnet": ("call", "train"), "mixtral": ("call",),
    "convnext": ("call",), "mamba": ("call",), "swin": ("train",),
}
"""Types of `small_models`, and what is done with them."""
_ROOT: Final = Path(__file__).parents[2]
SHORT: Final = 5
"""The short form takes every so many programs of each kind."""


def all_programs(*, short: bool = False) -> dict[str, Program]:
    """By name; kinds one after the other."""
    kinds = (_operators(), _language(), _user_programs(), _gradients(), _models(), _examples())
    return {name: program for kind in kinds
            for n, (name, program) in enumerate(kind) if not short or n % SHORT == 0}


def _operators() -> Iterator[tuple[str, Program]]:
    ways = {"operators": _call, "operators-dynamic": _call_dynamic, "operators-training": _train}
    for n, name in enumerate(operator_programs.PROGRAMS):
        if n % 3 == 0:
            way = [*ways][n // 3 % 3]
            function, make = operator_programs.PROGRAMS[name]
            yield f"{way}/{name}", partial(ways[way], function, partial(make, 1))


def _language() -> Iterator[tuple[str, Program]]:
    for n, (function, arguments) in enumerate(language.CASES):
        if n % 2 == 0:
            yield f"language/{function.__name__}-{n}", partial(_twice, function, arguments)


def _user_programs() -> Iterator[tuple[str, Program]]:
    for function, *_ in user_programs.PROGRAMS[::3]:
        yield f"users/{function.__name__}", partial(_twice, function, (torch.ones(3, 4),))


def _gradients() -> Iterator[tuple[str, Program]]:
    sys.path.append(str(_ROOT / "tests" / "aot"))  # from where these programs import each other
    for file in ("backwards", "checkpoints", "functions", "hooks", "models", "saved_tensors"):
        importlib.import_module(f"autograd_programs.{file}")
    registry = importlib.import_module("autograd_programs.programs")
    for name in sorted(registry.PROGRAMS)[::8]:
        yield f"gradients/{name}", lambda wrap, name=name: list(registry.PROGRAMS[name](wrap))


def _models() -> Iterator[tuple[str, Program]]:
    for name, ways in MODELS.items():
        for way in ways:
            yield f"models/{name}-{way}", partial(_MODEL_WAYS[way], name)


def _examples() -> Iterator[tuple[str, Program]]:
    for name in ("control_flow", "mean_pooling"):
        file = str(_ROOT / "examples" / f"{name}.py")
        yield f"examples/{name}", lambda _, file=file: runpy.run_path(file, run_name="__main__")


# -- what is done with them -----------------------------------------------------------------------


def _call(function: Callable[..., Any], make: Callable[[], Any], wrap: Wrap) -> object:
    with torch.no_grad():
        return wrap(function)(*make())


def _call_dynamic(function: Callable[..., Any], make: Callable[[], Any], wrap: Wrap) -> object:
    return wrap(function, dynamic=True)(*make())


def _train(function: Callable[..., Any], make: Callable[[], Any], wrap: Wrap) -> object:
    arguments = tree_map_only(torch.Tensor, _trained, make())
    return _backward(wrap(function)(*arguments))


def _trained(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def _backward(result: object) -> object:
    losses = [t.float().sum() for t in tree_leaves(result)
              if isinstance(t, torch.Tensor) and t.requires_grad and not t.is_complex()]
    if losses:
        torch.stack(losses).sum().backward()
    return result


def _twice(function: Callable[..., Any], arguments: tuple[Any, ...], wrap: Wrap) -> object:
    compiled = wrap(function)
    return [compiled(*arguments), compiled(*arguments)]


def _call_model(name: str, wrap: Wrap) -> object:
    case = small_models.build(name)
    with torch.no_grad():
        return wrap(case.model)(**case.kwargs)


def _call_model_of_any_size(name: str, wrap: Wrap) -> object:
    case = small_models.build(name)
    with torch.no_grad():
        return wrap(case.model, dynamic=True)(**case.kwargs)


def _train_model(name: str, wrap: Wrap) -> object:
    case = small_models.build(name)
    return _backward(wrap(case.model.train())(**case.kwargs))


_MODEL_WAYS: Final[dict[str, Callable[[str, Wrap], object]]] = {
    "call": _call_model, "dynamic": _call_model_of_any_size, "train": _train_model,
}
