"""Code that is never captured as a frame of its own: the standard library, torch, weft.

Place in the pipeline: used by the compiler at a miss. (Inlining such code is fine, but a frame of
it that runs between graphs is not worth a capture.)
"""

from __future__ import annotations

import builtins
import os
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any, Final

import numpy
import torch

from weft._torch import ScriptModule
from weft.capture.core.source import FrameState

_STANDARD: Final = f"{sysconfig.get_paths()['stdlib']}{os.sep}"
_TESTS: Final = f"{_STANDARD}test{os.sep}"
_SITE: Final = f"{sysconfig.get_paths()['purelib']}{os.sep}"
_NUMPY: Final = f"{Path(numpy.__file__).parent}{os.sep}"
_TORCH: Final = f"{Path(torch.__file__).parent}{os.sep}"
_WEFT: Final = f"{Path(__file__).parents[2]}{os.sep}"


def folders_of_torch(*names: str) -> tuple[str, ...]:
    """What the paths of files in these folders of PyTorch (`nn/parallel`) begin with."""
    return tuple(f"{Path(_TORCH, *name.split('/'))}{os.sep}" for name in names)


_TOOLS: Final = tuple(str(Path(_TORCH, *part.split("/"))) for part in (
    "autograd/profiler", "export", "fx", "jit", "onnx", "package", "profiler", "serialization.py",
    "testing"))
_DISTRIBUTED: Final = folders_of_torch("distributed", "nn/parallel")
_CAPTURED: Final = (str(Path(_TORCH, "nn", "modules")), str(Path(_TORCH, "optim")))


_BUILTINS: Final = vars(builtins)
_OURS: Final = {
    name: obj for name, obj in _BUILTINS.items()
    if isinstance(obj, type | types.BuiltinFunctionType)
    and name not in ("print", "input", "open", "breakpoint", "__import__", "__build_class__")}
"""Builtins that capture itself calls."""


def are_builtins_replaced() -> bool:
    """Whether the program has replaced builtins that capture calls, for instance by mocks."""
    return not _OURS.items() <= _BUILTINS.items()


def is_library_code(code: types.CodeType) -> bool:
    """Whether the code belongs to Python's standard library, except its tests, to NumPy, to
    PyTorch's tools (profilers, tracers, files), or to torch.distributed and its wrappers."""
    file = code.co_filename
    return file.startswith((_NUMPY, *_TOOLS, *_DISTRIBUTED)) or (
        file.startswith(_STANDARD) and not file.startswith((_SITE, _TESTS)))


def is_of_package_without_torch(code: types.CodeType) -> bool:
    """Whether the code belongs to an installed package that knows nothing of torch (tqdm, yaml)."""
    file = code.co_filename
    if not file.startswith(_SITE):
        return False
    package = file.removeprefix(_SITE).partition(os.sep)[0].removesuffix(".py")
    loaded = [module for name, module in list(sys.modules.items())
              if name.partition(".")[0] == package]
    return not any(map(_is_of_torch, (
        value for module in loaded for value in list(vars(module).values()))))


def may_hold_tensors(state: FrameState) -> bool:
    """Whether the frame itself can reach an object of torch: a tensor, a module, a function.

    The functions that it calls do not count: they are frames of their own.
    """
    if any(_reaches_torch(value) for value in state.locals):
        return True
    read = (state.globals[name] for name in state.code.co_names if name in state.globals)
    return any(map(_is_of_torch, read)) or any(
        _reaches_torch(_contents(cell)) for cell in state.cells)


def _contents(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _is_of_torch(value: Any) -> bool:
    kind = type(value)  # `__class__` may run code, which may raise
    if issubclass(kind, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
        return True
    if issubclass(kind, types.ModuleType):
        home: Any = object.__getattribute__(value, "__dict__").get("__name__")
    elif issubclass(kind, types.BuiltinFunctionType):
        owner = value.__self__
        plain = owner is None or issubclass(type(owner), (type, types.ModuleType))
        home = getattr(owner if plain else type(owner), "__module__", None) or value.__module__
    elif issubclass(kind, types.FunctionType):
        home = value.__module__
    else:
        home = _home(value if issubclass(kind, type) else kind)
    return isinstance(home, str) and home.partition(".")[0] == "torch"


def _home(cls: type) -> object:
    """The name of the class's module, read without running code of its metaclass."""
    try:
        return type.__getattribute__(cls, "__module__")
    except AttributeError:
        return None


def _reaches_torch(value: Any) -> bool:
    """Whether the value, an item or an attribute of it is an object of torch; runs no code of its
    class."""
    if _is_of_torch(value):
        return True
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return any(map(_is_of_torch, value))
    if kind is dict:
        return any(map(_is_of_torch, value.values()))
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return False
    return type(attributes) is dict and any(map(_is_of_torch, attributes.values()))


def runs_script(state: FrameState) -> bool:
    """Whether the frame calls a module that torch.jit compiled, which runs in C++."""
    return bool(state.locals) and issubclass(type(state.locals[0]), ScriptModule)


def is_skipped_code(code: types.CodeType) -> bool:
    """Whether frames of the code are left to Python."""
    file = code.co_filename
    if file.startswith("<"):
        return True
    if file.startswith(_CAPTURED):
        return file.endswith("_functions.py")  # forwards of autograd functions
    if file.startswith((_NUMPY, _TORCH, _WEFT)):
        return True
    if file.startswith(_SITE):
        return f"{os.sep}torch{os.sep}" in file
    return file.startswith(_STANDARD)
