"""Artifacts: the forms of a compilation that people can look at, and the text of each of their
events.

Place in the pipeline: between `events` and what shows them: `logs` (standard error) and
`trace_files` (a folder)::

    ARTIFACTS["graph"]["graph"](event.fields)      # "captured graph of f (a.py:3)\\ndef forward…"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from weft.diagnostics.changes import summary
from weft.diagnostics.explanation import code_name
from weft.diagnostics.graph_text import graph_text

Fields = Mapping[str, Any]
Format = Callable[[Fields], str]
"""An event's text: a line that says what it is, then what there is to read."""


def _graph(f: Fields) -> str:
    return f"captured graph of {code_name(f.get('code', ''))}\n{graph_text(f.get('gm'))}"


def _guards(f: Fields) -> str:
    lines = [f"guards of {code_name(f.get('code', ''))}"]
    return "\n".join([*lines, *(f"  {g}" for g in f.get("guards", ()))])


def _recompile(f: Fields) -> str:
    changes = f.get("changes") or ()
    head = f"recompiling {code_name(f.get('code', ''))}: "
    if not changes:
        return head + str(f.get("reason", ""))
    lines = [head + str(changes[0]), *changes[0].details()]
    if len(changes) > 1:
        lines.append("the variants before it: " + "; ".join(summary(changes[1:])))
    return "\n  ".join(lines)


def _break(f: Fields) -> str:
    stack = "".join(f"\n  at {line}" for line in reversed(f.get("stack") or ()))
    hint = f"\n  hint: {f['hint']}" if f.get("hint") else ""
    return f"graph break [{f.get('id', '')}]: {f.get('reason', '')}{stack}{hint}"


def _bytecode(f: Fields) -> str:
    return f"replacement of {code_name(f.get('code', ''))}\n{f.get('source', '')}"


def _aot(f: Fields) -> str:
    return f"ATen graph\n{graph_text(f.get('gm'))}"


def _text(f: Fields) -> str:
    return str(f.get("text", ""))


def _output_code(f: Fields) -> str:
    return f"output code: {f.get('name', '')}\n{f.get('source', '')}"


def _pass(f: Fields) -> str:
    before, after = f.get("before", ""), f.get("after", "")
    return f"pass {f.get('name', '')}\nbefore:\n{before}\nafter:\n{after}"


def _kernel(f: Fields) -> str:
    return f"kernel {f.get('name', '')} ({f.get('target', '')})\n{f.get('source', '')}"


def _uncompiled(f: Fields) -> str:
    return f"graph runs operator by operator: {f.get('reason', '')}"


def _limit(f: Fields) -> str:
    return f"no more variants of {code_name(f.get('code', ''))}: {f.get('reason', '')}"


def _stage(f: Fields) -> str:
    return f"{f['name']}: {f['seconds'] * 1e3:.2f} ms (own {f['self_seconds'] * 1e3:.2f})"


ARTIFACTS: Final[Mapping[str, Mapping[str, Format]]] = MappingProxyType({
    "bytecode": {"bytecode": _bytecode},
    "graph": {"graph": _graph},
    "guards": {"guards": _guards},
    "recompiles": {"recompile": _recompile, "limit": _limit},
    "graph_breaks": {"graph_break": _break},
    "aot": {"aot": _aot},
    "passes": {"pass": _pass},
    "schedule": {"schedule": _text},
    "output_code": {"output_code": _output_code, "kernel": _kernel},
    "perf": {"perf": _text, "uncompiled": _uncompiled, "stage_end": _stage},
})
"""Artifact -> kind of event -> its text."""
