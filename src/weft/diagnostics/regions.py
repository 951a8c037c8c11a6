"""Named regions in profiles: one for each call of a compiled graph, one for each kernel.

Place in the pipeline: capture and the code generator say here how profiles should name what they
made. Nothing of it costs anything at a call: the generated functions keep their callables in a
variable, and only while a profiler runs (torch.profiler, or NVTX through `emit_nvtx`), that
variable holds a `Region` around the callable instead::

    weft: forward (model.py:12) graph 0              the compiled call
      weft: forward (model.py:12) graph 0 (autograd)     its autograd node, if there is one
        k0_relu_add (model.py:14,15)                         a kernel, and the lines it computes
    weft: forward (model.py:12) graph 0 backward     linked to the node as eager's are
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, final
from weakref import WeakKeyDictionary

from torch.autograd.profiler import record_function

from weft._torch import watch_profiler
from weft.errors import SourceLine
from weft.quoting import one_line


@final
@dataclass(frozen=True, slots=True)
class Region:
    """A callable whose calls a profiler shows under a name."""

    name: str
    call: Callable[..., Any]

    def __call__(self, *args: object) -> object:
        with record_function(self.name):
            return self.call(*args)


def graph_region(code: CodeType, number: int) -> str:
    """The name of the calls of a captured graph: the n-th of a compiled function."""
    place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    return one_line(f"weft: {code.co_name} ({place}) graph {number}")


def kernel_region(name: str, lines: Iterable[SourceLine]) -> str:
    """The name of a kernel's calls, with the lines of the program that it computes."""
    by_file: dict[str, list[str]] = {}
    for line in dict.fromkeys(lines):
        numbers = by_file.setdefault(Path(line.file).name, [])
        if str(line.line) not in numbers:
            numbers.append(str(line.line))
    places = ", ".join(f"{file}:{','.join(numbers)}" for file, numbers in by_file.items())
    return one_line(f"{name} ({places})") if places else name


def node_names(region: str) -> tuple[str, str]:
    """The names of a graph's autograd node: in the forward, and in the backward."""
    return f"{region} (autograd)", f"{region} backward"


def name_graph(function: FunctionType, variable: str, region: str) -> None:
    """Name the calls of what a function has in a variable of its closure."""
    _register(function, _InClosure(variable, region))


def name_kernels(function: Callable[..., object], regions: Mapping[str, str]) -> None:
    """Name the calls of kernels, which a generated function has in global variables."""
    if regions and isinstance(function, FunctionType):
        _register(function, _InGlobals(dict(regions)))


def regions_of(function: FunctionType) -> dict[str, str] | None:
    """How a generated function's kernels are named, by global variable."""
    named = _functions.get(function)
    return dict(named.regions) if isinstance(named, _InGlobals) else None


def restore_regions(function: Callable[..., Any], regions: Mapping[str, str] | None) -> None:
    """Name the kernels of a function as those of the function that it was stored from."""
    if regions:
        name_kernels(function, regions)


@final
@dataclass(frozen=True, slots=True)
class _InClosure:
    variable: str
    region: str

    def show(self, function: FunctionType, shown: bool) -> None:
        """Put the region around the callable, or take it away."""
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        cell = cells[self.variable]
        cell.cell_contents = _with_region(cell.cell_contents, self.region, shown)


@final
@dataclass(frozen=True, slots=True)
class _InGlobals:
    regions: dict[str, str]

    def show(self, function: FunctionType, shown: bool) -> None:
        """Put regions around the callables, or take them away."""
        scope = function.__globals__
        for name, region in self.regions.items():
            scope[name] = _with_region(scope[name], region, shown)


def _with_region(call: Callable[..., object], region: str, shown: bool) -> Callable[..., object]:
    plain = call.call if isinstance(call, Region) else call
    return Region(region, plain) if shown else plain


_lock: Final = threading.RLock()
_functions: Final[WeakKeyDictionary[FunctionType, _InClosure | _InGlobals]] = WeakKeyDictionary()


def _register(function: FunctionType, named: _InClosure | _InGlobals) -> None:
    with _lock:
        _functions[function] = named
        if _profiling.on:
            named.show(function, True)


@final
class _Profiling:
    """Whether a profiler runs in the process."""

    def __init__(self) -> None:
        self.on = watch_profiler(self.change)

    def change(self, on: bool) -> None:
        """Show or hide all regions."""
        with _lock:
            self.on = on
            for function, named in list(_functions.items()):
                named.show(function, on)


_profiling: Final = _Profiling()
