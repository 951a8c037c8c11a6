"""weft as a backend of torch.compile: ``torch.compile(model, backend="weft")``.

Place in the pipeline: beside `inductor`, which does the work; torch.compile finds it by the entry
point group `torch_dynamo_backends`. torch.compile captures and guards, weft compiles the graph. Its
sizes are symbols of torch.compile's own. Each gets a symbol of weft's here, and what the compiled
graph needs of them is asked of torch.compile's, which makes guards of the questions::

    s77 (torch.compile's)  ->  s0 (weft's);  guard `s0 <= 100`  ->  bool(s77 <= 100)

Nothing of torch.compile is imported: its symbols are objects that come with the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, final

import torch
from torch.fx import GraphModule, Node

from weft._torch import FakeTensor
from weft.aot.views import Unsupported
from weft.backends.inductor import compile_fx
from weft.compiling import compiling
from weft.diagnostics import events, failures
from weft.errors import InternalError
from weft.shapes.context import COMMON_LIMIT, ShapeContext
from weft.shapes.graph_facts import CapturedFacts, GraphFacts, note, note_graph
from weft.shapes.guard import python_text
from weft.shapes.symnode import UndecidedValue, expr_of
from weft.torch_settings import settings_of

Settings = Mapping[str, Any]

_ANY_SIZE: Final = 2**62


def weft(
    gm: GraphModule, example_inputs: Sequence[object], *, mode: str | None = None,
    options: Settings | None = None,
) -> Callable[..., Any]:
    """Compile a graph of torch.compile; `mode` and `options` are those of `torch.compile`."""
    settings = settings_of(mode, options)
    with compiling():
        try:
            return _compiled(gm, example_inputs, settings)
        except (_Uncompiled, Unsupported, UndecidedValue) as reason:
            events.record("uncompiled", reason=str(reason))
            events.count("uncompiled_graphs")
        except Exception as error:  # noqa: BLE001  the boundary: torch.compile's graph runs as it is
            failures.handle(error, during="compiling a graph of torch.compile",
                            attachments={"graph.py": gm.code})
        return gm.forward


def _compiled(gm: GraphModule, example_inputs: Sequence[object], settings: Settings
              ) -> Callable[..., Any]:
    """The compiled graph; floats are symbolic if operators allow it."""
    symbols = _Symbols(gm)
    try:
        return _attempt(symbols, example_inputs, settings)
    except (Unsupported, UndecidedValue):
        if not _fix_floats(gm):
            raise
    return _attempt(_Symbols(gm), example_inputs, settings)


def _attempt(symbols: _Symbols, example_inputs: Sequence[object], settings: Settings
             ) -> Callable[..., object]:
    with symbols.in_place(example_inputs) as inputs:
        call = compile_fx(symbols.gm, inputs, **settings)
    symbols.guard()
    return call


def _fix_floats(gm: GraphModule) -> bool:
    """Make constants of the program's floats, which torch.compile passes as tensors and reads by
    `item`; it guards their values. Whether there were any."""
    nodes = [n for n in gm.graph.find_nodes(op="call_method", target="item")
             if isinstance(n.meta.get("example_value"), torch.SymFloat)
             and n.meta["example_value"].node.has_hint()]
    for node in nodes:
        node.replace_all_uses_with(float(node.meta["example_value"]))
        gm.graph.erase_node(node)
    gm.recompile()
    return bool(nodes)


class _Uncompiled(Exception):
    """Why a graph of torch.compile runs as it is."""


@final
class _Symbols:
    """torch.compile's symbols of one graph, with weft's in their place."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self._context = ShapeContext(share_equal_hints=False, data_dependent=True)
        self._ours: dict[Any, torch.SymInt] = {}
        """By their expression."""
        self._theirs: dict[str, torch.SymInt] = {}
        """By the name of ours."""
        self._sizes: dict[Any, int] = {}
        """Their expressions that are sizes of tensors, with the size in this call; other numbers
        may be negative."""

    @contextmanager
    def in_place(self, example_inputs: Sequence[Any]) -> Iterator[list[Any]]:
        """Describe the inputs of the graph by weft's symbols; gives the examples for it."""
        nodes = self.gm.graph.find_nodes(op="placeholder")
        fakes = [node.meta.get("example_value") for node in nodes]
        try:
            yield self._replace(nodes, fakes, list(example_inputs))
        finally:
            for node, fake in zip(nodes, fakes, strict=True):
                node.meta["example_value"] = fake

    def _replace(self, nodes: list[Node], fakes: list[Any], inputs: list[Any]) -> list[object]:
        for fake, example in zip(fakes, inputs, strict=True):
            self._sizes.update((theirs.node.expr, hint) for theirs, hint in _extents(fake, example))
        for place, (node, fake) in enumerate(zip(nodes, fakes, strict=True)):
            if isinstance(fake, torch.SymInt):
                node.meta["example_value"] = inputs[place] = self._number(fake)
        for node, fake, example in zip(nodes, fakes, inputs, strict=True):
            if any(True for _ in _extents(fake, example)):
                note(node, CapturedFacts(layout=self._layout(fake, example)))
        if self._ours and any(isinstance(part, GraphModule) for part in self.gm.children()):
            raise _Uncompiled("graphs inside of a graph of symbolic sizes")
        note_graph(self.gm, GraphFacts(shapes=self._context))
        return inputs

    def _layout(self, fake: FakeTensor, example: torch.Tensor) -> tuple[list[Any], list[Any]]:
        sizes, strides = (
            [self._extent(n, hint) for n, hint in zip(theirs, hints, strict=True)]
            for theirs, hints in ((fake.size(), example.size()), (fake.stride(), example.stride())))
        return sizes, strides

    def _extent(self, theirs: object, hint: int) -> object:
        if not isinstance(theirs, torch.SymInt):
            return theirs
        known = self._polynomial(theirs.node.expr)
        return self._symbol(theirs, hint) if known is None else known

    def _polynomial(self, expression: Any) -> Any:
        """Products and sums of known symbols; None for anything else."""
        if expression in self._ours:
            return self._ours[expression]
        if expression.is_Integer:
            return int(expression)
        if not (expression.is_Add or expression.is_Mul):
            return None
        parts = [self._polynomial(part) for part in expression.args]
        if any(part is None for part in parts):
            return None
        return sum(parts) if expression.is_Add else math.prod(parts)

    def _number(self, theirs: torch.SymInt) -> Any:
        """A number of the graph's inputs."""
        fixed = theirs.node.maybe_as_int()
        if fixed is not None:
            return fixed
        hint = self._sizes.get(theirs.node.expr, theirs.node.hint)
        if hint is None:
            raise _Uncompiled(f"the number {theirs} of torch.compile has no example")
        return self._symbol(theirs, hint)

    def _symbol(self, theirs: torch.SymInt, hint: int) -> object:
        """A new symbol of weft's for one of theirs; an int for the sizes 0 and 1."""
        expression, name = theirs.node.expr, str(theirs)
        number: Any
        if not theirs.node.has_hint():
            number = self._context.unbacked_size(hint, name, lo=0, hi=_ANY_SIZE)
        elif expression in self._sizes:
            number = self._context.size(hint, name)
            for holds in (theirs >= 2, theirs <= COMMON_LIMIT) if hint > 1 else (theirs == hint,):
                _require(holds, f"the range of {name}")
        else:
            number = self._context.integer(hint, name)
        if not isinstance(number, int):
            self._ours[expression] = number
            self._theirs[str(expr_of(number))] = theirs
        return number

    def guard(self) -> None:
        """Ask torch.compile's symbols what the compiled graph goes by."""
        for guard in self._context.guards:
            text = python_text(guard.condition)
            _require(eval(text, dict(_FUNCTIONS), dict(self._theirs)), text)


_FUNCTIONS: Final = {"math": math, "min": torch.sym_min, "max": torch.sym_max}


def _require(condition: object, text: str) -> None:
    """Make a guard of a condition of torch.compile's symbols."""
    if not condition:
        raise InternalError(f"{text} does not hold")


def _extents(fake: object, example: Any) -> Iterator[tuple[torch.SymInt, int]]:
    """The symbolic sizes and strides of a tensor, and what they are in this call."""
    if isinstance(fake, FakeTensor):
        theirs = (*fake.size(), *fake.stride())
        for extent, number in zip(theirs, (*example.size(), *example.stride()), strict=True):
            if isinstance(extent, torch.SymInt):
                yield extent, number
