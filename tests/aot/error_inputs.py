"""Calls that eager refuses: the compiled function must raise the same type of exception.

    for outcome in error_outcomes(op_info, RUNNERS["compile"]("inductor")):
        print(outcome)          # "equal", "raises TypeError for RuntimeError: ...", ...

`op_table.py --errors` prints all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from comparing import Outcome, Runner, copies, flat_call


def error_outcomes(op: Any, runner: Runner) -> Iterator[Outcome]:
    """The outcomes of an operator's wrong calls."""
    if op.error_inputs_func is None:
        return
    for made in op.error_inputs("cpu"):
        sample = made.sample_input
        yield compare_errors(op.op, (sample.input, *sample.args), sample.kwargs, runner)


def compare_errors(
    function: Callable[..., Any], args: Any, kwargs: Any, runner: Runner
) -> Outcome:
    """Whether a wrong call raises the same type of exception."""
    call, inputs = flat_call(function, args, kwargs)
    wanted = _error_of(call, copies(inputs))
    if wanted is None:
        return "eager passes"

    def compiled(*given: torch.Tensor) -> Any:
        return runner(call, list(given))[0](*given)

    found = _error_of(compiled, copies(inputs))
    if found is None:
        return f"output: no {_text(wanted)}"
    if type(found) is not type(wanted):
        return f"raises {_text(found)}: for {_text(wanted)}"
    return "equal"


def _error_of(call: Callable[..., Any], inputs: list[torch.Tensor]) -> Exception | None:
    try:
        call(*inputs)
    except Exception as error:
        return error
    return None


def _text(error: Exception) -> str:
    return f"{type(error).__name__} ({str(error).partition(chr(10))[0][:100]})"
