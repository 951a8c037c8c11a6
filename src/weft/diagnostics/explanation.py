"""What `weft.explain(f)(*args)` returns: one compilation, explained to a person.

Place in the pipeline: a view of the `events` that were recorded while `f` compiled and ran::

    explanation = weft.explain(f)(x)
    print(explanation)              # plain text
    explanation.graph_breaks        # the same as data

`diagnostics.rendering` draws it on a terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final, final

import torch

from weft.diagnostics.changes import Change
from weft.diagnostics.events import Event
from weft.diagnostics.graph_text import graph_text
from weft.errors import SourceLine
from weft.quoting import one_line

_NOT_OPERATORS = frozenset({"placeholder", "output", "get_attr"})


@final
@dataclass(frozen=True, slots=True)
class Graph:
    """A captured graph: its code, its operators, and its readable form."""

    code: str
    operators: int
    text: str


@final
@dataclass(frozen=True, slots=True)
class Break:
    """A graph break: its stable id, why, where, and how to avoid it."""

    id: str
    reason: str
    stack: tuple[SourceLine, ...]
    hint: str

    @property
    def labelled_reason(self) -> str:
        return f"{self.reason} [{self.id}]" if self.id else self.reason

    @property
    def place(self) -> str:
        """The innermost line, or that of the program that led to it if it is a library's."""
        if not self.stack:
            return ""
        own = [line for line in self.stack if not line.is_installed]
        last = self.stack[-1]
        return str(last) if not own or own[-1] is last else f"{own[-1]} (within {last})"


@final
@dataclass(frozen=True, slots=True)
class Recompile:
    """Another variant: of which code, and why none of the earlier ones fitted."""

    code: str
    reason: str
    changes: tuple[Change, ...] = ()

    def __str__(self) -> str:
        return f"{self.code}: {self.reason}"

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each change: what, the guard, how to avoid it."""
        if not self.changes:
            return [(str(self), "", "")]
        return [(f"{self.code}: {c}", c.guard, c.hint) for c in self.changes]


@final
@dataclass(frozen=True, slots=True)
class KernelInfo:
    """A generated kernel and the user's lines that it computes."""

    name: str
    target: str
    lines: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class Section:
    """A table of the explanation."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@final
@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """All that happened, in order; each field is a list of plain values."""

    name: str
    graphs: list[Graph] = field(default_factory=list)
    graph_breaks: list[Break] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    symbols: list[tuple[str, str, str, str]] = field(default_factory=list)
    recompiles: list[Recompile] = field(default_factory=list)
    kernels: list[KernelInfo] = field(default_factory=list)
    extern_calls: list[str] = field(default_factory=list)
    uncompiled: list[str] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    ignored: list[tuple[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_events(cls, events: Iterable[Event], *, name: str) -> Explanation:
        """The explanation of a list of events."""
        explanation = cls(one_line(name))
        for event in events:
            if (take := _TAKE.get(event.kind)) is not None:
                take(explanation, event.fields)
        return explanation

    def summary(self) -> list[str]:
        """One sentence for each thing that happened."""
        operators = sum(g.operators for g in self.graphs)
        lines = [
            f"Captured {_number(len(self.graphs), 'graph')} of {_number(operators, 'operator')} "
            f"with {_number(len(self.guards), 'guard')}.",
            f"{_number(len(self.graph_breaks), 'graph break')}.",
            f"Generated {_number(len(self.kernels), 'kernel')}"
            + (": " + ", ".join(_counted(k.name for k in self.kernels)) if self.kernels else "")
            + f"; {_number(len(self.extern_calls), 'operator')} left to ATen"
            + (": " + ", ".join(_counted(self.extern_calls)) if self.extern_calls else "") + ".",
            f"Compiled in {self.total_seconds:.2f} s.",
        ]
        if self.recompiles:
            lines.insert(2, f"{_number(len(self.recompiles), 'recompile')}.")
        if self.uncompiled:
            reasons = "; ".join(_counted(self.uncompiled))
            lines.append(f"{_number(len(self.uncompiled), 'graph')} left uncompiled, to run "
                         f"operator by operator: {reasons}.")
        if self.fallbacks:
            lines.append(f"{_number(len(self.fallbacks), 'failure')} ended in an eager run.")
        return lines

    @property
    def total_seconds(self) -> float:
        """Wall seconds of all stages."""
        return sum(self.seconds.values())

    def sections(self) -> list[Section]:
        """The details as tables: what `__str__` and `diagnostics.rendering` show."""
        breaks = [(b.place, b.labelled_reason, b.hint) for b in self.graph_breaks]
        times = sorted(self.seconds.items(), key=lambda item: -item[1])
        sections = [
            Section("Graphs", ("captured from", "operators"),
                    [(g.code, str(g.operators)) for g in self.graphs]),
            Section("Graph breaks", ("where", "why", "hint"), breaks),
            Section("Recompiles", ("because", "guard", "avoid it"),
                    [row for r in self.recompiles for row in r.rows()]),
            Section("Guards", ("holds while",), [(g,) for g in self.guards]),
            Section("Symbols", ("size or number", "is", "in this call", "conditions"),
                    self.symbols),
            Section("Kernels", ("name", "target", "computes lines"),
                    [(k.name, k.target, ", ".join(k.lines)) for k in self.kernels]),
            Section("Without effect", ("argument of torch.compile", "instead"), self.ignored),
            Section("Time", ("stage", "seconds"), [(n, f"{s:.3f}") for n, s in times]),
        ]
        return [section for section in sections if section.rows]

    def __str__(self) -> str:
        lines = [f"weft: {self.name}", *self.summary()]
        for section in self.sections():
            lines += ["", f"{section.title}: {', '.join(section.columns)}"]
            lines += ["  " + " | ".join(cell for cell in row if cell) for row in section.rows]
        return "\n".join(lines)

    __repr__ = __str__


def _number(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _counted(names: Iterable[str], limit: int = 12) -> list[str]:
    """`a, b x 3, …`: equal names are counted."""
    counted = Counter(names)
    shown = [n if k == 1 else f"{n} x {k}" for n, k in counted.most_common(limit)]
    return [*shown, f"… {len(counted) - limit} more"] if len(counted) > limit else shown


def _source_lines(stack: Any) -> tuple[SourceLine, ...]:
    return tuple(line for line in stack or () if isinstance(line, SourceLine))


def code_name(code: object) -> str:
    """A code object in the user's words: name, file and line; other values as text."""
    if isinstance(code, CodeType):
        return one_line(f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})")
    return str(code)


def operator_count(gm: object) -> int:
    """The number of operators in a graph, without inputs and output."""
    if not isinstance(gm, torch.fx.GraphModule):
        return 0
    return sum(node.op not in _NOT_OPERATORS for node in gm.graph.nodes)


# -- what each kind of event adds -----------------------------------------------------------------


def _take_graph(explanation: Explanation, fields: Mapping[str, object]) -> None:
    gm = fields.get("gm")
    explanation.graphs.append(
        Graph(code_name(fields.get("code", "")), operator_count(gm), graph_text(gm)))


def _take_break(explanation: Explanation, fields: Mapping[str, object]) -> None:
    explanation.graph_breaks.append(Break(
        str(fields.get("id", "")), str(fields.get("reason", "")),
        _source_lines(fields.get("stack")), str(fields.get("hint") or "")))


def _take_recompile(explanation: Explanation, fields: dict[str, Any]) -> None:
    explanation.recompiles.append(Recompile(code_name(fields.get("code", "")),
                                            str(fields.get("reason", "")),
                                            tuple(fields.get("changes", ()))))


def _take_kernel(explanation: Explanation, fields: Mapping[str, object]) -> None:
    stack = fields.get("stack") or ()
    lines = dict.fromkeys(f"{one_line(line.file)}:{line.line}" for line in _source_lines(stack))
    explanation.kernels.append(KernelInfo(
        str(fields.get("name", "")), str(fields.get("target", "")), tuple(lines)))


def _take_stage(explanation: Explanation, fields: dict[str, Any]) -> None:
    name = fields["name"]
    explanation.seconds[name] = explanation.seconds.get(name, 0.0) + fields["self_seconds"]


_TAKE: Final[dict[str, Callable[[Explanation, dict[str, Any]], None]]] = {
    "graph": _take_graph,
    "graph_break": _take_break,
    "guards": lambda e, fields: e.guards.extend(map(str, fields.get("guards", ()))),
    "symbols": lambda e, fields: e.symbols.extend(fields.get("symbols", ())),
    "recompile": _take_recompile,
    "kernel": _take_kernel,
    "extern_call": lambda e, fields: e.extern_calls.append(str(fields.get("op", ""))),
    "uncompiled": lambda e, fields: e.uncompiled.append(str(fields.get("reason", ""))),
    "fallback": lambda e, fields: e.fallbacks.append(str(fields.get("error", ""))),
    "ignored": lambda e, fields: e.ignored.append((fields["what"], fields["instead"])),
    "stage_end": _take_stage,
}
