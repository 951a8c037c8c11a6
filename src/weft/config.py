"""All settings of weft, typed, in one object.

Place in the pipeline: the bottom, beside `errors`; every stage reads `config.<name>` when it runs.

Each setting has a default, an environment variable `WEFT_<NAME>` read at import, and a scoped
override; unknown names and wrong types are errors::

    import weft
    weft.config.cache_size_limit = 16
    with weft.config.patch(cache_size_limit=2, strict=True):
        ...

Inside weft: ``from weft.config import config``. Settings with ``cache_key=True`` change what is
generated, so they are part of the disk cache's key (`config.cache_key()`).
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, final

from weft.errors import BadValue, UnknownOption, WeftWarning


def _knob(default: object, doc: str, *, group: str, cache_key: bool = False) -> Any:
    """A setting: its default, what it does, its group, and whether generated code depends on it."""
    return field(default=default, metadata={"doc": doc, "group": group, "cache_key": cache_key})


@final
@dataclass(slots=True)
class Config:
    """The settings. `weft.config.describe()` lists them with their values and meanings."""

    # -- capture ---------------------------------------------------------------------------------
    disable: bool = _knob(
        False, "Make weft.compile return its argument's eager behaviour everywhere.",
        group="capture")
    install: bool = _knob(
        False, "Make torch.compile weft's from the start of the process; later: weft.install().",
        group="capture")
    cache_size_limit: int = _knob(
        8, "Compiled variants kept per code object; further ones run eagerly after one warning.",
        group="capture")
    recompile_limit: int = _knob(
        256, "Recompiles of all code together that one weft.compile call may cause.",
        group="capture")
    automatic_dynamic: bool = _knob(
        True, "With dynamic=None, a size that changed makes its dimension symbolic on recompile.",
        group="capture")
    data_dependent: bool = _knob(
        True, "Keep sizes and numbers that depend on data (nonzero, masks, .item()) in the graph.",
        group="capture")
    error_on_graph_break: bool = _knob(
        False, "Raise GraphBreakError at a graph break; see also weft.error_on_graph_break.",
        group="capture")
    specialize_zero_one: bool = _knob(
        True, "Symbolic sizes are 2 or more; 0 and 1 are compiled for themselves. Off: one variant "
        "serves them too, where the program does not ask.", group="capture")
    repeat_calls: bool = _knob(
        True, "Calls that only repeat an earlier one, as those of equal layers do, are not "
        "interpreted again.", group="capture")
    inline_depth_limit: int = _knob(
        200, "Depth of inlined Python calls at which capture breaks the graph.", group="capture")
    step_limit: int = _knob(
        5_000_000, "Byte code instructions interpreted for one frame before capture gives up.",
        group="capture")

    # -- failures --------------------------------------------------------------------------------
    suppress_errors: bool = _knob(
        True, "An internal failure warns once, writes a report and runs eagerly.",
        group="failures")
    strict: bool = _knob(
        False, "Raise internal failures and run every verifier (weft's own tests).",
        group="failures")
    full_traceback: bool = _knob(
        False, "Tracebacks of errors that weft raises show its own frames, too.",
        group="failures")
    warn_untested_torch: bool = _knob(
        True, "Warn once if PyTorch is newer than the versions weft is tested with.",
        group="failures")
    report_dir: str = _knob(
        "", "Where failure reports are written; empty: <cache_dir>/reports.", group="failures")

    # -- numerics --------------------------------------------------------------------------------
    fallback_random: bool = _knob(
        False, "Attention with dropout takes eager's kernel also where another is faster; other "
        "random operators always call ATen, bit-equal to eager under one seed.", group="numerics")
    emulate_precision_casts: bool = _knob(
        False, "Round to the low-precision dtype after every operator, as eager does.",
        group="numerics", cache_key=True)

    check_numerics: bool = _knob(
        False, "Compare each call of a compiled graph with PyTorch's own run of that graph; "
        "NumericsError names the operators that differ. Slow: every call runs three times.",
        group="numerics")
    repro_after: str = _knob(
        "", "capture or aot: reduce graphs of that stage that fail to compile, or differ under "
        "check_numerics, and write a program that shows it to report_dir.", group="numerics")

    # -- passes ----------------------------------------------------------------------------------
    passes: tuple[str | Callable[[Any], Any], ...] = _knob(
        (), "Passes to run on each graph besides those that always run: names of registered passes "
        "and functions of a GraphModule that return None, a bool or a GraphModule.",
        group="passes", cache_key=True)

    # -- training --------------------------------------------------------------------------------
    activation_memory_budget: float = _knob(
        1.0, "Of the memory that a forward keeps for its backward, the part that may be used, 0 to "
        "1; less is bought by running operators again. 1 keeps at most what eager keeps.",
        group="training", cache_key=True)

    small_graphs_by_autograd: bool = _knob(
        True, "Run training graphs of one or two operators on few elements, and graphs of views, "
        "by PyTorch's own autograd nodes, which cost less than a compiled graph's.",
        group="training", cache_key=True)

    # -- code generation -------------------------------------------------------------------------
    cpp_compiler: str = _knob(
        "", "C++ compiler to use; empty: $CXX, then g++, then clang++.",
        group="codegen", cache_key=True)
    cpp_flags: str = _knob(
        "", "Flags added to the C++ command line.", group="codegen", cache_key=True)
    simd: str = _knob(
        "", "avx512, avx2 or portable; empty: what the machine has.",
        group="codegen", cache_key=True)
    max_fusion_size: int = _knob(
        64, "Operators in one kernel before scheduling stops fusing into it.",
        group="codegen", cache_key=True)
    max_fusion_buffers: int = _knob(
        32, "Tensors that one kernel reads and writes before scheduling stops fusing into it.",
        group="codegen", cache_key=True)
    max_autotune: bool = _knob(
        False, "Choose the library of each matrix product on CPUs by measuring at its own sizes "
        "(kept on disk). Off: one measurement decides for the machine.",
        group="codegen", cache_key=True)
    kept_forms_mb: int = _knob(
        256, "Memory (MiB, of the process) for forms of parameters that graphs without gradients "
        "keep between calls: packed for the CPU's library, or merged. A write makes them again. "
        "0: none.",
        group="codegen")
    freezing: bool = _knob(
        False, "Keep all forms of parameters, whatever memory they take. Unlike torch.compile's "
        "freezing, it sees later writes to parameters.", group="codegen")
    cudagraphs: bool = _knob(
        False, "Replay GPU work as CUDA graphs where that is safe.",
        group="codegen", cache_key=True)

    # -- compilation and cache -------------------------------------------------------------------
    cache_dir: str = _knob(
        "", "Disk cache, a folder that only you can write; empty: $XDG_CACHE_HOME/weft or "
        "~/.cache/weft.", group="cache")
    disk_cache: bool = _knob(
        True, "Keep compiled kernels on disk; off: a directory of this process only.",
        group="cache")
    store_entries: bool = _knob(
        False, "Keep compiled entries on disk, so that the next process does not compile them.",
        group="cache")
    verify_entries: bool = _knob(
        False, "Capture again what is loaded from disk, and compare.", group="cache")
    compile_on_rank: bool = _knob(
        True, "With store_entries and an initialised process group: one rank compiles, the others "
        "that run the same code wait for it and load.", group="cache")
    cache_remote: str = _knob(
        "", "A further cache, which others write, too: any address of fsspec (a folder, s3://…), "
        "read where the own one has nothing. Name only what you trust, because code is loaded from "
        "there; WEFT_CACHE_KEY signs it.", group="cache")
    cache_size_mb: int = _knob(
        4096, "Size at which the disk cache drops its least recently used files.", group="cache")
    compile_jobs: int = _knob(
        0, "Compiler processes at once; 0: the number of processors.", group="cache")

    # -- diagnostics -----------------------------------------------------------------------------
    logs: str = _knob(
        "", "Artifacts to log from the start, comma separated; later: weft.set_logs.",
        group="diagnostics")
    trace: bool = _knob(
        False, "Write every intermediate form and kernel to a folder below <cache_dir>/trace.",
        group="diagnostics")

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, _check(name, value))

    def __getattr__(self, name: str) -> Any:  # only reached for names that are no setting
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnknownOption(name, KNOBS)

    @contextmanager
    def patch(
        self, changes: Mapping[str, Any] | None = None, /, **named: object
    ) -> Iterator[Config]:
        """Set several settings for the duration of a ``with`` block (process-wide)."""
        wanted = {name: _check(name, v) for name, v in {**(changes or {}), **named}.items()}
        saved = {name: getattr(self, name) for name in wanted}
        try:
            for name, value in wanted.items():
                object.__setattr__(self, name, value)
            yield self
        finally:
            for name, value in saved.items():
                object.__setattr__(self, name, value)

    def cache_key(self) -> tuple[tuple[str, object], ...]:
        """The settings that generated code depends on."""
        return tuple((name, getattr(self, name)) for name in _CACHE_KEY_NAMES)

    def cache_path(self) -> Path:
        """Directory of the disk cache (not created here); raises OSError without a home."""
        if self.cache_dir:
            return _absolute(self.cache_dir)
        base = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(base):  # the XDG specification: such a path is ignored
            base = "~/.cache"
        return _absolute(base) / "weft"

    def report_path(self) -> Path | None:
        """Directory of failure reports that the settings name; None: in the cache folder."""
        return _absolute(self.report_dir) if self.report_dir else None

    @property
    def raise_internal_errors(self) -> bool:
        """Whether an internal failure is raised rather than turned into an eager run."""
        return self.strict or not self.suppress_errors

    def describe(self) -> str:
        """One line per setting: name, value, environment variable, meaning."""
        lines: list[str] = []
        group = None
        for name, knob in KNOBS.items():
            if knob.group != group:
                group = knob.group
                lines.append(f"[{group}]")
            key = " (in the cache key)" if knob.cache_key else ""
            lines.append(f"  {name} = {getattr(self, name)!r}: {knob.doc}{key} [{knob.env}]")
        return "\n".join(lines)


def _absolute(name: str) -> Path:
    """The folder of that name, with the home directory for ``~``."""
    expanded = os.path.expanduser(name)
    if expanded.startswith("~") or (name.startswith("~") and not os.path.isabs(expanded)):
        raise FileNotFoundError(errno.ENOENT, "there is no home directory", name)
    return Path(os.path.abspath(expanded))


@final
@dataclass(frozen=True, slots=True)
class Knob:
    """The description of one setting."""

    name: str
    type: type
    default: Any
    doc: str
    group: str
    cache_key: bool

    @property
    def env(self) -> str:
        return f"WEFT_{self.name.upper()}"


KNOBS: Final[Mapping[str, Knob]] = MappingProxyType({
    f.name: Knob(f.name, type(f.default), f.default, f.metadata["doc"], f.metadata["group"],
                 f.metadata["cache_key"])
    for f in fields(Config)
})
_CACHE_KEY_NAMES: Final = tuple(name for name, knob in KNOBS.items() if knob.cache_key)
_SECRET: Final = "WEFT_CACHE_KEY"
"""It signs files of caches (`runtime/sealing.py`), and is no setting: settings are printed."""
_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off", ""})


def _check(name: str, value: object) -> object:
    """`value`, if there is a setting `name` that accepts it; otherwise raises."""
    knob = KNOBS.get(name)
    if knob is None:
        raise UnknownOption(name, KNOBS)
    if knob.type is float and type(value) is int:
        value = float(value)
    if knob.type is tuple and type(value) is list:
        value = tuple(value)
    if type(value) is not knob.type:
        wanted = "a list" if knob.type is tuple else knob.type.__name__
        raise BadValue(f"setting {name!r} takes {wanted}, got {value!r}", do=knob.doc)
    if knob.type is tuple:
        _check_items(knob, value)
    if isinstance(value, int) and value < 0:
        raise BadValue(f"setting {name!r} cannot be negative, got {value!r}", do=knob.doc)
    if isinstance(value, float) and not 0 <= value <= 1:
        raise BadValue(f"setting {name!r} lies between 0 and 1, got {value!r}", do=knob.doc)
    return value


def _check_items(knob: Knob, values: Any) -> None:
    for item in values:
        if not (isinstance(item, str) or callable(item)):
            raise BadValue(f"setting {knob.name!r} takes names and functions, got {item!r}",
                           do=knob.doc)


def check_options(options: Mapping[str, object]) -> dict[str, object]:
    """`options` with every name and type checked; raises UnknownOption or BadValue."""
    return {name: _check(name, value) for name, value in options.items()}


def _parse(knob: Knob, text: str) -> object:
    """The value of a setting given as text in its environment variable."""
    if knob.type is bool:
        if text.lower() not in _TRUE | _FALSE:
            raise BadValue(f"{knob.env}={text!r} is neither true nor false", do="use 1 or 0")
        return text.lower() in _TRUE
    if knob.type is int:
        if not text.isdecimal():
            raise BadValue(f"{knob.env}={text!r} is not a whole number", do=knob.doc)
        return int(text)
    if knob.type is float:
        return _number(knob, text)
    if knob.type is tuple:
        return tuple(name for part in text.split(",") if (name := part.strip()))
    return text


def _number(knob: Knob, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadValue(f"{knob.env}={text!r} is not a number", do=knob.doc) from None


def _from_environment(environ: Mapping[str, str]) -> Config:
    """A Config with defaults, overridden by the environment."""
    settings = Config()
    known = {knob.env: knob for knob in KNOBS.values()}
    for name in environ:
        if name in known:
            setattr(settings, known[name].name, _parse(known[name], environ[name]))
        elif name.startswith("WEFT_") and name != _SECRET:
            near = get_close_matches(name.removeprefix("WEFT_").lower(), KNOBS, n=1)
            if near:
                warnings.warn(f"{name} is no setting of weft (did you mean {KNOBS[near[0]].env}?)",
                              WeftWarning, stacklevel=2)
    return settings


Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
"""What `mode=` may be."""

MODES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType({
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"max_autotune": True, "cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
})
"""What each `mode=` sets. CUDA graphs exist on GPUs only: on CPUs `reduce-overhead` equals
`default`, and `max-autotune` equals `max-autotune-no-cudagraphs`."""


@final
@dataclass(frozen=True, slots=True)
class CompileOptions:
    """One call's settings, checked: what `weft.compile` passes to capture.

    `overrides` are the settings that `mode=` and `options=` change; compilation for this call runs
    inside `with options.scope():`.
    """

    fullgraph: bool = False
    dynamic: bool | None = None
    mode: Mode | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None
    """None, what the user gave, or (once the function is known) a `dims.DynamicShapes`."""

    def scope(self) -> AbstractContextManager[Any]:
        """Apply the overrides for the duration of a ``with`` block."""
        return config.patch(self.overrides) if self.overrides else nullcontext()


config: Final[Config] = _from_environment(os.environ)
"""The settings of this process."""
