"""Which local variables the code from an instruction on may still read.

A continuation needs only these, and a tensor that is not passed on can be freed::

    def f(x):
        y = x.relu()        # live before: {x}
        g()                 # live before: {y}
        return y
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Final

from .disassemble import disassemble, slot_names
from .instruction import Bytecode, Instruction
from .percode import PerCode
from .tables import KIND, SLOT, SLOT_PAIR, TABLE
from .version import TERMINATORS

#: Functions whose use means that the frame's variables may be read by name.
_FRAME_READERS = frozenset({"_getframe", "currentframe", "dir", "eval", "exec", "locals", "vars"})

#: Functions that give the frames of the callers.
_FRAME_GETTERS = frozenset({"_getframe", "currentframe"})

#: Functions that need the real frame, or that let others watch the frames of later calls.
_FRAME_NEEDERS = frozenset({"eval", "exec", "setprofile", "settrace"})

#: Functions that stop the program in a debugger, which shows the frame and its callers.
_DEBUGGER_CALLS = frozenset({"breakpoint", "set_trace"})

#: Functions that are builtins: a method of that name (`model.eval()`) is something else.
_BUILTINS = frozenset({"breakpoint", "dir", "eval", "exec", "locals", "vars"})

_LIVE: PerCode[list[int]] = PerCode()


def needs_frame(code: CodeType) -> bool:
    """Whether the code reads its own frame, has frames watched, or has no lines to show in
    tracebacks, so that it must run in a real one if it is not inlined as a whole."""
    return asks_for_frames(code) or cannot_be_inlined(code)


def asks_for_frames(code: CodeType) -> bool:
    """Whether the code may ask for the frames of its callers, so that none of it may run in
    another frame."""
    return _mentions(code, _FRAME_GETTERS)


def cannot_be_inlined(code: CodeType) -> bool:
    """Whether the code needs a real frame even if it is captured from its first instruction to its
    last."""
    return _mentions(code, _FRAME_NEEDERS) or all(line is None for *_, line in code.co_lines())


def stops_in_debugger(code: CodeType) -> bool:
    """Whether the code may stop in a debugger: it and its callers run as plain Python."""
    return _mentions(code, _DEBUGGER_CALLS)


def _mentions(code: CodeType, names: frozenset[str]) -> bool:
    """Whether the code loads one of these functions."""
    mentioned = names.intersection(code.co_names)
    if not mentioned:
        return False
    if mentioned - _BUILTINS or "builtins" in code.co_names:
        return True
    return any(i.opname in ("LOAD_GLOBAL", "LOAD_NAME") and i.argval in mentioned
               for i in disassemble(code).instructions)


def live_locals(code: CodeType, offset: int) -> frozenset[str]:
    """The names of the locals and cells of `code` that may be read at or after `offset`.

    Free variables are not among them: they are in the function's closure.
    """
    own = len(slot_names(code)) - len(code.co_freevars)
    names = slot_names(code)[:own]
    if _mentions(code, _FRAME_READERS):
        return frozenset(names)
    body = disassemble(code)
    masks = _LIVE.get(code)
    if masks is None:
        masks = _LIVE[code] = _solve(body, _live_before(body))
    mask = masks[body.at(offset).index]
    live = {name for slot, name in enumerate(names) if mask >> slot & 1}
    if "__class__" in code.co_freevars and code.co_argcount:
        live.add(names[0])  # super() without arguments reads the first parameter from the frame
    return frozenset(live)


def needed_cells(code: CodeType, offset: int) -> frozenset[str]:
    """The cell variables whose cell the code uses from `offset` on without creating it."""
    if not code.co_cellvars:
        return frozenset()
    body = disassemble(code)
    own = slot_names(code)[: -len(code.co_freevars) or None]
    mask = _solve(body, _cells_before(body, len(slot_names(code))))[body.at(offset).index]
    return frozenset(name for slot, name in enumerate(own) if mask >> slot & 1)


#: (index of an instruction, bit mask of the slots wanted after it) → those wanted before it.
_Transfer = Callable[[int, int], int]


def _solve(body: Bytecode, before: _Transfer) -> list[int]:
    """Backward data flow: the wanted slots, as a bit mask, before each instruction."""
    instructions = body.instructions
    falls = [i.opname not in TERMINATORS for i in instructions]
    jumps = [-1 if i.target is None else i.target.index for i in instructions]
    handlers = [-1 if e is None else e.target.index for e in map(body.handler_of, instructions)]
    live = [0] * (len(instructions) + 1)  # index -1 finds the extra 0
    changed = True
    while changed:
        changed = False
        for n in range(len(instructions) - 1, -1, -1):
            after = live[jumps[n]] | (live[n + 1] if falls[n] else 0)
            # An exception may occur before the instruction writes anything.
            wanted = before(n, after) | live[handlers[n]]
            if wanted != live[n]:
                live[n] = wanted
                changed = True
    return live


def _live_before(body: Bytecode) -> _Transfer:
    effects = [_reads_and_writes(i) for i in body.instructions]

    def before(n: int, after: int) -> int:
        reads, writes = effects[n]
        return reads | after & ~writes

    return before


def _reads_and_writes(instruction: Instruction) -> tuple[int, int]:
    """Bit masks of the slots that an instruction reads, and writes."""
    kind = KIND[instruction.opcode]
    if kind == SLOT:
        slot = 1 << instruction.arg
        reads, writes = _SLOT_EFFECTS.get(instruction.opname, (True, False))
        return slot * reads, slot * writes
    if kind == SLOT_PAIR:
        first, second = 1 << (instruction.arg >> 4), 1 << (instruction.arg & 15)
        return _PAIR_EFFECTS[instruction.opname](first, second)
    return 0, 0


# Reads, writes; whatever is not here only reads. (STORE_DEREF reads its slot: it holds the cell.)
_SLOT_EFFECTS: Final = {
    "STORE_FAST": (False, True),
    "DELETE_FAST": (True, True),
    "LOAD_FAST_AND_CLEAR": (True, True),
    "MAKE_CELL": (True, True),
}
_PAIR_EFFECTS: Final[dict[str, Callable[[int, int], tuple[int, int]]]] = {
    "LOAD_FAST_LOAD_FAST": lambda first, second: (first | second, 0),
    "STORE_FAST_LOAD_FAST": lambda first, second: (second & ~first, first),
    "STORE_FAST_STORE_FAST": lambda first, second: (0, first | second),
}


def _cells_before(body: Bytecode, slots: int) -> _Transfer:
    """As `_solve`, for cells: a comprehension saves a variable of its own name with
    LOAD_FAST_AND_CLEAR and restores it with STORE_FAST. Bit `slots + n` says that the saved value
    of slot n must be a cell."""

    closure_loads = _closure_loads(body)

    def before(n: int, after: int) -> int:
        instruction = body.instructions[n]
        if KIND[instruction.opcode] != SLOT:
            return after
        slot = 1 << instruction.arg
        if instruction.opname in _CELL_READERS or n in closure_loads:
            return after | slot
        if instruction.opname == "STORE_FAST":
            return after & ~slot | (after & slot) << slots
        if instruction.opname == "LOAD_FAST_AND_CLEAR":
            return after & ~slot | after >> slots & slot
        return after & ~slot if instruction.opname == "MAKE_CELL" else after

    return before


_CELL_READERS: Final = frozenset(
    {"DELETE_DEREF", "LOAD_CLOSURE", "LOAD_DEREF", "LOAD_FROM_DICT_OR_DEREF", "STORE_DEREF"}
)


def _closure_loads(body: Bytecode) -> set[int]:
    """Where 3.13 loads the cells of a new function's closure: with plain LOAD_FASTs.

    They come before `BUILD_TUPLE; LOAD_CONST code; MAKE_FUNCTION`, one for each free variable.
    """
    if TABLE.load_cell_op != "LOAD_FAST":
        return set()
    loads_of_cells: set[int] = set()
    for i in body.instructions:
        code = body.instructions[i.index - 1].argval
        if i.opname == "MAKE_FUNCTION" and isinstance(code, CodeType):
            loads = body.instructions[i.index - 2 - len(code.co_freevars) : i.index - 2]
            loads_of_cells.update(load.index for load in loads if load.opname == "LOAD_FAST")
    return loads_of_cells
