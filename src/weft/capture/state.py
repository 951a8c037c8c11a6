"""Global torch state during capture: changed by the interpreted program, put back afterwards.

Place in the pipeline: beside the interpreter. The captured graph holds the calls that change the
state; while capturing they take effect too, so that fakes see what the program would see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, final

import torch

from weft._torch import (
    functorch,
    pop_saved_tensors_default_hooks,
    push_saved_tensors_default_hooks,
    set_grad_enabled,
    top_saved_tensors_default_hooks,
    torch_function_modes,
)
from weft.stances import error_mode, set_error_mode

_STATE: Final[tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...]] = (
    (torch.is_grad_enabled, set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
    (lambda: torch.is_autocast_enabled("cuda"), lambda on: torch.set_autocast_enabled("cuda", on)),
    (lambda: torch.get_autocast_dtype("cpu"), lambda d: torch.set_autocast_dtype("cpu", d)),
    (lambda: torch.get_autocast_dtype("cuda"), lambda d: torch.set_autocast_dtype("cuda", d)),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
)


def readable_modes() -> dict[str, str]:
    """The modes that guards compare as one word, by name, for messages."""
    cast = {f"autocast on {d}": str(torch.get_autocast_dtype(d)).removeprefix("torch.")
            if torch.is_autocast_enabled(d) else "off" for d in ("cpu", "cuda")}
    return {
        "gradient mode": "on" if torch.is_grad_enabled() else "off",
        "inference mode": "on" if torch.is_inference_mode_enabled() else "off",
        **cast,
        "default dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic algorithms":
            "on" if torch.are_deterministic_algorithms_enabled() else "off",
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "number of torch function modes": str(torch_function_modes()),
    }


@contextmanager
def no_saved_tensor_hooks() -> Iterator[None]:
    """Without the hooks of checkpointing and the like, which must not see fakes."""
    hooks = []
    while (hook := top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(hook)
        pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for hook in reversed(hooks):
            push_saved_tensors_default_hooks(*hook)


@final
class GlobalState:
    """The state when the capture began."""

    def __init__(self) -> None:
        self.before = tuple(read() for read, _ in _STATE)
        self.levels = functorch.get_dynamic_layer_stack_depth()
        self.error_mode = error_mode()

    @contextmanager
    def saved(self) -> Iterator[None]:
        """Puts the state back at the end of the block."""
        try:
            yield
        finally:
            self.restore()

    def restore(self) -> None:
        """Puts the state back: also for a replacement whose graph raised half-way."""
        set_error_mode(self.error_mode)
        if functorch.get_dynamic_layer_stack_depth() != self.levels:
            functorch.pop_dynamic_layer_stack_and_undo_to_depth(self.levels)
        for (read, write), value in zip(_STATE, self.before, strict=True):
            if read() != value:
                write(value)

    def grad_changed(self) -> bool:
        """Whether gradient mode now differs from when the capture began."""
        return bool(torch.is_grad_enabled() != self.before[0])

    def other_changed(self) -> bool:
        """Whether anything but gradient mode differs."""
        if functorch.get_dynamic_layer_stack_depth() != self.levels:
            return True
        return any(read() != old
                   for (read, _), old in zip(_STATE[1:], self.before[1:], strict=True))
