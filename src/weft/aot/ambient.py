"""Global state under which a graph was captured, for running it again under the same.

    state = AutocastState.current()
    with state:
        gm(*inputs)
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, final

import torch

_DEVICES = ("cpu", "cuda")


@final
class AutocastState:
    """Autocast settings of all devices; a reusable context manager."""

    def __init__(self, settings: dict[str, tuple[bool, torch.dtype]]) -> None:
        self.settings = settings
        self._stacks: list[ExitStack] = []

    @staticmethod
    def current() -> AutocastState:
        """The state now."""
        return AutocastState(
            {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES}
        )

    def __enter__(self) -> AutocastState:
        stack = ExitStack()
        for device, (enabled, dtype) in self.settings.items():
            if enabled != torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
        self._stacks.append(stack)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stacks.pop().__exit__(*error)
