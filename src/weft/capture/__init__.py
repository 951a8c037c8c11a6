"""Capture: a Python frame → a torch-level graph, guards, and a replacement function.

Place in the pipeline: the front end. By role:

- the steps of a miss: `compiler` (`FrameCompiler`), `attempt`, `skips`;
- interpretation: `interpreter`, `interpreter_state`, `stops`, `frame`, `operations`,
  `operator_names`, `state`, `source`, `bytecode/`, `opcodes/`, `values/`, `handlers/`,
  `polyfills/`, `numpy_calls`, `numpy_models`, `numpy_operations`;
- where it ends: `breaks`, `early_ends`;
- results: `graph`, `subgraphs`, `guards/`, `replacement/`.

    compiled = compile_function(f, options, backend)
    compiled(x)                       # captured here
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from weft import _frame
from weft.capture import handlers  # noqa: F401  (registers the rules)
from weft.capture.compiler import FrameCompiler
from weft.config import CompileOptions

__all__ = ["cache_entries", "compile_function", "original_function", "reset"]


def compile_function(fn: FunctionType, options: CompileOptions, backend: Any) -> Any:
    """`fn`, captured and compiled by `backend` at its first call."""
    return FrameCompiler(options, backend).root(fn)


def original_function(obj: Any) -> Any:
    """The Python function behind a compiled one; anything else as it is."""
    return obj.__wrapped__ if isinstance(obj, _frame.CompiledFunction) else obj


def cache_entries() -> int:
    """Compiled variants alive."""
    return _frame.entry_count()


def reset() -> None:
    """Forget all compiled variants."""
    _frame.clear()
