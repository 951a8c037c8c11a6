"""The replacement function: what runs instead of a captured frame (contract 2).

Place in the pipeline: the end of capture. A `ReplacementEmitter` turns values into Python
expressions and collects the statements of `def replacement(v)`, where `v` is the list that the
guards collected::

    emit = ReplacementEmitter(tx)
    emit.line(f"return {emit.value(result)}")
    replacement, text = emit.finish(graph_callable, inputs, code)

Each object is rebuilt once, so identity and aliasing are preserved; objects from outside are read
from `v`.
"""

from __future__ import annotations

import enum
import itertools
import re
import types
from collections import deque, namedtuple
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

from torch import fx

from weft._torch import (
    pop_torch_function_mode,
    push_torch_function_mode,
)
from weft.capture.bytecode.continuation import original_position
from weft.capture.core.base import LazyValue, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.frame import frame_places
from weft.capture.core.graph import GraphInput
from weft.capture.core.source import Source
from weft.capture.core.tracebacks import Place, hide
from weft.capture.library.tensors.device_modes import mode_changes
from weft.capture.replacement.function import ReplacementParts, replacement_function
from weft.capture.replacement.graph_calls import GraphCallWriter
from weft.diagnostics.regions import Region
from weft.graph_call import GraphCall
from weft.quoting import is_name, literal
from weft.stances import set_error_mode

if TYPE_CHECKING:
    from weft.capture.core.frame import Frame
    from weft.capture.core.protocols import Interpreter
hide(Region.__call__.__code__)


@final
class ReplacementEmitter:
    """Writes the body of a replacement function."""

    def __init__(self, tx: Interpreter) -> None:
        self.tx = tx
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self.outputs: list[fx.Node] = []
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []
        self._constant_names: dict[int, str] = {}
        self._temporaries = itertools.count()
        self._depth = 0
        self._unfilled: deque[Callable[[], None]] = deque()
        self.places: dict[str, tuple[Place, ...]] = {}
        """For a line, the frames of the program that tracebacks show instead of it."""
        self.settled: set[int] = set()
        """Ids of the values whose side effects are emitted."""
        self.graph_call = GraphCallWriter(self)
        self.parts: ReplacementParts | None = None
        """What the finished function was made of."""

    # -- expressions ------------------------------------------------------------------------------

    def value(self, value: SymbolicValue) -> str:
        """An expression for the value's object."""
        known = self._names.get(id(value))
        if known is not None:
            return known
        if value.source is not None:
            return self._outside(value)
        self._depth += 1
        try:
            text = value.rebuild(self)
        finally:
            self._depth -= 1
        self._kept.append(value)
        text = self._names.setdefault(id(value), text)
        if self._depth == 0:
            self.fill()
        return text

    def has(self, value: SymbolicValue) -> bool:
        """Whether the value's object appears in the replacement."""
        return id(value) in self._names

    def later(self, fill: Callable[[], None]) -> None:
        """Fill a container after everything under construction has a name, so that cycles work."""
        self._unfilled.append(fill)

    def fill(self) -> None:
        """Run what was passed to `later`, one after the other."""
        self._depth += 1
        while self._unfilled:
            self._unfilled.popleft()()
        self._depth -= 1

    def hashed(self, value: SymbolicValue) -> str:
        """An expression for the value's object with all its parts: it will be hashed."""
        text = self.value(value)
        self.fill()
        return text

    def _outside(self, value: SymbolicValue) -> str:
        source = value.source
        assert source is not None
        if source.is_fixed:
            return self.constant(source.accessor[1])
        if (value.__class__ is not LazyValue and value.is_constant and not value.has_parts
                and not self.tx.guards.is_passed(source)):
            return value.rebuild(self)
        return f"v[{source.collect()}]"

    def constant(self, obj: object) -> str:
        """The closure variable of the replacement that holds the object."""
        class_name = self._made_inside(obj) if self.tx.classes.made else None
        if class_name is not None:
            return class_name
        name = self._constant_names.get(id(obj))
        if name is None:
            name = f"c{len(self.constants)}"
            label = getattr(obj, "__name__", None)
            if type(label) is str and is_name(label):
                name = f"{name}_{label}"
            self._constant_names[id(obj)] = name
            self.constants[name] = obj
        return name

    def _made_inside(self, obj: object) -> str | None:
        """An expression for a class that the program made or for a member of such an enum, else
        None."""
        recipe = self.tx.classes.made.get(obj) if isinstance(obj, type) else None
        if recipe is not None:
            return self.value(recipe)
        if isinstance(obj, enum.Enum) and type(obj) in self.tx.classes.made:
            return f"{self.constant(type(obj))}[{literal(obj.name)}]"
        if isinstance(obj, _PART_OF_CLASS):
            for model in self.tx.classes.made:
                for name, part in vars(model).items():
                    if part is obj:
                        return f"vars({self.constant(model)})[{literal(name)}]"
        if type(obj) in self.tx.classes.made:
            raise graph_break("unknown-value", "a constant of a class made inside")
        return None

    def filled(self, value: SymbolicValue) -> str:
        """An expression for an object that already holds its items: an iterator only advances over
        items that exist."""
        text = self.value(value)
        self.fill()
        self.tx.effects.settle(value, self)
        self.fill()
        return text

    def output(self, node: fx.Node) -> str:
        """The variable of a graph output."""
        if node not in self.outputs:
            self.outputs.append(node)
        return f"out{self.outputs.index(node)}"

    # -- statements -------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append(text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent the lines emitted inside, as the body of a compound statement."""
        self.line(head)
        first = len(self.lines)
        yield
        self.lines[first:] = [f"    {line}" for line in self.lines[first:]] or ["    pass"]

    def temporary(self, text: str) -> str:
        """Assign an expression to a new variable and return its name."""
        name = f"t{next(self._temporaries)}"
        self.line(f"{name} = {text}")
        return name

    def stands_for(self, line: str, frame: Frame) -> None:
        """Show the frame and its callers in tracebacks in place of the line."""
        self.places[line] = frame_places(frame)

    def bind(self, value: SymbolicValue, text: str) -> str:
        """Name the object of a value before its parts are emitted, since they may refer to it.

        A part that was emitted first, and refers to the value, has made it already.
        """
        if id(value) in self._names:
            return self._names[id(value)]
        name = self._names[id(value)] = self.temporary(text)
        self._kept.append(value)
        return name

    # -- the function -----------------------------------------------------------------------------

    def finish(self, graph: GraphCall | None, inputs: list[GraphInput],
               code: types.CodeType) -> tuple[Callable[[list[Any]], object], str]:
        """The replacement function of the code, and its source: first the graph call, then the
        emitted lines."""
        call = self.graph_call
        early = [] if graph is None or call.may_run_eagerly else self.tx.effects.early_lines(self)
        body = [*call.lines(graph, inputs, early), *self.lines]
        if call.goes_on:
            body = release_variables(drop_dead_names(body), self._variable_slots())
        text = "\n".join([
            f"def make({', '.join(['graph', *self.constants])}):",
            "    def replacement(v):",
            *(f"        {line}" for line in body),
            "    return replacement",
        ])
        parts = self.parts = ReplacementParts(text, self.constants, self.places, call.region)
        user = original_position(code, 0)[0]
        return replacement_function(parts, graph, user, self.tx.root_globals), text

    def _variable_slots(self) -> list[int]:
        """The collected values that, as far as can be told, only variables of the frame hold."""
        return [slot for root in self.tx.tree.roots() if root.accessor[0] == "local"
                for slot in _own_slots(root)]


_PART_OF_CLASS: Final = (type(vars(namedtuple("_", "x"))["x"]),)
"""Types whose instances belong to one class, such as a named tuple's field getters."""

_VARIABLE: Final = re.compile(r"(?<![\w.'\"])(?:t|out)\d+\b")


def drop_dead_names(lines: list[str]) -> list[str]:
    """Delete variables after their last use, if that is in the block where they are assigned."""
    last: dict[str, int] = {}
    assigned_in: dict[str, int] = {}
    blocks = _blocks(lines)
    for index, line in enumerate(lines):
        for name in _VARIABLE.findall(line):
            last[name] = index
        for name in _VARIABLE.findall(_targets(line)):
            assigned_in[name] = 0 if name.startswith("out") else blocks[index]
    dead: dict[int, list[str]] = {}
    for name, index in last.items():
        if assigned_in.get(name) == blocks[index] and not lines[index].endswith(":"):
            dead.setdefault(index, []).append(name)
    result = []
    for index, line in enumerate(lines):
        result.append(line)
        statement = line.lstrip()
        if index in dead and not statement.startswith(("return", "raise", "del ")):
            indentation = line[:-len(statement)]
            result.append(f"{indentation}del {', '.join(dead[index])}")
    return result


def _blocks(lines: list[str]) -> list[int]:
    """For each line the number of its block: 0 outside of compound statements."""
    block_numbers, numbers, within = [], itertools.count(1), {0: 0}
    for line in lines:
        indentation = len(line) - len(line.lstrip())
        within = {depth: block for depth, block in within.items() if depth <= indentation}
        if indentation not in within:
            within[indentation] = next(numbers)
        block_numbers.append(within[indentation])
    return block_numbers


def _targets(line: str) -> str:
    """The left side of an assignment, or ""."""
    return line.partition("=")[0] if re.match(r"\s*(\w+, )*\w+,? ?= ", line) else ""


def release_variables(lines: list[str], slots: Iterable[int]) -> list[str]:
    """Drop collected values after their last use: what follows may run long, and eager would have
    freed what the program deleted."""
    last = dict.fromkeys(slots, -1)
    for index, line in enumerate(lines):
        for first, end in _SLOTS.findall(line):
            used = range(int(first), int(end or first) + (not end))
            last.update((slot, index) for slot in used if slot in last)
    released: dict[int, list[str]] = {}
    for slot, index in last.items():
        released.setdefault(_after_block(lines, index), []).append(f"v[{slot}]")
    result = []
    for index, line in enumerate(lines):
        if index in released and not all(r.startswith(("del ", "return")) for r in lines[index:]):
            result.append(f"{' = '.join(released[index])} = None")
        result.append(line)
    return result


_SLOTS: Final = re.compile(r"\bv\[(\d+)(?::(\d+))?\]")


def _after_block(lines: list[str], index: int) -> int:
    """The first line after `index` and the compound statement around it."""
    index += 1
    while index < len(lines) and lines[index].startswith((" ", "except", "el", "finally")):
        index += 1
    return index


def _own_slots(source: Source) -> Iterator[int]:
    """The slots of a variable and of what only its object may hold: a tuple's items, the
    `__dict__`."""
    if source.slot >= 0:
        yield source.slot
    for child in source.children():
        if child.accessor[0] in ("tuple_item", "instance_dict"):
            yield from _own_slots(child)


def restore_modes(emit: ReplacementEmitter, tx: Interpreter) -> None:
    """Undo the program's mode changes at the end of the graph, and emit them after it."""
    if tx.end.error_mode is not tx.state.error_mode:
        emit.line(f"{emit.constant(set_error_mode)}({tx.end.error_mode})")
    undo, redo = tx.end.changes
    for function, args in undo:
        tx.builder.effect(function, args, ())
        tx.builder.n_calls -= 1
    for function, args in redo:
        emit.line(f"{emit.constant(function)}({', '.join(map(emit.constant, args))})")
    left, entered = mode_changes(tx)
    for _ in range(left):
        emit.line(f"{emit.constant(pop_torch_function_mode)}()")
    for mode in entered:
        emit.line(f"{emit.constant(push_torch_function_mode)}({emit.value(mode)})")
