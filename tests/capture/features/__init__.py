"""Small programs, one for each feature of the language and its library: see test_features.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PROGRAMS: list[Callable[..., Any]] = []


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Registers a program: a function of a tensor and a small number."""
    PROGRAMS.append(function)
    return function
