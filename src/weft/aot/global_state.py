"""Global state while a graph is captured or run, for running it again under the same state.

    autocast, random = AutocastState.current(), RandomState.of({torch.device("cpu")})
    with autocast, random.replayed():
        gm(*inputs)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from functools import cache
from typing import Any, Final, final

import torch

from weft._torch import (
    DisableAutocast,
    exit_dual_level,
    functorch,
    is_any_autocast_enabled,
    pop_saved_tensors_default_hooks,
    top_saved_tensors_default_hooks,
)
from weft.graph_call import GraphCall
from weft.storable import storable

Boxed = Callable[[list[Any]], Sequence[Any]]
_DEVICES = ("cpu", "cuda")


@final
class AutocastState:
    """Autocast settings of all devices; a reusable context manager."""

    def __init__(self, settings: dict[str, tuple[bool, torch.dtype]]) -> None:
        self.settings = settings
        self._stacks: list[ExitStack] = []

    def remade(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The settings, without those that are entered."""
        return AutocastState, (self.settings,)

    @staticmethod
    def current() -> AutocastState:
        """The current settings."""
        return AutocastState(
            {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES}
        )

    def __enter__(self) -> AutocastState:
        stack = ExitStack()
        for device, (enabled, dtype) in self.settings.items():
            if (enabled, dtype) != (
                torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
            ):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
        self._stacks.append(stack)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stacks.pop().__exit__(*error)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default dtype inside the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def preserve_modes() -> Iterator[None]:
    """Restore gradient mode and autocast at the end of the block."""
    before = AutocastState.current()
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        try:
            yield
        finally:
            for device, (enabled, dtype) in before.settings.items():
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)


_LEAVE: Final = {
    functorch.TransformType.Vmap: functorch._vmap_decrement_nesting,
    functorch.TransformType.Grad: functorch._grad_decrement_nesting,
    functorch.TransformType.Jvp: functorch._jvp_decrement_nesting,
    functorch.TransformType.Functionalize: functorch._func_decrement_nesting,
}
"""Functions that leave the innermost level of torch.func, by its kind."""


def leave_levels(depth: int) -> None:
    """Leave the levels of torch.func above `depth`."""
    while functorch.get_dynamic_layer_stack_depth() > depth:
        _LEAVE[functorch.peek_interpreter_stack().key()]()


@contextmanager
def preserve_levels() -> Iterator[None]:
    """Leave the levels of torch.func and torch.autograd.forward_ad entered in the block, and remove
    saved-tensor hooks installed in it, if it raises."""
    depth = functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    except BaseException:
        leave_levels(depth)
        with suppress(RuntimeError):  # that level is not active
            exit_dual_level(level=0)
        while top_saved_tensors_default_hooks(True) is not None:
            pop_saved_tensors_default_hooks()
        raise


def no_autocast() -> AbstractContextManager[Any]:
    """Turn autocast off inside the block: compiled graphs have casts of their own."""
    return DisableAutocast() if is_any_autocast_enabled() else nullcontext()


@storable
def without_autocast(graph: GraphCall) -> Boxed:
    """The call of a compiled graph that has its own casts, with the current autocast turned off.

    Guards make sure that its callers have the same autocast state.
    """
    call: Boxed = graph.call
    if not is_any_autocast_enabled():
        return call

    def uncast(inputs: list[Any]) -> Sequence[object]:
        with DisableAutocast():
            return call(inputs)

    return uncast


@final
class RandomState:
    """The states of the generators that a graph draws from."""

    def __init__(self, cpu: torch.Tensor | None, cuda: dict[int, torch.Tensor]) -> None:
        self.cpu = cpu
        self.cuda = cuda

    @staticmethod
    def of(devices: frozenset[torch.device]) -> RandomState:
        """The current states of the devices' generators."""
        draws_on_cpu, gpus = _generators(devices)
        cpu = torch.get_rng_state() if draws_on_cpu else None
        cuda = {_index(d) for d in gpus} if gpus else ()
        return RandomState(cpu, {i: torch.cuda.get_rng_state(i) for i in cuda})

    def restore(self) -> None:
        """Set the generators back to these states."""
        if self.cpu is not None:
            torch.set_rng_state(self.cpu)
        for index, state in self.cuda.items():
            torch.cuda.set_rng_state(state, index)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Set these states inside the block, and the previous ones after it."""
        with torch.random.fork_rng(devices=list(self.cuda)):
            self.restore()
            yield


@contextmanager
def preserve_generator() -> Iterator[None]:
    """Restore the CPU generator's state at the end of the block."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


@cache
def _generators(devices: frozenset[torch.device]) -> tuple[bool, tuple[torch.device, ...]]:
    """Whether the CPU is one of them, and the GPUs. Asking each device at each call took ten times
    as long as reading the CPU's state."""
    gpus = tuple(d for d in devices if d.type == "cuda")
    return any(d.type == "cpu" for d in devices), gpus


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
