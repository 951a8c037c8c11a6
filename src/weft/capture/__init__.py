"""Capture: a Python frame → a torch-level graph, guards, and a replacement function.

Place in the pipeline: the front end. By role:

- the steps of a miss: `compiler` (`FrameCompiler`), `attempt`, `interpreter`; what equal
  compilations share: `sharing`;
- instructions: `bytecode/` (byte code as data), `opcodes/` (what each does);
- what programs use: `library/`, one folder for each subject: values, rules and polyfills;
- what all of them stand on: `core/`;
- results: `guards/`, `replacement/`.

    compiled = compile_function(f, options, backend)
    compiled(x)                       # captured here
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from weft import _frame
from weft.capture.compiler import FrameCompiler
from weft.capture.library import registration  # noqa: F401  (registers the rules)
from weft.capture.sharing import Subject, alone, forget_shared, forget_used, subject_of
from weft.config import CompileOptions

__all__ = ["Subject", "alone", "cache_entries", "compile_function", "compiled_by",
           "original_function", "reset", "subject_of"]


def compile_function(fn: FunctionType, options: CompileOptions, backend: Any,
                     subject: Subject) -> object:
    """`fn`, captured and compiled by `backend` at its first call; `subject`: what it runs
    (`subject_of`)."""
    return FrameCompiler(options, backend).root(fn, subject)


def compiled_by(compiled: Any, name: object, resolve: Callable[[Any], Any]) -> object:
    """What a compiled function is while the program forces the backend of this name upon all; None:
    itself."""
    compiler = getattr(compiled.on_miss.function, "__self__", None)
    return compiler.other(compiled, name, resolve) if isinstance(compiler, FrameCompiler) else None


def original_function(obj: object) -> Any:
    """The Python function behind a compiled one; anything else as it is."""
    return obj.__wrapped__ if isinstance(obj, _frame.CompiledFunction) else obj


def cache_entries() -> int:
    """Compiled variants alive."""
    return _frame.entry_count()


def reset() -> None:
    """Forget all compiled variants."""
    _frame.clear()
    forget_shared()
    forget_used()
