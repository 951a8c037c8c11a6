"""A program that reproduces a failure: the graph as Python, with its inputs in a second file.

Place in the pipeline: written by `checks.py` into `failures.report_folder()`::

    repro-20261123-101500-3f2a91c0.py     # run it: it ends with an error while the defect is there
    repro-20261123-101500-3f2a91c0.pt     # the inputs (torch.save)
"""

from __future__ import annotations

import hashlib
import re
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch
from torch import fx

from weft.diagnostics.failures import environment_text, report_folder
from weft.quoting import as_comment, attribute, literal

_PROGRAM: Final = '''\
{problem}
#
# Written by weft. Run it: it ends with an error as long as the defect is there.
#
{environment}
import importlib
import sys
from pathlib import Path

{imports}

import weft
from weft.diagnostics.numerics import compare

{classes}
inputs = torch.load(Path(__file__).with_suffix(".pt"), weights_only=False)
graph = Graph()  # a backend of yours: weft.register_backend({backend}, ...) here
sys.exit(compare(graph, weft.compile(graph, backend={backend}), inputs) or 0)
'''

_CLASS: Final = '''
class {name}(torch.nn.Module):
    def __init__(self):
        super().__init__()
{children}
{forward}

'''


def write(gm: fx.GraphModule, inputs: Sequence[object], problem: str, backend: str) -> Path | None:
    """Write the program; returns its path, or None if the directory is not writable."""
    source = program(gm, problem, backend)
    digest = hashlib.sha256(source.encode()).hexdigest()[:8]
    name = f"repro-{time.strftime('%Y%m%d-%H%M%S')}-{digest}.py"
    try:
        path = report_folder() / name
        torch.save(list(inputs), path.with_suffix(".pt"))
        path.write_text(source)
    except (OSError, ValueError):
        return None
    return path


def program(gm: fx.GraphModule, problem: str, backend: str) -> str:
    """The source of the program."""
    classes = list(_classes(gm, "Graph"))
    imports: dict[str, None] = {"import torch": None}
    for _, needed in classes:
        imports |= dict.fromkeys(needed)
    return _PROGRAM.format(
        problem=as_comment(problem), environment=as_comment(environment_text()),
        backend=literal(backend),
        imports="\n".join(imports), classes="".join(source for source, _ in classes))


def _classes(gm: fx.GraphModule, name: str) -> Iterator[tuple[str, list[str]]]:
    """The module as a class, after those of its subgraphs; each with the imports it needs."""
    children = {n: c for n, c in gm.named_children() if isinstance(c, fx.GraphModule)}
    for n, child in children.items():
        yield from _classes(child, f"{name}_{n}")
    python = gm.graph.python_code("self")
    assignments = "".join(f"        self.{n} = {name}_{n}()\n" for n in children)
    yield (_CLASS.format(name=name, children=assignments,
                         forward=textwrap.indent(python.src.strip(), "    ")),
           list(_imports(python.src, python.globals)))


def _imports(source: str, names: Mapping[str, Any]) -> Iterator[str]:
    """The lines that define the global names of generated code."""
    for name, value in names.items():
        if name == "torch" or not re.search(rf"\b{re.escape(name)}\b", source):
            continue
        if isinstance(value, ModuleType):
            yield f"{name} = importlib.import_module({literal(value.__name__)})"
        elif isinstance(value, float):
            yield f"{name} = float({str(value)!r})"
        elif value is type(None):
            yield f"{name} = type(None)"
        else:
            path = str(value.__qualname__).split(".")
            owner = f"importlib.import_module({literal(str(value.__module__))})"
            yield f"{name} = {reduce(attribute, path, owner)}"
