"""Import contract: weft takes nothing from torch.compile, and names non-public torch in one module.

A custom contract of import-linter (see `[tool.importlinter]` in pyproject.toml). It reads the
sources, because a graph of imports does not say which part of torch was meant:

* forbidden anywhere: `FORBIDDEN`, imported or reached as an attribute of `torch`;
* forbidden outside `weft._torch`: any module or attribute path of torch with a leading underscore;
* imports inside functions, but of the optional dependencies in `OPTIONAL`.

The adapter that offers PyTorch's registered backends to users may look at torch's registry
(`ADAPTERS`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output

ROOT = Path(__file__).resolve().parent.parent / "src" / "weft"
FORBIDDEN = (
    "torch._dynamo",
    "torch._inductor",
    "torch._functorch.aot_autograd",
    "torch._functorch._aot_autograd",
    "torch._functorch.partitioners",
    "torch._export",
    "torch.compile",
    "torch.export",
    "torch.fx.experimental.proxy_tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torch.fx.symbolic_trace",
    "torch.jit",
)
OPTIONAL = ("triton", "transformers", "sklearn", "matplotlib", "torchvision", "psutil", "fsspec")
ADAPTERS = frozenset({"backends/torch_adapter.py"})
BOUNDARY = "_torch.py"
# Questions that libraries ask of torch's own compilers: capture knows them to answer no.
RECOGNISED = frozenset({"torch.jit.is_scripting", "torch.jit.is_tracing"})


def _dotted(node: ast.expr) -> str | None:
    """`a.b.c` of an attribute chain on a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def torch_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every torch path a file imports or spells out, with its line."""
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for node in ast.walk(tree):
        if id(node) in inner:
            continue  # a part of a longer path
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Attribute) and (path := _dotted(node)):
            yield node.lineno, path


def _is_under(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + ".")


def _is_private(path: str) -> bool:
    """Whether a torch path goes through a name with one leading underscore (operators aside)."""
    if _is_under(path, "torch.ops"):
        return False
    return any(p.startswith("_") and not p.startswith("__") for p in path.split(".")[1:])


def function_imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Imports inside functions, optional dependencies left out."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or "."]
            yield from ((node.lineno, n) for n in names if n.split(".")[0] not in OPTIONAL)


def complaints(path: str, tree: ast.AST) -> Iterator[str]:
    """What one file of weft does against the rules."""
    for line, name in torch_names(tree):
        if not _is_under(name, "torch") or name in RECOGNISED:
            continue
        if any(_is_under(name, f) for f in FORBIDDEN) and path not in ADAPTERS:
            yield f"{path}:{line}: {name} belongs to torch.compile's own stack"
        elif _is_private(name) and path != BOUNDARY and path not in ADAPTERS:
            yield f"{path}:{line}: {name} is not public: name it in weft/_torch.py"
    for line, name in function_imports(tree):
        yield f"{path}:{line}: import of {name} inside a function"


def all_complaints(root: Path = ROOT) -> list[str]:
    """What all files do against the rules, each place once."""
    found: dict[str, None] = {}
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root).as_posix()
        found.update(dict.fromkeys(complaints(path, ast.parse(file.read_text(), path))))
    return list(found)


class TorchBoundaryContract(Contract):
    """The contract, as import-linter runs it."""

    type_name = "torch_boundary"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Kept if no file complains."""
        found = all_complaints()
        return ContractCheck(kept=not found, metadata={"complaints": found})

    def render_broken_contract(self, check: Any) -> None:
        """One line per place."""
        for complaint in check.metadata["complaints"]:
            output.print_error(complaint)
