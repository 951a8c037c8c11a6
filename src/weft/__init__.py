"""weft: a just-in-time compiler for PyTorch programs.

``weft.compile(f)`` returns ``f``, faster::

    import torch, weft

    @weft.compile
    def f(x):
        return x.relu() + x.sigmoid()

    f(torch.randn(1000))

The folders are the pipeline: `capture` → `aot` → `passes` → `codegen` → `runtime`; `docs/
architecture.md` is the map. Importing weft is quick: each name below is imported at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from weft import errors
from weft.config import config
from weft.version import __version__

if TYPE_CHECKING:
    from weft.api import compile



_LAZY: Final[dict[str, str]] = {
    "compile": "weft.api",
}

__all__ = ["__version__", "compile", "config", "errors"]


def __getattr__(name: str) -> Any:
    home = _LAZY.get(name)
    if home is None:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
