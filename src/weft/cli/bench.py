"""``weft bench FILE.py``: runs a program, then measures each function that it compiled.

Place in the pipeline: command line. While the program runs, `weft.compile` is replaced by one that
also notes the arguments of each compiled function's first call; with these, `weft.benchmark`
measures it afterwards (forward and backward if the result requires gradients)::

    weft bench train.py                             # weft against eager
    weft bench train.py --against torch.compile -- --lr 1
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from rich.console import Console
from rich.text import Text

import weft
from weft.cli import program
from weft.diagnostics.accuracy import tensors


@final
@dataclass(slots=True)
class FirstCall:
    """A compiled function with the settings it was compiled with, and how it was called first."""

    fn: Callable[..., Any]
    settings: Mapping[str, Any]
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = None
    with_gradients: bool = False

    def note(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Keep the arguments, unless they are not the first."""
        if self.args is None:
            self.args, self.kwargs = args, dict(kwargs)
            self.with_gradients = torch.is_grad_enabled()


def run(console: Console, file: Path, arguments: Sequence[str], against: Sequence[str],
        rounds: int) -> int:
    """Run `file` as ``__main__``, then print a comparison for each function that it compiled and
    called; its exit status."""
    with _first_calls() as calls:
        status = program.run(file, arguments)
    called = [call for call in calls if call.args is not None]
    for call in called:
        _measure(console, call, against, rounds)
    if not called:
        console.print(Text(f"{file.name} called no function that weft.compile returned: there is "
                           "nothing to measure"))
    return status


def _measure(console: Console, call: FirstCall, against: Sequence[str], rounds: int) -> None:
    with torch.set_grad_enabled(call.with_gradients):
        result = call.fn(*(call.args or ()), **(call.kwargs or {}))
        console.print(weft.benchmark(
            call.fn, call.args, call.kwargs, against=against, rounds=rounds,
            backward=any(t.requires_grad for t in tensors(result)), **call.settings))


@contextmanager
def _first_calls() -> Iterator[list[FirstCall]]:
    """The first calls of all functions that are compiled in the block."""
    calls: list[FirstCall] = []
    compile = weft.compile

    def compile_and_note(model: Any = None, **settings: Any) -> object:
        if model is None:
            return functools.partial(compile_and_note, **settings)
        call = FirstCall(model, settings)
        calls.append(call)
        return _noting(compile(model, **settings), call)

    vars(weft)["compile"] = compile_and_note
    try:
        yield calls
    finally:
        vars(weft)["compile"] = compile


def _noting(compiled: Any, call: FirstCall) -> object:
    """The compiled function or module, which notes its first call."""
    if isinstance(compiled, torch.nn.Module):
        def before(
            module: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
        ) -> None:
            handle.remove()
            call.note(args, kwargs)

        handle = compiled.register_forward_pre_hook(before, with_kwargs=True)
        return compiled

    @functools.wraps(compiled)
    def noting(*args: Any, **kwargs: Any) -> object:
        call.note(args, kwargs)
        return compiled(*args, **kwargs)

    return noting
