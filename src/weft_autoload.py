"""Installs weft at the start of a process if ``WEFT_INSTALL=1`` asks for it.

PyTorch calls `install_if_asked` at the end of ``import torch`` (entry point group
``torch.backends``), so that a program need not be changed::

    WEFT_INSTALL=1 accelerate launch train.py

It is a module of its own so that processes that do not ask for weft do not import it. Those that
do need no more than that: ``import weft`` installs it.
"""

from __future__ import annotations

import os
from importlib import import_module

_TRUE = ("1", "true", "yes", "on")


def install_if_asked() -> None:
    """Make torch.compile weft's if the environment asks for it."""
    if os.environ.get("WEFT_INSTALL", "").lower() in _TRUE:
        import_module("weft")
