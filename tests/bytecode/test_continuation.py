"""A continuation does what the rest of the function would have done, wherever it is broken."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import FunctionType
from typing import Any

from loading import load
from programs import LOG, PROGRAMS
from snapshot import Prefix, stack_kinds

bytecode = load("bytecode")
continuation = load("continuation")
liveness = load("bytecode.liveness")

TABLE = bytecode.TABLE
_VISITS = 3


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    """What a call gives or raises, with the lines of the traceback and the chain of contexts."""
    try:
        return "gives", repr(call())
    except Exception as error:
        chain = []
        link: BaseException | None = error
        while link is not None:
            chain.append((type(link).__name__, link.args, link.__suppress_context__))
            link = link.__context__
        return "raises", chain, [f.lineno for f in traceback.extract_tb(error.__traceback__)[-1:]]


def breakable(function: FunctionType) -> list[int]:
    """Offsets of the instructions after the start of the function that can be reached."""
    body = bytecode.disassemble(function.__code__)
    begun = next(i.index for i in body.instructions if i.opname == "RESUME")
    kinds = stack_kinds(function.__code__)
    return [
        i.offset
        for i in body.instructions
        if i.index > begun and i.index in kinds and not _belongs_to_for_iter(i, body.instructions)
    ]


def _belongs_to_for_iter(i: Any, instructions: list[Any]) -> bool:
    """FOR_ITER jumps over the END_FOR (and 3.13's POP_TOP) that follow a loop."""
    before = instructions[i.index - 1].opname if TABLE.version >= (3, 13) else ""
    return i.opname == "END_FOR" or before == "END_FOR"


def resume(function: FunctionType, offset: int, found: Any, only_live: bool) -> Callable[[], Any]:
    code = function.__code__
    live = liveness.live_locals(code, offset) if only_live else {*found.locals, *found.cells}
    variables = {k: v for k, v in found.locals.items() if k in live}
    needed = liveness.needed_cells(code, offset) | live
    cells = {k: v for k, v in found.cells.items() if k in needed}
    resumed = continuation.resume_function(
        code, offset, found.kinds, tuple(variables), tuple(cells),
        globals=function.__globals__, closure=function.__closure__,
    )  # fmt: skip
    arguments = [*found.stack, *variables.values(), *cells.values()]
    return lambda: resumed(*arguments)


def check_everywhere(only_live: bool) -> int:
    checked = 0
    for function, args, kwargs in PROGRAMS:
        LOG.clear()
        expected = outcome(lambda: function(*args, **kwargs)), list(LOG)
        for offset in breakable(function):
            for visit in range(1, _VISITS + 1):
                LOG.clear()
                prefix = Prefix(function, offset, visit)
                outcome(lambda: prefix.run(*args, **kwargs))
                if prefix.found is None:
                    break
                rest = outcome(resume(function, offset, prefix.found, only_live))
                where = f"{function.__qualname__}{args} at {offset}, visit {visit}"
                assert (rest, LOG) == expected, f"{where}:\n{rest, LOG}\n{expected}"
                checked += 1
    return checked


def test_every_instruction_of_every_program() -> None:
    assert check_everywhere(only_live=False) > 1500


def test_every_instruction_with_only_the_live_variables() -> None:
    assert check_everywhere(only_live=True) > 1500
