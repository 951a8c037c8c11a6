"""The standard library's own Python versions of accelerated C functions.

Place in the pipeline: used by rules of C functions (`heapq.heappush`, `bisect.insort`, ...). The
source of the library's module is run again with its C module hidden, so the functions that it
defines in Python stay::

    twin(heapq, "heappush")      # heapq.heappush as heapq.py defines it
"""

from __future__ import annotations

import builtins
import functools
import inspect
from types import ModuleType
from typing import Any


@functools.cache
def _namespace(module: ModuleType) -> dict[str, Any]:
    hidden = f"_{module.__name__}"

    def restricted_import(name: str, *args: Any) -> Any:
        if name == hidden:
            raise ImportError(name)
        return __import__(name, *args)

    namespace = {
        "__name__": module.__name__,
        "__builtins__": {**vars(builtins), "__import__": restricted_import},
    }
    code = compile(inspect.getsource(module), inspect.getsourcefile(module) or "<twin>", "exec")
    exec(code, namespace)
    return namespace


def twin(module: ModuleType, name: str) -> Any:
    """The Python version of a C function of the module."""
    return _namespace(module)[name]
