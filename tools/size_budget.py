"""Size budget: files at most 800 lines, functions at most 100, no import cycles; short paragraphs
in the pages that describe the source.

Run by `make lint`; prints each excess as ``path:line: message`` and exits 1 if there is any::

    python -m tools.size_budget
    python -m tools.size_budget --report      # also the totals per folder

A file or function over the budget needs its reason in `EXEMPT`. Files with an exemption still
stop at `HARD_FILE_LINES`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import grimp

FILE_LINES = 800
HARD_FILE_LINES = 1500
FUNCTION_LINES = 100
PARAGRAPH_LINES = 5
PAGE_COLUMNS = 120
TABLE_COLUMNS = 150
ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("src", "csrc", "tools", "benchmarks", "examples")
PAGES = ("architecture.md", "architecture/*.md", "contributing.md", "reading.md")

# path, or path::function -> why it may be larger
EXEMPT: dict[str, str] = {}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def source_files() -> Iterator[Path]:
    """Every Python and C file of the project."""
    for folder in SOURCES:
        for pattern in ("*.py", "*.c", "*.h"):
            yield from sorted((ROOT / folder).rglob(pattern))


def file_excess(path: str, lines: int) -> str | None:
    """The complaint about a file of `lines` lines, if any."""
    limit = HARD_FILE_LINES if path in EXEMPT or path.endswith((".c", ".h")) else FILE_LINES
    return f"{path}:1: {lines} lines (at most {limit})" if lines > limit else None


def functions(tree: ast.AST) -> Iterator[tuple[Function, int]]:
    """Functions with their length in lines, docstring left out."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            body = node.body
            start = body[1].lineno if ast.get_docstring(node) and len(body) > 1 else node.lineno
            yield node, (node.end_lineno or start) - start + 1


def function_excess(path: str, tree: ast.AST) -> Iterator[str]:
    """Complaints about long functions of one file."""
    for node, lines in functions(tree):
        if lines > FUNCTION_LINES and f"{path}::{node.name}" not in EXEMPT:
            yield f"{path}:{node.lineno}: {node.name} has {lines} lines (at most {FUNCTION_LINES})"


def pages() -> Iterator[Path]:
    """The pages that describe the source."""
    for pattern in PAGES:
        yield from sorted((ROOT / "docs").glob(pattern))


def page_excess(path: str, text: str) -> Iterator[str]:
    """Complaints about long lines and paragraphs of a page; code and tables are not paragraphs."""
    begun, in_code = 0, False
    for number, line in enumerate(text.splitlines(), 1):
        limit = TABLE_COLUMNS if line.startswith("|") else PAGE_COLUMNS
        if len(line) > limit:
            yield f"{path}:{number}: {len(line)} columns (at most {limit})"
        fence = line.startswith("```")
        in_code ^= fence
        if fence or in_code or not line.strip() or line.startswith(("|", "#")):
            begun = 0
        elif begun == 0 or re.match(r"\s*(-|\d+\.) ", line):
            begun = number
        elif number - begun == PARAGRAPH_LINES:
            yield f"{path}:{begun}: a paragraph of more than {PARAGRAPH_LINES} lines"


def import_graph() -> dict[str, set[str]]:
    """Module -> modules of weft that it imports when it is imported."""
    graph = grimp.build_graph("weft", exclude_type_checking_imports=True, cache_dir=None)
    return {m: set(graph.find_modules_directly_imported_by(m)) for m in sorted(graph.modules)}


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph.get(node, ()):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def report(lines: dict[str, int], lengths: list[int]) -> str:
    """Totals per folder, and how long functions are."""
    folders: dict[str, int] = defaultdict(int)
    for path, n in lines.items():
        folders["/".join(path.split("/")[:-1])] += n
    table = [f"{n:7}  {folder}" for folder, n in sorted(folders.items())]
    ordered = sorted(lengths)
    p95 = ordered[int(len(ordered) * 0.95)] if ordered else 0
    middle = median(ordered) if ordered else 0
    table.append(f"{sum(lines.values()):7}  all; functions: median {middle}, 95 % at most {p95}")
    return "\n".join(table)


def main(arguments: list[str]) -> int:
    """Print every excess; the number of them decides the exit status."""
    complaints: list[str] = []
    lines: dict[str, int] = {}
    lengths: list[int] = []
    for file in source_files():
        text = file.read_text()
        path = file.relative_to(ROOT).as_posix()
        lines[path] = text.count("\n")
        if (excess := file_excess(path, lines[path])) is not None:
            complaints.append(excess)
        if file.suffix == ".py":
            tree = ast.parse(text, path)
            lengths.extend(n for _, n in functions(tree))
            complaints.extend(function_excess(path, tree))
    for page in pages():
        complaints.extend(page_excess(page.relative_to(ROOT).as_posix(), page.read_text()))
    complaints.extend(f"import cycle: {' <-> '.join(c)}" for c in cycles(import_graph()))
    if "--report" in arguments:
        print(report(lines, lengths))
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
