"""Handles of hooks, which capture makes without their counter."""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.hooks import RemovableHandle


def next_handle() -> int:
    """The number of a new handle; advances the counter."""
    number: int = RemovableHandle.next_id
    RemovableHandle.next_id += 1
    return number


def init_handle(self: Any, hooks_dict: Any, *, extra_dict: Any = None) -> None:
    """RemovableHandle.__init__"""
    extra = [] if extra_dict is None else extra_dict
    self.hooks_dict_ref = weakref.ref(hooks_dict)
    self.id = next_handle()
    self.extra_dict_ref = tuple(
        weakref.ref(hooks) for hooks in ([extra] if isinstance(extra, dict) else extra))
