"""Stop a function just before an instruction and read its state: stack, locals, cells.

Works by rewriting the byte code: before the instruction, code is inserted that copies the stack
items and calls back. Where the kind of an item is only known at run time (a method's
NULL or self, a cleared comprehension variable) the prefix is rewritten so that it is known.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import CellType, CodeType, FunctionType
from typing import Any

from tests.bytecode.loading import load

bytecode = load("bytecode")
tables = load("bytecode.tables")
stacksize = load("bytecode.stacksize")
liveness = load("bytecode.liveness")
TABLE = bytecode.TABLE
Instruction = bytecode.Instruction
_UNBOUND = object()
_LOAD_CHECKED = "LOAD_FAST_CHECK" if "LOAD_FAST_CHECK" in tables.OPMAP else "LOAD_FAST"
_LOAD_CELL = "LOAD_FAST_CHECK" if TABLE.load_cell_op == "LOAD_FAST" else TABLE.load_cell_op


@dataclass
class Snapshot:
    kinds: str
    stack: list[Any]
    locals: dict[str, Any]
    cells: dict[str, CellType]


def make(opname: str, arg: int = 0, positions: Any = (None,) * 4) -> Any:
    return Instruction(tables.OPMAP[opname], opname, arg, positions=positions)


class Prefix:
    """A copy of a function that stops at a visit of the instruction at `offset`."""

    def __init__(self, function: FunctionType, offset: int) -> None:
        self.function = function
        self.body = bytecode.disassemble(function.__code__)
        self.at = self._outside_of_keywords(self.body.at(offset).index)
        self.all_kinds = stack_kinds(function.__code__)
        self.kinds = self.all_kinds[self.at]
        #: A variable may hold a cell here and a plain value elsewhere (inlined comprehensions).
        offset = self.body.instructions[self.at].offset
        self.cells = tuple(sorted(liveness.needed_cells(function.__code__, offset)))
        self.locals = tuple(v for v in function.__code__.co_varnames if v not in self.cells)
        self.left = 1
        self.found: Snapshot | None = None
        self.code = self._instrument()

    def _outside_of_keywords(self, index: int) -> int:
        """Where the state is the same but can be seen: nothing may be called between KW_NAMES,
        which sets a register, and its CALL; PRECALL may replace a NULL."""
        names = [i.opname for i in self.body.instructions]
        while names[index] in ("PRECALL", "CALL") and names[index - 1] in ("PRECALL", "KW_NAMES"):
            index -= 1
        return index

    def until(self, visit: int) -> Prefix:
        """The same, to run until that visit (the first without this)."""
        self.left, self.found = visit, None
        return self

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the function, if it ended before; else None, and `found` is set."""
        f = self.function
        prefix = FunctionType(self.code, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
        prefix.__kwdefaults__ = f.__kwdefaults__
        return prefix(*args, **kwargs)

    def _instrument(self) -> CodeType:
        code = self.function.__code__
        names = bytecode.slot_names(code)
        temporaries = tuple(f".t{n}" for n in range(len(self.kinds)))
        varnames = code.co_varnames + temporaries
        shift = len(temporaries)

        def renumber(i: Any) -> Any:
            new = replace(i)
            if tables.KIND[i.opcode] == tables.SLOT and i.arg >= len(code.co_varnames):
                new.arg += shift
            return new

        self.handlers: dict[int, tuple[Any, int, bool]] = {}
        first: dict[int, Any] = {}
        out: list[Any] = []
        copies = [renumber(i) for i in self.body.instructions]
        self.consts = list(code.co_consts)
        for n, copy in enumerate(copies):
            mark = len(out)
            if n == self.at:
                out += self._report(code, shift, copy.positions)
            out += self._determined(copy, len(self.all_kinds.get(n, "")))
            first[n] = out[mark]
        for n, i in enumerate(self.body.instructions):
            if i.target is not None:
                copies[n].target = first[i.target.index]
        for e in self.body.exceptions:
            for n in range(e.start.index, e.end.index + 1):
                self.handlers[id(copies[n])] = (first[e.target.index], e.depth, e.lasti)
        entries = _entries(out, self.handlers)
        return bytecode.assemble(
            out, entries, code, co_varnames=varnames, co_nlocals=len(varnames),
            co_consts=tuple(self.consts),
        ).replace(co_stacksize=code.co_stacksize + 12 + len(names) + shift)

    def _const(self, value: Any) -> int:
        self.consts.append(value)
        return len(self.consts) - 1

    def _call(self, function: Any, arguments: list[Any], count: int) -> list[Any]:
        callee = [make("PUSH_NULL"), make("LOAD_CONST", self._const(function))]
        if TABLE.null_above_callable:
            callee.reverse()
        precall = [make("PRECALL", count)] if "PRECALL" in tables.OPMAP else []
        return [*callee, *arguments, *precall, make("CALL", count)]

    def _load_if_bound(self, slot: int, depth: int) -> list[Any]:
        """Push what is in a slot, or `_UNBOUND`."""
        load, done = make(_LOAD_CHECKED, slot), make("NOP")
        skip, handler = make("JUMP_FORWARD"), make("POP_TOP")
        skip.target = done
        self.handlers[id(load)] = (handler, depth, False)
        return [load, skip, handler, make("LOAD_CONST", self._const(_UNBOUND)), done]

    def _determined(self, i: Any, depth: int) -> list[Any]:
        """Instructions with the same effect, and a stack whose NULLs are known beforehand."""
        if i.opname == "LOAD_FAST_AND_CLEAR":
            # Whether it was bound or not: the slot is empty afterwards.
            empty = [make("LOAD_CONST", self._const(None)), make("STORE_FAST", i.arg)]
            return [*self._load_if_bound(i.arg, depth), *empty, make("DELETE_FAST", i.arg)]
        if i.opname == "LOAD_METHOD":
            i.opname, i.opcode = "LOAD_ATTR", tables.OPMAP["LOAD_ATTR"]
        elif (
            i.opname in ("LOAD_ATTR", "LOAD_SUPER_ATTR") and TABLE.version > (3, 11) and i.flags & 1
        ):
            i.arg &= ~1
        else:
            return [i]
        null = [make("PUSH_NULL")]
        return [i, *null] if TABLE.null_above_callable else [i, *null, make("SWAP", 2)]

    def _report(self, code: CodeType, shift: int, positions: Any) -> list[Any]:
        depth, base = len(self.kinds), len(code.co_varnames)
        values = [n for n, kind in enumerate(self.kinds) if kind != "n"]
        out: list[Any] = []
        for n in values:
            out += [make("COPY", depth - n), make("STORE_FAST", base + n)]
        names = bytecode.slot_names(code)
        cells = [names.index(name) for name in self.cells]
        cells = [slot + shift if slot >= base else slot for slot in cells]
        own = [
            self._load_if_bound(slot, depth + 4 + n)
            for n, slot in enumerate(names.index(name) for name in self.locals)
        ]
        arguments = [
            *(make("LOAD_FAST", base + n) for n in values),
            make("BUILD_TUPLE", len(values)),
            *(make(_LOAD_CELL, slot) for slot in cells),
            make("BUILD_TUPLE", len(cells)),
            *(i for loads in own for i in loads),
            make("BUILD_TUPLE", len(own)),
        ]
        out += self._call(self._stop, arguments, 3)
        jump, done = make(_if_none()), make("POP_TOP")
        jump.target = done
        leave = [make("RETURN_VALUE")]
        if "e" in self.kinds:
            leave = [
                make("LOAD_FAST", base + self.kinds.index("e")), make("POP_EXCEPT"), *leave,
            ]
        out += [make("COPY", 1), jump, *leave, done]
        for i in out:
            i.positions = positions
        return out

    def _stop(
        self, values: tuple[Any, ...], cells: tuple[CellType, ...], variables: tuple[Any, ...]
    ) -> Any:
        self.left -= 1
        if self.left:
            return None
        own = dict(zip(self.locals, variables, strict=True))
        own = {k: v for k, v in own.items() if v is not _UNBOUND and not isinstance(v, CellType)}
        kinds, stack = self._handled(values)
        self.found = Snapshot(kinds, stack, own, dict(zip(self.cells, cells, strict=True)))
        return self

    def _handled(self, values: tuple[Any, ...]) -> tuple[str, list[Any]]:
        """At an "e" lies the exception that was handled before; wanted is the one handled there."""
        raw = iter(values)
        pairs = [(k, None if k == "n" else next(raw)) for k in self.kinds]
        current = sys.exc_info()[1]
        for n in range(len(pairs) - 1, -1, -1):
            kind, value = pairs[n]
            if kind == "e":
                pairs[n], current = ("e", current), value
            elif value is _UNBOUND:
                pairs[n] = ("n", None)
        return "".join(k for k, _ in pairs), [v for k, v in pairs if k != "n"]


def _entries(instructions: list[Any], handlers: dict[int, tuple[Any, int, bool]]) -> list[Any]:
    """Exception table entries from the handler of each instruction."""
    entries: list[Any] = []
    last: Any = None
    for i in instructions:
        handler = handlers.get(id(i))
        if handler is not None and handler == last:
            entries[-1].end = i
        elif handler is not None:
            entries.append(bytecode.ExceptionEntry(i, i, *handler))
        last = handler
    return entries


def _if_none() -> str:
    name = "POP_JUMP_FORWARD_IF_NONE"
    return name if name in tables.OPMAP else "POP_JUMP_IF_NONE"


def stack_kinds(code: CodeType) -> dict[int, str]:
    """The kinds of the stack items before each reachable instruction, bottom to top."""
    body = bytecode.disassemble(code)
    kinds: dict[int, str] = {}
    work = [(0, "")]
    while work:
        at, stack = work.pop()
        if at in kinds:
            assert len(kinds[at]) == len(stack), (code, at)
            continue
        kinds[at] = stack
        i = body.instructions[at]
        handler = body.handler_of(i)
        if handler is not None:
            work.append((handler.target.index, stack[: handler.depth] + "v" * (handler.lasti + 1)))
        if i.target is not None:
            work.append((i.target.index, _after(i, stack, True)))
        if i.opname not in stacksize.TERMINATORS:
            work.append((at + 1, _after(i, stack, False)))
    return kinds


def _after(i: Any, stack: str, jump: bool) -> str:
    call = "vn" if TABLE.null_above_callable else "nv"
    if i.opname == "SWAP":
        items = list(stack)
        items[-1], items[-i.arg] = items[-i.arg], items[-1]
        return "".join(items)
    if i.opname == "PUSH_NULL":
        return stack + "n"
    if i.opname == "LOAD_GLOBAL" and i.flags & 1:
        return stack + call
    if i.opname == "LOAD_METHOD" or (i.opname == "LOAD_ATTR" and i.flags & 1):
        return stack[:-1] + call
    if i.opname == "LOAD_SUPER_ATTR" and i.flags & 1:
        return stack[:-3] + call
    if i.opname == "PUSH_EXC_INFO":
        return stack[:-1] + "ev"
    effect = stacksize._effect(i, jump)
    if effect > 0:
        return stack + "v" * effect
    stack = stack[: len(stack) + effect]
    return (
        stack[:-1] + "v" if i.opname.startswith("CALL") and "INTRINSIC" not in i.opname else stack
    )
