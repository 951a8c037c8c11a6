"""`weft.benchmark`: measures a function compiled by weft against eager and others.

Place in the pipeline: above `api`; what `weft bench`, `weft demo` and the examples print::

    print(weft.benchmark(model, (x,)))                          # weft against eager
    print(weft.benchmark(f, (x, y), against=("eager", "torch.compile"), backward=True))

Each contender is called once (the first call compiles), then all of them in turn, so that drift of
the machine cancels; GPUs are waited for. Memory is the most that PyTorch's allocator gives out
during a call, and the error is the largest one against the same program in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from types import MethodType
from typing import Any, Final, final

import torch

from weft import api, capture
from weft._torch import tree_map
from weft.backends.torch_adapter import compiled_by_torch
from weft.diagnostics.accuracy import as_float64, relative_error, tensors
from weft.diagnostics.comparison import Comparison, Measurement
from weft.diagnostics.memory import peak_memory
from weft.diagnostics.timing import Thunk, Timing, interleaved, waiter
from weft.errors import BadValue, NotCallable, UnknownContender
from weft.module import CompiledModule
from weft.torch_marks import unmarked

Contender = str | Callable[..., Any]
Prepare = Callable[[Any], Callable[..., Any]]


def _itself(fn: Callable[..., object]) -> Callable[..., object]:
    return fn


_KNOWN: Final[dict[str, Prepare]] = {
    "eager": _itself,
    "torch.compile": compiled_by_torch,
}
_SAME: Final = 1e-6
"""The largest relative difference between two results of a program that computes the same."""


def benchmark(
    fn: Callable[..., object], args: object = (), kwargs: Mapping[str, object] | None = None, *,
    against: Sequence[Contender] = ("eager",), backward: bool = False, rounds: int = 20,
    seconds: float = 10.0, **settings: Any,
) -> Comparison:
    """Measure ``fn(*args, **kwargs)``, compiled by weft anew, against other ways to run it.

    args: the positional arguments (a single one needs no tuple).
    against: "eager", "torch.compile" (imported only if it is named), and callables that take the
        same arguments.
    backward: a call is the forward and the backward, for fixed gradients of the results.
    rounds, seconds: how often each is measured, and the time after which no round begins.
    settings: those of `weft.compile`.

    Calls run in the caller's grad mode. Buffers of a module and the random state are put back;
    other changes that calls make (counters, optimizers' steps) stay. First calls use the caches of
    the machine as they are. Returns a `Comparison`: `print` it, or take `.to_dict()`. A contender
    that fails has its error in its row; weft's error is raised.
    """
    own_args, own_kwargs = tree_map(_without_history, (_as_tuple(args), dict(kwargs or {})))
    program = _Program(_original(fn), own_args, own_kwargs)
    contenders = {"weft": lambda f: api.compile(f, **settings), **_contenders(against)}
    with _put_back(program.fn), capture.alone():
        expected = program.call(program.fn)
        if backward:
            program.differentiate(expected)
        device = _device_of((program.args, program.kwargs, tensors(expected)))
        return _measured(program, contenders, device, rounds, seconds)


def _original(fn: object) -> Any:
    """The function or module behind a compiled one."""
    if not callable(fn):
        raise NotCallable(fn, "weft.benchmark")
    fn = capture.original_function(unmarked(fn))
    if isinstance(fn, MethodType):
        return MethodType(capture.original_function(fn.__func__), fn.__self__)
    return fn._orig_mod if isinstance(fn, CompiledModule) else fn


def _as_tuple(args: object) -> tuple[object, ...]:
    return tuple(args) if isinstance(args, tuple | list) else (args,)


def _contenders(against: Sequence[Contender]) -> dict[str, Prepare]:
    """By name, how each contender is made of the program."""
    if isinstance(against, str):
        against = (against,)
    prepared: dict[str, Prepare] = {}
    for contender in against:
        if isinstance(contender, str):
            if contender not in _KNOWN:
                raise UnknownContender(contender, _KNOWN)
            prepared[contender] = _KNOWN[contender]
        elif callable(contender):
            name = getattr(contender, "__qualname__", type(contender).__name__)
            prepared[name] = partial(_always, contender)
        else:
            raise BadValue("against= takes names and callables, "
                           f"got {type(contender).__name__}")
    return prepared


def _always(contender: Callable[..., object], fn: object) -> Callable[..., object]:
    return contender


@final
@dataclass(slots=True)
class _Program:
    """A call, and what its backward starts from and leads to."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor] = field(default_factory=list)

    def call(self, fn: Callable[..., object]) -> Any:
        """The forward with `fn`."""
        return fn(*self.args, **self.kwargs)

    def differentiate(self, result: object) -> None:
        """Make later calls run the backward of such results too, to all leaves that they depend
        on."""
        self.leaves = _leaves_of(_differentiable(result))
        if not self.leaves:
            raise BadValue("backward=True, and no result of the call requires gradients",
                           do="let parameters or arguments require them, and leave no_grad()")
        self.gradients = [torch.randn_like(t) if t.dim() else torch.ones_like(t)
                          for t in _differentiable(result)]

    def bind(self, fn: Callable[..., object]) -> Thunk:
        """The measured call with `fn`: its results, and the gradients."""
        return self.step_of(fn) if self.leaves else lambda: self.call(fn)

    def step_of(self, fn: Callable[..., object]) -> Thunk:
        def step() -> Any:
            result = self.call(fn)
            gradients = torch.autograd.grad(
                _differentiable(result), self.leaves, self.gradients, allow_unused=True)
            return [*tensors(result), *(g for g in gradients if g is not None)]

        return step

    def with_own_arguments(self) -> _Program:
        """The same call with copies of the tensors that it may write to."""
        args, kwargs = tree_map(_own, (self.args, self.kwargs))
        return _Program(self.fn, args, kwargs, self.leaves, self.gradients)

    def in_float64(self) -> _Program:
        """The same call with float64 parameters and arguments."""
        fn, args, kwargs = as_float64((self.fn, self.args, self.kwargs))
        wide = _Program(fn, args, kwargs)
        if self.leaves:
            wide.leaves = _leaves_of(_differentiable(wide.call(fn)))
            wide.gradients = [as_float64(g) for g in self.gradients]
        return wide


def _without_history(leaf: object) -> object:
    """Arguments that were computed before: backwards end at them."""
    if isinstance(leaf, torch.Tensor) and not leaf.is_leaf:
        return leaf.detach().requires_grad_()
    return leaf


def _own(leaf: Any) -> Any:
    written = isinstance(leaf, torch.Tensor) and not leaf.requires_grad
    return leaf.clone() if written else leaf


def _differentiable(result: object) -> list[torch.Tensor]:
    return [t for t in tensors(result) if t.requires_grad]


def _leaves_of(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors without history that the results were computed from, in a fixed order."""
    leaves: dict[int, torch.Tensor] = {id(t): t for t in results if t.is_leaf}
    todo: list[Any] = [t.grad_fn for t in reversed(results) if t.grad_fn is not None]
    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:  # a node that accumulates
            leaves[id(leaf)] = leaf
        todo += [following for following, _ in reversed(node.next_functions) if following]
    return list(leaves.values())


def _device_of(values: object) -> str:
    """"cuda" if there is a tensor on a GPU among the arguments or results."""
    devices = {t.device.type for t in tensors(values)}
    return "cuda" if "cuda" in devices else "cpu"


@contextmanager
def _put_back(fn: object) -> Iterator[None]:
    """Restore a module's buffers, and the random state, after the block."""
    owner = fn.__self__ if isinstance(fn, MethodType) else fn
    buffers = list(owner.buffers()) if isinstance(owner, torch.nn.Module) else []
    saved = [(buffer, buffer.clone()) for buffer in buffers]
    gpus = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(gpus):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)


def _measured(
    program: _Program, contenders: Mapping[str, Prepare], device: str, rounds: int, seconds: float
) -> Comparison:
    """First calls, errors, memory, then times."""
    calls: dict[str, Callable[..., Any]] = {}
    first: dict[str, float] = {}
    failures: dict[str, str] = {}
    for name, prepare in contenders.items():
        try:
            calls[name], first[name] = _first_call(program, prepare, waiter(device))
        except Exception as error:
            if name == "weft":
                raise
            failures[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    errors, reference = _errors(program, calls)
    steps = {name: program.bind(fn) for name, fn in calls.items()}
    memory = {name: peak_memory(step, device) for name, step in steps.items()}
    times = interleaved(steps, device=device, rounds=rounds, budget_seconds=seconds)
    rows = [
        Measurement(name, first.get(name), times.get(name, Timing(())), memory.get(name),
                    errors.get(name), failures.get(name, ""))
        for name in contenders
    ]
    name = getattr(program.fn, "__qualname__", type(program.fn).__name__)
    return Comparison(name, device, tuple(rows), reference, backward=bool(program.leaves))


def _first_call(
    program: _Program, prepare: Prepare, wait: Callable[[], None]
) -> tuple[Callable[..., object], float]:
    """A contender that was called once, and how many seconds making and calling it took."""
    wait()
    start = perf_counter()
    fn = prepare(program.fn)
    program.bind(fn)()
    wait()
    return fn, perf_counter() - start


def _errors(
    program: _Program, calls: Mapping[str, Callable[..., object]]
) -> tuple[dict[str, float], str]:
    """Each contender's largest error, and what it is measured against; nothing for a program that
    computes something else at each call."""
    expected, reference = _reference(program)
    if expected is None:
        return {}, reference
    errors: dict[str, float] = {}
    for name, fn in calls.items():
        actual = _results(program.with_own_arguments(), fn)
        if len(actual) == len(expected):
            errors[name] = relative_error(actual, expected)
    return errors, reference


def _reference(program: _Program) -> tuple[list[torch.Tensor] | None, str]:
    """The expected results, and what they are: of float64 where all operators have it."""
    try:
        wide = program.in_float64()
        expected, again = (_results(wide.with_own_arguments(), wide.fn, seed) for seed in (0, 1))
        reference = "float64"
    except Exception:  # noqa: BLE001  what has no float64 form is the program's business
        expected, again = (_results(program.with_own_arguments(), program.fn, seed)
                           for seed in (0, 1))
        reference = "eager"
    if len(expected) != len(again) or relative_error(again, expected) > _SAME:
        return None, "nothing: the results change from call to call"
    return expected, reference


def _results(program: _Program, fn: Callable[..., object], seed: int = 0) -> list[torch.Tensor]:
    """Results and gradients, from the same random numbers each time."""
    torch.manual_seed(seed)
    return [t.detach().clone() for t in tensors(program.bind(fn)())]
