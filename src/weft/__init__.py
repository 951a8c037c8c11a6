"""weft: a just-in-time compiler for PyTorch programs.

``weft.compile(f)`` returns ``f``, faster::

    import torch, weft

    @weft.compile
    def f(x):
        return x.relu() + x.sigmoid()

    f(torch.randn(1000))

The folders are the pipeline: `capture` → `aot` → `passes` → `codegen` → `runtime`; `docs/
architecture.md` is the map. Importing weft is quick: each name below is imported at first use
(`__init__.pyi` says their types).
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

from weft import errors, torch_version, uncompiled
from weft.config import config
from weft.version import __version__

_HOMES: Final[dict[str, tuple[str, ...]]] = {
    "weft.api": (
        "compile", "compile_inplace", "explain", "optimize", "reset", "stats", "uncompile_inplace"),
    "weft.backends": ("list_backends", "register_backend"),
    "weft.backends.inductor": ("compile_fx",),
    "weft.benchmarking": ("benchmark",),
    "weft.diagnostics.logs": ("set_logs",),
    "weft.dims": ("Dim",),
    "weft.installation": ("install", "uninstall"),
    "weft.passes": (
        "register_pass", "register_pattern", "unregister_pass", "unregister_pattern"),
    "weft.markers": (
        "allow_in_graph", "disable", "is_compiling", "mark_dynamic", "mark_static",
        "mark_unbacked"),
    "weft.stances": ("error_on_graph_break", "set_stance"),
}
_HOME: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Dim", "__version__", "allow_in_graph", "benchmark", "compile", "compile_fx", "compile_inplace",
    "config", "disable", "error_on_graph_break", "errors", "explain", "install", "is_compiling",
    "list_backends", "mark_dynamic", "mark_static", "mark_unbacked", "optimize", "register_backend",
    "register_pass", "register_pattern", "reset", "set_logs", "set_stance", "stats",
    "uncompile_inplace", "uninstall", "unregister_pass", "unregister_pattern",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(
            f"module 'weft' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    try:
        value = getattr(import_module(home), name)
    except (ImportError, AttributeError, KeyError) as error:
        value = uncompiled.stand_in(name, error)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


torch_version.refuse_older()
if config.install:
    __getattr__("install")()
if config.logs:
    import_module("weft.diagnostics.logs").set_logs_from_text(config.logs)
