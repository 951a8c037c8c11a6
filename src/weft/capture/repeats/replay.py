"""Makes the part of the graph, and the guards, of a call that repeats another one.

Place in the pipeline: after `recordings.match`. Guards go to the new call's sources, parameters
become inputs, operators run on the new call's fakes and are recorded; all in the order in which
interpretation would have done it::

    result = Replay(tx, match).run()
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import fx

from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import GraphBreak, StartOver
from weft.capture.core.constant import ConstantValue
from weft.capture.core.source import Reference, Source
from weft.capture.guards.guard_set import Guard
from weft.capture.library.containers.sequences import SequenceValue
from weft.capture.library.tensors.operations_on_fakes import run_on_fakes
from weft.capture.library.tensors.tensor import TensorValue
from weft.capture.repeats.recordings import Match, tensor_form
from weft.errors import SourceLine
from weft.shapes.graph_facts import captured_facts, note

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_NUMBERS: Final = (int, float)


@final
class Replay:
    """Adds to an interpretation what a call would add that repeats a recorded one."""

    def __init__(self, tx: Interpreter, match: Match, module_path: Callable[[Source], str]) -> None:
        self._tx = tx
        self._match = match
        self._recording = match.recording
        self._pattern = match.pattern
        self._module_path = module_path
        self._lines = tx.stack()
        self._modules = tx.module_stack()
        self._places: list[Source] = []
        self._nodes: dict[fx.Node, fx.Node] = {}
        """The new nodes, by the recorded ones."""
        self._values: dict[fx.Node, SymbolicValue] = {}
        self._stacks: dict[int, dict[str, tuple[str, type]]] = {}

    def run(self) -> SymbolicValue:
        """Add all, and return the result of the call."""
        tx, begin, end = self._tx, self._recording.begin, self._recording.end
        self._make_places()
        self._add_guards()
        self._add_nodes()
        tx.step += end.step - begin.step
        tx.data.turns += end.turns - begin.turns
        if tx.step >= tx.stops.at:
            tx.stops.check_limits(tx)
        tx.direct_call, tx.frames_left_out = self._recording.flags
        return self._value(self._recording.result)

    def _fail(self) -> StartOver:
        """The signal to interpret again, every call."""
        self._tx.policy.repeats_calls = False
        return StartOver()

    # -- guards -----------------------------------------------------------------------------------

    def _make_places(self) -> None:
        roots = iter(self._match.pairs.roots)
        for source, base in zip(self._pattern.sources, self._pattern.bases, strict=True):
            self._places.append(
                next(roots).new if base < 0 else source.again(self._places[base]))

    def _add_guards(self) -> None:
        guards, pattern = self._tx.guards, self._pattern
        last = self._recording.end.guards
        indices = sorted({check[-1] for source in pattern.sources
                          for check in source.checks.values() if check[-1] < last})
        stack = guards.stack
        try:
            for guard in [guards.all[index] for index in indices]:
                guards.stack = partial(self._stack, guard.stack)
                self._add_guard(guard)
            guards.stack = self._tx.stack
            for at in pattern.values:
                self._wrap(at)
            for first, second in pattern.same:
                guards.same(self._moved(first), self._moved(second))
        finally:
            guards.stack = stack

    def _add_guard(self, guard: Guard) -> None:
        tx, source = self._tx, guard.source
        assert source is not None
        at = self._pattern.index[source]
        self._wrap(at)
        place = self._places[at]
        if guard.kind == "eq" and type(guard.args[0]) in _NUMBERS and (
                tx.policy.has_asked_for(source.name)):
            if not tx.wrap(self._match.objects[at], place).is_constant:
                raise self._fail()
            return
        args = [arg() if type(arg) is Reference else arg for arg in guard.args] if (
            guard.kind == "is") else guard.args
        tx.guards.add(place, guard.kind, *args)

    def _wrap(self, at: int) -> None:
        """Make the value of the object at a place, unless it is known or was unknown so far."""
        old = self._pattern.values.get(at)
        obj = self._match.objects[at]
        if old is None or id(old) not in self._pattern.known or (
                self._tx.outside.value_of(obj) is not None):
            return
        base = self._pattern.bases[at]
        if base >= 0:
            self._wrap(base)
        if self._tx.outside.value_of(obj) is not None:
            return
        new = self._tx.wrap(obj, self._places[at])
        if new.__class__ is not old.__class__ or new.source is not self._places[at]:
            raise self._fail()

    def _moved(self, source: Source) -> Source:
        at = self._pattern.index.get(source)
        return source if at is None else self._places[at]

    def _stack(self, lines: tuple[SourceLine, ...]) -> tuple[SourceLine, ...]:
        """The lines of a guard or node, below the new call."""
        callers = self._recording.lines
        if lines[:len(callers)] != callers:
            return self._lines
        return (*self._lines, *lines[len(callers):])

    # -- the graph --------------------------------------------------------------------------------

    def _add_nodes(self) -> None:
        tx, begin, end = self._tx, self._recording.begin, self._recording.end
        self._nodes = {node: value.proxy(tx) for node, value in self._match.pairs.tensors}
        for node in tx.calls.nodes[begin.calls:end.calls]:
            for operand in node.all_input_nodes:
                self._add_input(operand)
            self._add_call(node)
        for item in tx.builder.inputs[begin.inputs:end.inputs]:
            self._add_input(item.node)

    def _add_input(self, node: fx.Node) -> None:
        source = self._pattern.inputs.get(node)
        if source is not None and node not in self._nodes:
            value = self._tx.outside.value_of(self._match.objects[self._pattern.index[source]])
            if not isinstance(value, TensorValue):
                raise self._fail()
            self._nodes[node] = value.proxy(self._tx)

    def _add_call(self, old: fx.Node) -> None:
        tx = self._tx
        args, kwargs = fx.node.map_arg((old.args, old.kwargs), self._node)
        facts = captured_facts(old)
        if facts.notes is not None and facts.notes.written:  # memory of its own
            with tx.fakes.mode.noting() as notes:
                example = self._example(old)
            facts = replace(facts, notes=notes)
        else:
            example = self._example(old)
        node = tx.builder.call(old.target, args, kwargs, example, self._stack(old.meta["stack"]))
        if "nn_module_stack" in old.meta:
            node.meta["nn_module_stack"] = self._module_stack(old.meta["nn_module_stack"])
            note(node, facts)
        tx.calls.nodes.append(node)
        self._nodes[old] = node

    def _fake(self, node: fx.Node) -> Any:
        return self._node(node).meta["example_value"]

    def _node(self, node: fx.Node) -> fx.Node:
        return self._nodes.get(node, node)

    def _example(self, old: fx.Node) -> Any:
        """What the operator gives for the new fakes."""
        args: list[Any] = _plain(fx.node.map_arg(list(old.args), self._fake))
        kwargs: dict[str, Any] = _plain(fx.node.map_arg(dict(old.kwargs), self._fake))
        if old.target is operator.getitem and not isinstance(args[0], torch.Tensor):
            example = args[0][args[1]]
        else:
            try:
                example, _ = run_on_fakes(self._tx, old.target, args, kwargs)
            except GraphBreak:
                raise self._fail() from None
        if not _is_alike(old.meta["example_value"], example):
            raise self._fail()
        return example

    def _module_stack(self, old: dict[str, tuple[str, type]]) -> dict[str, tuple[str, type]]:
        known = self._stacks.get(id(old))
        if known is None:
            inner = {name: entry for name, entry in old.items()
                     if name not in self._recording.modules}
            known = self._stacks[id(old)] = {
                **self._modules, **dict(self._module(*item) for item in inner.items())}
        return known

    def _module(self, name: str, entry: tuple[str, type]) -> tuple[str, tuple[str, type]]:
        """A module of the new call in place of one of the recorded call."""
        at = next((at for at in self._pattern.values
                   if str(id(self._pattern.objects[at])) == name), None)
        if at is None:
            return name, entry
        path = self._module_path(self._places[at])
        return str(id(self._match.objects[at])), (path, entry[1])

    # -- the result -------------------------------------------------------------------------------

    def _value(self, old: SymbolicValue) -> SymbolicValue:
        """The value in place of one of the recorded call."""
        new = self._match.pairs.values.get(id(old))
        if new is not None:
            return new
        if old.source is not None:
            at = self._pattern.index.get(old.source)
            if at is None:
                return old
            return self._tx.wrap(self._match.objects[at], self._places[at])
        if old.__class__ is ConstantValue:
            return old
        if isinstance(old, TensorValue):
            return self._tensor(old)
        return self._sequence(old)

    def _sequence(self, old: SymbolicValue) -> SymbolicValue:
        assert isinstance(old, SequenceValue)
        return type(old)([self._value(item) for item in old.items])

    def _tensor(self, old: TensorValue) -> SymbolicValue:
        node = old.proxy(self._tx)
        new = self._nodes.get(node)
        if new is None:
            return old
        if new not in self._values:
            self._values[new] = TensorValue(new.meta["example_value"], new)
        return self._values[new]


def _plain(value: Any) -> Any:
    """Arguments of a node without torch.fx's own lists and dictionaries."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) is slice:
        return slice(*map(_plain, (value.start, value.stop, value.step)))
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return tuple(map(_plain, value)) if type(value) is tuple else value


def _is_alike(old: object, new: object) -> bool:
    """Whether two results have the same form."""
    if type(old) is not type(new):
        return False
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return tensor_form(old) == tensor_form(new)
    if isinstance(old, (tuple, list)) and isinstance(new, (tuple, list)):
        return len(old) == len(new) and all(map(_is_alike, old, new))
    return bool(old == new)
