"""Modules of PyTorch's module database: forward, gradients of inputs and parameters, both modes.

    for outcome in module_outcomes(module_info, torch.float32, RUNNERS["compile"]("inductor"), 3):
        print(outcome)          # "equal", ...

`op_table.py --modules` prints all of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from comparing import Outcome, Runner, compare_calls
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten, tree_unflatten


def module_outcomes(
    info: Any, dtype: torch.dtype, runner: Runner, samples: int, device: str = "cpu"
) -> Iterator[Outcome]:
    """The outcomes of a module's first samples, in training mode and not."""
    if dtype not in info.dtypes:
        return
    for training in (True, False):
        made = info.module_inputs_func(
            info, device=device, dtype=dtype, requires_grad=True, training=training
        )
        for sample in islice(made, samples):
            if sample.forward_input is not None:
                yield _compare(info, sample, training, runner, device=device, dtype=dtype)


def _compare(info: Any, sample: Any, training: bool, runner: Runner, **place: Any) -> Outcome:
    """One sample of a module, whose parameters get the type and device of `place`."""
    torch.manual_seed(0)
    arguments = sample.constructor_input
    module: torch.nn.Module = info.module_cls(*arguments.args, **arguments.kwargs)
    module = module.to(**place).train(training)
    given = sample.forward_input
    if _is_lazy(module):
        module(*given.args, **given.kwargs)
    flat = FlatCall(module, given.args, given.kwargs)
    return compare_calls(flat, copy.deepcopy(flat), flat.inputs, runner)


def _is_lazy(module: torch.nn.Module) -> bool:
    return any(is_lazy(p) for p in [*module.parameters(), *module.buffers()])


class FlatCall(torch.nn.Module):
    """A module's call as a module of the tensors among its arguments."""

    def __init__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.module = module
        flat, self.spec = tree_flatten((args, kwargs))
        self.places = [i for i, value in enumerate(flat) if isinstance(value, torch.Tensor)]
        self.inputs = [flat[i] for i in self.places]
        self.rest = [None if i in self.places else value for i, value in enumerate(flat)]

    def __deepcopy__(self, memo: Any) -> FlatCall:
        made = copy.copy(self)
        made._modules = {"module": copy.deepcopy(self.module)}
        return made

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The module's results, flat."""
        given = list(self.rest)
        for i, tensor in zip(self.places, tensors, strict=True):
            given[i] = tensor
        args, kwargs = tree_unflatten(given, self.spec)
        return tuple(tree_flatten(self.module(*args, **kwargs))[0])
