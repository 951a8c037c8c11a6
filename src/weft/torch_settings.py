"""What the modes and options of torch.compile mean in weft.

Place in the pipeline: above `config`; `weft.install` and the backend that torch.compile calls
(`backends/torch_compile.py`) translate their arguments here::

    settings_of("max-autotune", None)                   {"max_autotune": True, "cudagraphs": True}
    settings_of(None, {"triton.cudagraphs": True})      {"cudagraphs": True}
    settings_of(None, {"epilogue_fusion": True})        {}, and a note, once: weft fuses by itself
    settings_of(None, {"epilog_fusion": True})          UnknownTorchOption: did you mean ...?

An option is Inductor's, or a setting of weft itself. The names of those that have no counterpart
are read from Inductor's source; nothing of it is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch

from weft.config import KNOBS, MODES, check_options
from weft.diagnostics import events
from weft.errors import BadValue, TorchOptionWarning, UnknownMode, UnknownTorchOption, warn

Settings = dict[str, Any]

GUARD_FILTER: Final = "guard_filter_fn"
"""The option of torch.compile that drops guards."""

_LITE: Final = "lite"
_MODES: Final = (*MODES, _LITE)


def _same(name: str) -> Callable[[Any], Settings]:
    return lambda value: {name: value}


def _vectors(bits: object) -> Settings:
    names = {None: "", 512: "avx512", 256: "avx2", 0: "portable", 1: "portable"}
    return {"simd": names[bits]} if bits in names else {}


def _compiler(command: Any) -> Settings:
    """Inductor takes a command, or several to be tried."""
    commands = [command] if isinstance(command, str) else [c for c in command or () if c]
    return {"cpp_compiler": commands[0]} if commands else {}


_SETTINGS: Final[Mapping[str, Callable[[Any], Settings]]] = MappingProxyType({
    "compile_threads": _same("compile_jobs"),
    "cpp.cxx": _compiler,
    "cpp.simdlen": _vectors,
    "force_disable_caches": lambda value: {"disk_cache": not value},
    "fx_graph_cache": _same("disk_cache"),
    "max_autotune_gemm": _same("max_autotune"),
    "trace.enabled": _same("trace"),
    "triton.cudagraphs": _same("cudagraphs"),
})
"""Inductor's options that mean a setting of weft (those of one name are not listed)."""

_OWN_CHOICE: Final = "weft's code generator decides this by itself"
_NOTES: Final[Mapping[str, str]] = MappingProxyType({
    "aot_inductor": "weft compiles just in time only",
    "coordinate_descent_tuning": "weft chooses the sizes of its kernels by a model, and measures "
                                 "nothing but libraries",
    "cpp_wrapper": "weft's calls of kernels are in C already",
    "debug": 'WEFT_LOGS and weft.explain show what was compiled',
    "deterministic": "weft's kernels give the same bits in each run; torch.use_deterministic_"
                     "algorithms chooses the operators that ATen runs",
    "epilogue_fusion": "weft fuses what follows a product where it wins",
    "joint_custom": "the pass does not run: weft.register_pass adds passes to weft",
    "nan_asserts": "WEFT_CHECK_NUMERICS=1 compares each graph with eager",
    "post_grad_custom": "the pass does not run: weft.register_pass adds passes to weft",
    "pre_grad_custom": "the pass does not run: weft.register_pass adds passes to weft",
    "profile": "weft.explain and torch.profiler show what ran",
    "shape_padding": "weft pads no matrices",
    "trace": "WEFT_TRACE=1 writes every intermediate form to a folder",
    "use_aoti": "weft compiles just in time only",
})
"""What weft does instead, by the beginning of the option's name."""

_noted: set[str] = set()


def settings_of(mode: str | None, options: Mapping[str, object] | None) -> Settings:
    """The settings of weft for a mode and options of torch.compile.

    Raises UnknownMode, UnknownTorchOption, or BadValue for a value of the wrong type.
    """
    if mode is not None and mode not in _MODES:
        raise UnknownMode(mode, _MODES)
    if options is not None and not isinstance(options, Mapping):
        raise BadValue(f"options must be a dict, got {type(options).__name__}")
    if mode == _LITE:
        note("mode='lite'", "weft has no such mode and compiles as always")
        mode = None
    settings = dict(MODES[mode or "default"])
    for name, value in (options or {}).items():
        settings.update(_setting_of(name.replace("-", "_"), value))
    return check_options(settings)


def _setting_of(name: str, value: object) -> Settings:
    if name == GUARD_FILTER:
        keep_guards(value)
        return {}
    if name in _SETTINGS:
        return _SETTINGS[name](value)
    if name in KNOBS:
        return {name: value}
    if name not in _inductors_options():
        raise UnknownTorchOption(name, [*KNOBS, *_inductors_options()])
    note(f"the option {name!r}", _note_of(name))
    return {}


def _note_of(name: str) -> str:
    fitting = [start for start in _NOTES if name.startswith(start)]
    return _NOTES[max(fitting, key=len)] if fitting else _OWN_CHOICE


def keep_guards(filter: object) -> None:
    """Accept a filter of guards (`torch.compiler.skip_guard_on_...`), which would give up checks:
    weft keeps them all."""
    if not callable(filter):
        raise BadValue(f"{GUARD_FILTER} is a function of guards, got {filter!r}")
    name = getattr(filter, "__qualname__", type(filter).__name__)
    note(f"the option {GUARD_FILTER!r} ({name})",
         "no guard is given up, each call checks all of them, in C")


def note(what: str, instead: str) -> None:
    """Say once that an argument of torch.compile has no counterpart, and what weft does; `explain`
    shows it each time."""
    events.record("ignored", what=what, instead=instead)
    if what not in _noted:
        _noted.add(what)
        warn(TorchOptionWarning, f"{what} of torch.compile has no effect in weft: {instead}")


@cache
def _inductors_options() -> frozenset[str]:
    """The names that Inductor's settings have in this PyTorch."""
    source = Path(torch.__file__).parent / "_inductor" / "config.py"
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return frozenset(_NOTES)
    return frozenset({*_names_in(tree), "use_aoti"})


def _names_in(body: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    """The settings that a module assigns, and those of its classes (``triton.cudagraphs``)."""
    for statement in body.body:
        if isinstance(statement, ast.ClassDef):
            yield from _names_in(statement, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield prefix + statement.target.id
        elif isinstance(statement, ast.Assign):
            yield from (prefix + t.id for t in statement.targets if isinstance(t, ast.Name))
