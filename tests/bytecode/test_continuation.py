"""A continuation does what the rest of the function would have done, wherever it is broken."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import FunctionType
from typing import Any

from tests.bytecode.loading import load
from tests.bytecode.programs import LOG, PROGRAMS
from tests.bytecode.snapshot import Prefix, stack_kinds

bytecode = load("bytecode")
continuation = load("bytecode.continuation")
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


def resumed_with(
    function: FunctionType, offset: int, found: Any, only_live: bool = False
) -> tuple[FunctionType, list[Any]]:
    """The continuation for a state, and its arguments."""
    code = function.__code__
    live = liveness.live_locals(code, offset) if only_live else {*found.locals, *found.cells}
    variables = {k: v for k, v in found.locals.items() if k in live and not k.startswith(".")}
    needed = liveness.needed_cells(code, offset) | live
    cells = {k: v for k, v in found.cells.items() if k in needed}
    resumed = continuation.resume_function(
        code, offset, found.kinds, tuple(variables), tuple(cells),
        globals=function.__globals__, closure=function.__closure__,
    )
    return resumed, [*found.stack, *variables.values(), *cells.values()]


def test_every_instruction_of_every_program() -> None:
    """With all variables of the frame, and with only the live ones."""
    checked = 0
    for function, args, kwargs in PROGRAMS:
        LOG.clear()
        expected = outcome(lambda: function(*args, **kwargs)), list(LOG)
        for offset in breakable(function):
            prefix = Prefix(function, offset)
            for visit, only_live in product(range(1, _VISITS + 1), (False, True)):
                LOG.clear()
                outcome(lambda: prefix.until(visit).run(*args, **kwargs))
                if prefix.found is None:
                    break
                resumed, arguments = resumed_with(function, offset, prefix.found, only_live)
                rest = outcome(lambda: resumed(*arguments))
                where = f"{function.__qualname__}{args} at {offset}, visit {visit}"
                assert (rest, LOG) == expected, f"{where}:\n{rest, LOG}\n{expected}"
                checked += 1
    assert checked > 3000


def test_continuations_of_continuations() -> None:
    """Break twice: the second comes from the original code, and is the same object each time."""
    checked = 0
    for function, args, kwargs in PROGRAMS:
        LOG.clear()
        expected = outcome(lambda: function(*args, **kwargs)), list(LOG)
        offsets = breakable(function)
        for first, second in zip(offsets[::7], offsets[5::7], strict=False):
            LOG.clear()
            start = Prefix(function, first)
            outcome(lambda: start.run(*args, **kwargs))
            if start.found is None:
                continue
            middle, arguments = resumed_with(function, first, start.found)
            places = original_offsets(middle)
            if second not in places:
                continue
            stop = Prefix(middle, places[second])
            outcome(lambda: stop.run(*arguments))
            if stop.found is None:
                continue
            last, rest_arguments = resumed_with(middle, places[second], stop.found)
            direct, _ = resumed_with(function, second, stop.found)
            assert last.__code__ is direct.__code__
            rest = outcome(lambda: last(*rest_arguments))
            where = f"{function.__qualname__}{args} at {first}, then {second}"
            assert (rest, LOG) == expected, f"{where}:\n{rest, LOG}\n{expected}"
            checked += 1
    assert checked > 60


def original_offsets(resumed: FunctionType) -> dict[int, int]:
    """Offset in the original code → offset in a continuation."""
    code = resumed.__code__
    found = {}
    for offset in breakable(resumed):
        root, place = continuation.original_position(code, offset)
        if root is not code:
            found[place] = offset
    return found


def test_the_same_state_gives_the_same_code() -> None:
    def f(x: Any) -> Any:
        return len(x) + 1

    offset = bytecode.disassemble(f.__code__).instructions[-2].offset
    one = continuation.resume_function(f.__code__, offset, 2, (), globals=globals())
    two = continuation.resume_function(f.__code__, offset, "vv", (), globals=globals())
    other = continuation.resume_function(f.__code__, offset, "vv", ("x",), globals=globals())
    assert one.__code__ is two.__code__ is not other.__code__
    assert one(3, 4) == 7
    assert one.__code__.co_name == "f"


def test_cells_are_shared_not_copied() -> None:
    def f() -> Any:
        total = 1

        def add() -> None:
            nonlocal total
            total += 1

        LOG.append(add)
        add()
        return total

    LOG.clear()
    body = bytecode.disassemble(f.__code__)
    last = body.instructions[-2].offset
    stop = Prefix(f, last)
    stop.run()
    rest, arguments = resumed_with(f, last, stop.found)
    LOG[0]()
    assert rest(*arguments) == 3


OUTLIVING = """
import weakref
from tests.bytecode.loading import load
bytecode, continuation = load("bytecode"), load("bytecode.continuation")

class Item:
    pass

def f(x, g):
    g(x)
    return g(None)

body = bytecode.disassemble(f.__code__)
call = next(i for i in body.instructions if i.opname == "CALL")
after = body.instructions[call.index + 1].offset
rest = continuation.resume_function(f.__code__, after, 1, ("g",), globals=globals())
held = [Item()]
alive = weakref.ref(held[0])
assert rest(held.pop(), lambda _: alive()) is None
"""


def test_stack_arguments_do_not_outlive_their_use() -> None:
    """In a process of its own: where an evaluator of frames is installed, as torch.compile's is
    after a test of it, the caller's stack holds the arguments of a call."""
    subprocess.run([sys.executable, "-c", OUTLIVING], check=True, cwd=Path(__file__).parents[2])


def test_what_cannot_be_resumed_is_refused() -> None:
    def generator() -> Any:
        yield len("x")

    def cells(x: Any) -> Any:
        len("x")
        return lambda: x

    def plain(x: Any) -> Any:
        return len(x)

    def last(f: Any) -> int:
        return bytecode.disassemble(f.__code__).instructions[-1].offset

    def call(f: Any) -> int:
        body = bytecode.disassemble(f.__code__)
        return body.instructions[[i.opname for i in body.instructions].index("CALL") + 1].offset

    refused = [
        (generator, last(generator), 1, ()),
        (cells, 0, 0, ("x",)),
        (plain, last(plain), 2, ()),
        (plain, last(plain), 1, ("y",)),
        (plain, last(plain), "x", ()),
        (cells, call(cells), 1, ()),
    ]
    for f, offset, stack, names in refused:
        try:
            continuation.resume_function(f.__code__, offset, stack, names, globals=globals())
        except continuation.CannotResumeError as error:
            assert str(error)
        else:
            raise AssertionError((f, offset, stack, names))


def test_continuations_die_with_their_code() -> None:
    before = len(continuation._CONTINUATIONS), len(continuation._ORIGINS)
    scope: dict[str, Any] = {}
    exec("def f(x):\n return len(x) + 1", scope)
    f = scope.pop("f")
    last = bytecode.disassemble(f.__code__).instructions[-1].offset
    rest = continuation.resume_function(f.__code__, last, 1, (), globals=globals())
    assert rest(5) == 5
    assert len(continuation._CONTINUATIONS) == before[0] + 1
    del f, rest
    assert (len(continuation._CONTINUATIONS), len(continuation._ORIGINS)) == before
