"""Global torch state during capture: the interpreted program changes it, and capture restores it.

Place in the pipeline: beside the interpreter. The captured graph holds the calls that change the
state. They take effect while capturing too, so that fakes see the state that the program sees.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, final

import torch

from weft._torch import (
    InferenceMode,
    exit_dual_level,
    fp32_precision,
    functorch,
    pop_saved_tensors_default_hooks,
    push_saved_tensors_default_hooks,
    set_grad_enabled,
    top_saved_tensors_default_hooks,
    torch_function_modes,
)
from weft.aot.global_state import leave_levels
from weft.stances import error_mode, set_error_mode
from weft.storable import storable

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""A call that changes the state."""


@storable
@final
@dataclass(frozen=True, slots=True)
class Mode:
    """One part of the state; `write(*where, value)` sets it."""

    read: Callable[..., Any]
    write: Callable[..., Any]
    where: tuple[Any, ...] = ()

    def now(self) -> Any:
        return self.read(*self.where)


_MODES: Final = (
    Mode(torch.is_grad_enabled, set_grad_enabled),
    Mode(torch.get_default_dtype, torch.set_default_dtype),
    *(mode
      for device in ("cpu", "cuda")
      for mode in (
          Mode(torch.is_autocast_enabled, torch.set_autocast_enabled, (device,)),
          Mode(torch.get_autocast_dtype, torch.set_autocast_dtype, (device,)))),
    Mode(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
)


def _autocast_nesting() -> int:
    """How many autocast blocks are open; leaving the last one clears the cache of cast weights."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())


def _nest(more: int) -> list[Step]:
    step = torch.autocast_increment_nesting if more > 0 else torch.autocast_decrement_nesting
    return [(step, ())] * abs(more)


def _matmul_precision() -> str:
    """The precision of float32 products; where backends differ, each with its own."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # the program has set one for one backend
        return ", ".join(f"{name} {fp32_precision(name, 'matmul')}" for name in ("cuda", "mkldnn"))


def readable_modes() -> dict[str, str]:
    """The modes that guards compare in one word, by name, for messages."""
    cast = {f"autocast on {d}": str(torch.get_autocast_dtype(d)).removeprefix("torch.")
            if torch.is_autocast_enabled(d) else "off" for d in ("cpu", "cuda")}
    return {
        "gradient mode": "on" if torch.is_grad_enabled() else "off",
        "inference mode": "on" if torch.is_inference_mode_enabled() else "off",
        **cast,
        "default dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "deterministic algorithms":
            "on" if torch.are_deterministic_algorithms_enabled() else "off",
        "float32 matmul precision": _matmul_precision(),
        "number of torch function modes": str(torch_function_modes()),
    }


@contextmanager
def no_saved_tensor_hooks() -> Iterator[None]:
    """Deactivate saved-tensor hooks (of checkpointing and the like), which must not see fakes."""
    hooks = []
    while (hook := top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(hook)
        pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for hook in reversed(hooks):
            push_saved_tensors_default_hooks(*hook)


@storable
@final
class GlobalState:
    """The state when the capture began, and how to return to it."""

    def __init__(self) -> None:
        self.before = tuple(mode.now() for mode in _MODES)
        self.nesting = _autocast_nesting()
        self.settings: dict[Mode, Any] = {}
        """Library settings that the program used, with their values at the start."""
        self.levels = functorch.get_dynamic_layer_stack_depth()
        self.error_mode = error_mode()
        self.inference: list[Any] = []
        """Open inference modes of the program, innermost last."""
        self.saved_tensor_hooks: list[Callable[[], None]] = []
        """What installs the saved-tensor hooks that the program has installed and not removed: they
        are not active while capturing."""
        self._all_hooks: list[Any] = []
        """All pairs of hooks that it has installed."""
        self.dual_levels: list[int] = []
        """Levels of torch.autograd.forward_ad that the program has entered."""

    def note(self, mode: Mode) -> bool:
        """Record a setting that the program reads or sets; True if this is the first time."""
        if mode in self.settings:
            return False
        self.settings[mode] = mode.now()
        return True

    def at_start(self, read: Callable[..., object], where: tuple[object, ...]) -> object:
        """What `read(*where)` gave when the capture began, for modes that the program may have
        changed since; for others, what it gives now."""
        known = zip(_MODES, self.before, strict=True)
        return next((before for mode, before in known if (mode.read, mode.where) == (read, where)),
                    read(*where))

    @contextmanager
    def saved(self) -> Iterator[None]:
        """Restore the state at the end of the block."""
        try:
            yield
        finally:
            self.restore()

    def restore(self) -> None:
        """Restore the state; replacements call it too, if their graph raises."""
        set_error_mode(self.error_mode)
        self._remove_hooks()
        while self.inference:
            self.leave_inference()
        while self.dual_levels:
            exit_dual_level(level=self.dual_levels.pop())
        leave_levels(self.levels)
        for function, args in self.changes()[0]:
            function(*args)

    def _remove_hooks(self) -> None:
        """Remove the program's saved-tensor hooks, which are installed if a graph has raised."""
        self.saved_tensor_hooks.clear()
        while top_saved_tensors_default_hooks(True) in self._all_hooks:
            pop_saved_tensors_default_hooks()

    def install_hooks(self, hooks: tuple[Any, Any]) -> Callable[[], None]:
        """Note that the program installs saved-tensor hooks; what does it when the graph runs."""

        def push_hooks() -> None:
            push_saved_tensors_default_hooks(*hooks)

        self._all_hooks.append(hooks)
        self.saved_tensor_hooks.append(push_hooks)
        return push_hooks

    def enter_inference(self, mode: bool) -> None:
        """Turn inference mode on or off."""
        region = InferenceMode(mode)
        region.__enter__()
        self.inference.append(region)

    def leave_inference(self) -> None:
        """Undo the last `enter_inference`."""
        self.inference.pop().__exit__(None, None, None)

    def changes(self) -> tuple[list[Step], list[Step]]:
        """Calls that restore the modes, and calls that set them to their current values again."""
        undo: list[Step] = []
        redo: list[Step] = []
        known = zip(_MODES, self.before, strict=True)
        for mode, before in itertools.chain(known, self.settings.items()):
            now = mode.now()
            if now != before:
                undo.append((mode.write, (*mode.where, before)))
                redo.append((mode.write, (*mode.where, now)))
        deeper = _autocast_nesting() - self.nesting
        hooks = self.saved_tensor_hooks
        return (undo + _nest(-deeper) + [(pop_saved_tensors_default_hooks, ())] * len(hooks),
                redo + _nest(deeper) + [(push, ()) for push in hooks])

    def snapshot(self) -> tuple[object, ...]:
        """All that is known of the state now, to compare it with that of another moment."""
        modes = itertools.chain(_MODES, self.settings)
        return (*(mode.now() for mode in modes), _autocast_nesting(), error_mode(),
                functorch.get_dynamic_layer_stack_depth(), len(self.inference),
                len(self.saved_tensor_hooks), len(self._all_hooks), len(self.dual_levels))

    def levels_changed(self) -> bool:
        """Whether a functorch transform or a level of forward_ad was entered or left."""
        return bool(self.dual_levels) or functorch.get_dynamic_layer_stack_depth() != self.levels
