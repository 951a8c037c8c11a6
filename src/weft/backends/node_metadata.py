"""What backends that users bring read of nodes, beyond `example_value`: where they come from.

Place in the pipeline: before such a backend is called; weft's own read `meta["stack"]` instead. The
forms are those of torch.compile, and `nn_module_stack` is there already (capture notes it)::

    node.meta["stack_trace"]       '  File "model.py", line 7, in forward\\n    self.lin(x)...'
    node.meta["source_fn_stack"]   [("linear", torch.nn.Linear)]
    node.meta["nn_module_stack"]   {"140...": ("L['self'].layers.0.lin", torch.nn.Linear)}
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch
from torch import fx

from weft.errors import SourceLine

_LIBRARY: Final = str(Path(torch.__file__).parent) + os.sep


def add_origins(graph: fx.Graph) -> None:
    """Add `stack_trace` and `source_fn_stack` to the calls of a captured graph."""
    texts: dict[SourceLine, str] = {}
    for node in graph.nodes:
        stack: tuple[SourceLine, ...] = node.meta.get("stack") or ()
        if node.op not in ("call_function", "call_method") or not stack:
            continue
        node.meta["stack_trace"] = _trace(stack, texts)
        node.meta["source_fn_stack"] = [(node.name, _origin(node, stack[-1]))]
        node.meta.setdefault("nn_module_stack", {})


def _trace(stack: Iterable[SourceLine], texts: dict[SourceLine, str]) -> str:
    """The program's lines as a traceback shows them; those of PyTorch's modules are left out."""
    shown = [place for place in stack if not place.file.startswith(_LIBRARY)]
    for place in shown:
        if place not in texts:
            texts[place] = _text(place)
    return "".join(texts[place] for place in shown)


def _text(place: SourceLine) -> str:
    source = linecache.getline(place.file, place.line).strip()
    name = place.function.rpartition(".")[2]
    return f'  File "{place.file}", line {place.line}, in {name}\n' + (
        f"    {source}\n" if source else "")


def _origin(node: fx.Node, innermost: SourceLine) -> object:
    """The class of PyTorch's module that the program called, or the function itself."""
    modules: dict[str, tuple[str, type]] = node.meta.get("nn_module_stack") or {}
    if modules and innermost.file.startswith(_LIBRARY):
        return [*modules.values()][-1][1]
    return node.target
