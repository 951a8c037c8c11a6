"""Runs an ATen graph as straight Python: one operator call a line, values freed at their last use.

Place in the pipeline: the `aot_eager` backend's executor, and the reference for code generation::

    run = compile_calls(gm)        # boxed: takes a list of inputs, which it clears
    run.source                     # def call(inputs): ...
"""

from __future__ import annotations

import math
import operator
import re
from typing import Any, Final

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from weft.aot.graph import AtenGraph
from weft.aot.symbols import SYMBOLIC, input_symbols, size_text
from weft.graph_call import GraphCall
from weft.runtime.data_checks import assume
from weft.runtime.generated_code import load
from weft.runtime.strided_views import CALLS, laid_out
from weft.shapes.asserts import Asserts, binds
from weft.shapes.graph_facts import graph_facts
from weft.shapes.symnode import hint
from weft.shapes.tensor_layouts import span

_LIKE_A_SYMBOL = re.compile(r"[a-z]\d+")
_CLONE = torch.ops.aten.clone.default
_LITERALS = (int, float, bool, str, type(None))


_NAME: Final = re.compile(r"\w+")


def compile_calls(gm: AtenGraph) -> GraphCall:
    """A boxed callable that runs `gm` through ATen."""
    return _Writer(gm).compiled()


class _Writer:
    """Writes the call sequence; operators and constants are globals of the written function."""

    def __init__(self, gm: AtenGraph) -> None:
        self.nodes = list(gm.graph.nodes)
        self.scope: dict[str, Any] = {
            "inf": float("inf"), "nan": float("nan"), "math": math, "assume": assume,
        }
        self.asserts = graph_facts(gm).asserts
        self.local = _local_names(self.nodes, {"inputs", *self.scope})
        self.names: dict[int, str] = {}
        self.dies_at = _last_uses(self.nodes)

    def compiled(self) -> GraphCall:
        """The callable."""
        text = self.text()
        return GraphCall(load(text, "<weft aten calls>", self.scope), boxed=True, source=text)

    def text(self) -> str:
        """The source."""
        lines = ["def call(inputs):"]
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        if placeholders:
            lines.append(f"{', '.join(self.local[n] for n in placeholders)}, = inputs")
        lines.append("inputs.clear()")
        at = len(lines)
        asserts = Asserts(self.asserts, list(input_symbols(n.meta["val"] for n in placeholders)))
        lines.extend(asserts.bound(()))
        for node in self.nodes:
            if node.op == "call_function":
                name = self.local[node]
                lines.append(f"{name} = {self._call(node)}")
                lines.extend(f"{b.name} = {b.text(name)}" for b in binds(node))
                lines.extend(asserts.bound([b.name for b in binds(node)]) if binds(node) else ())
                dead = self.dies_at.get(node)
                if dead:
                    lines.append(f"del {', '.join(self.local[d] for d in dead)}")
            elif node.op == "output":
                lines.append(f"return {self._value(list(node.args[0]))}")
        asserts.finish()
        lines[at:at] = self._bind_symbols(placeholders, "\n".join(lines[at:]))
        return "\n    ".join(lines) + "\n"

    def _bind_symbols(self, placeholders: list[Node], text: str) -> list[str]:
        """Lines that give each symbol of the text its value. (Of other inputs there may be nothing:
        a stage of a backward gets no tensors that it does not read.)"""
        sources, used = input_symbols(n.meta["val"] for n in placeholders), set(_NAME.findall(text))
        return [
            f"{name} = {source.text(self.local[placeholders[source.input]])}"
            for name, source in sources.items() if name in used
        ]

    def _call(self, node: Node) -> str:
        if node.target is operator.getitem:
            return f"{self._value(node.args[0])}[{node.args[1]}]"
        if node.target is _CLONE and not node.kwargs and _has_gaps(node.meta["val"]):
            strides = list(node.meta["val"].stride())
            return f"{self._global(laid_out)}({self._value(node.args[0])}, {self._value(strides)})"
        args = [self._value(a) for a in node.args]
        args += [f"{k}={self._value(v)}" for k, v in node.kwargs.items()]
        return f"{self._global(CALLS.get(node.target, node.target))}({', '.join(args)})"

    def _value(self, value: Any) -> str:
        """A value as Python text."""
        kind = type(value)
        if kind is Node:
            return self.local[value]
        if kind in _LITERALS:
            return repr(value)
        if isinstance(value, list):
            return f"[{', '.join(self._value(v) for v in value)}]"
        if isinstance(value, tuple):
            return f"({''.join(self._value(v) + ', ' for v in value)})"
        if isinstance(value, SYMBOLIC):
            return size_text(value)
        return self._global(value)

    def _global(self, value: object) -> str:
        name = self.names.get(id(value))
        if name is None:
            base = str(value).replace("torch.", "").replace(".", "_")
            base = base if base.isidentifier() else "const"
            name = self.names[id(value)] = f"{base}_{len(self.names)}"
            self.scope[name] = value
        return name


def _has_gaps(value: torch.Tensor) -> bool:
    """Whether the memory has gaps or overlaps, which `aten.clone` does not preserve."""
    if value.layout is not torch.strided:
        return False
    reach = span([*map(hint, value.size())], [*map(hint, value.stride())])
    return bool(reach != hint(value.numel()) != 0)


def _local_names(nodes: list[Node], taken: set[str]) -> dict[Node, str]:
    """The nodes' names, changed if they mean something else in the text: the program may call a
    tensor `inputs`, `math`, or like the symbol of a size."""
    used = taken | {n.name for n in nodes}
    names: dict[Node, str] = {}
    for node in nodes:
        name = node.name
        if name in taken or _LIKE_A_SYMBOL.fullmatch(name):
            while name in used:
                name += "_"
            used.add(name)
        names[node] = name
    return names


def _last_uses(nodes: list[Node]) -> dict[Node, list[Node]]:
    """For each node, the values that are dead after it."""
    seen: set[Node] = set()
    dies: dict[Node, list[Node]] = {}
    for node in reversed(nodes):
        dead: list[Node] = []

        def visit(arg: Node, dead: list[Node] = dead) -> Node:
            if arg not in seen:
                seen.add(arg)
                dead.append(arg)
            return arg

        map_arg((node.args, node.kwargs), visit)
        if node not in seen and node.op == "call_function":
            dead.append(node)
        dies[node] = dead
    return dies
