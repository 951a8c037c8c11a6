"""Artifacts: the forms of a compilation that people can look at, and the text of each of their
events.

Place in the pipeline: between `events` and what shows them: `logs` (standard error) and
`trace_files` (a folder)::

    ARTIFACTS["graph"]["graph"](event.fields)      # "captured graph of f (a.py:3)\\ndef forward…"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import Formatter
from types import MappingProxyType
from typing import Any, Final

from weft.diagnostics.changes import summary
from weft.diagnostics.explanation import code_name
from weft.diagnostics.graph_text import graph_text

Fields = Mapping[str, Any]
Format = Callable[[Fields], str]
"""An event's text: a line that says what it is, then what there is to read."""


_READABLE: Final[Mapping[str, Callable[[Any], str]]] = {"code": code_name, "gm": graph_text}
"""Fields that are not shown as they are."""


def _template(text: str) -> Format:
    """The text with an event's fields filled in; one that it lacks is empty."""
    names = [name for _, name, _, _ in Formatter().parse(text) if name]
    return lambda f: text.format(
        **{name: _READABLE.get(name, str)(f.get(name, "")) for name in names})


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


def _stage(f: Fields) -> str:
    return f"{f['name']}: {f['seconds'] * 1e3:.2f} ms (own {f['self_seconds'] * 1e3:.2f})"


ARTIFACTS: Final[Mapping[str, Mapping[str, Format]]] = MappingProxyType({
    "bytecode": {"bytecode": _template("replacement of {code}\n{source}")},
    "graph": {"graph": _template("captured graph of {code}\n{gm}")},
    "guards": {"guards": _guards},
    "recompiles": {"recompile": _recompile,
                   "limit": _template("no more variants of {code}: {reason}")},
    "graph_breaks": {"graph_break": _break},
    "aot": {"aot": _template("ATen graph\n{gm}")},
    "passes": {"pass": _template("pass {name}\nbefore:\n{before}\nafter:\n{after}")},
    "schedule": {"schedule": _template("{text}")},
    "output_code": {"output_code": _template("output code: {name}\n{source}"),
                    "kernel": _template("kernel {name} ({target})\n{source}")},
    "perf": {"perf": _template("{text}"),
             "uncompiled": _template("graph runs operator by operator: {reason}"),
             "stage_end": _stage},
})
"""Artifact -> kind of event -> its text."""
