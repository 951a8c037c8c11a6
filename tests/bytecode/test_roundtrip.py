"""assemble(disassemble(code)) is the same code, for every function of the standard library."""

from __future__ import annotations

import opcode
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

from tests.bytecode.loading import load

bytecode = load("bytecode")
EVERY = 1
"""Of how many files one is read (`plain.py` reads fewer)."""

_NO_PART_OF_IT = {"site-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}


def nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from nested(const)


def library_codes() -> Iterator[CodeType]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py"))[::EVERY]:
        if _NO_PART_OF_IT.isdisjoint(path.relative_to(root).parts):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
            yield from nested(module)


def meaning(code: CodeType) -> Any:
    """A code object's content without its layout."""
    body = bytecode.disassemble(code)
    return [
        (i.opname, i.target.index if i.target else i.argval, i.positions) for i in body.instructions
    ] + [(e.start.index, e.end.index, e.target.index, e.depth, e.lasti) for e in body.exceptions]


def same(made: CodeType, code: CodeType) -> bool:
    """Equal; or the one legitimate freedom is used: a jump backward over its own prefix can be
    laid out with or without it."""
    if made == code:
        return made.co_linetable == code.co_linetable
    shorter = len(made.co_code) < len(code.co_code)
    return shorter and meaning(made) == meaning(code)


def test_every_function_of_the_standard_library() -> None:
    seen = different = 0
    for code in library_codes():
        body = bytecode.disassemble(code)
        made = bytecode.assemble(body.instructions, body.exceptions, code)
        assert same(made, code), (code.co_filename, code.co_qualname)
        assert made.co_stacksize >= code.co_stacksize, (code.co_filename, code.co_qualname)
        seen += 1
        different += made != code
    assert seen > 10_000 / EVERY
    assert different < 10


def test_far_jumps_get_their_prefixes() -> None:
    lines = [f"    x = x + {n}.5" for n in range(3000)]
    loop = "\n".join(["def f(n):", "  x = 0.0", "  while n:", *lines, "    n -= 1", "  return x"])
    scope: dict[str, Any] = {}
    exec(loop, scope)
    f = scope["f"]
    body = bytecode.disassemble(f.__code__)
    made = bytecode.assemble(body.instructions, body.exceptions, f.__code__)
    assert same(made, f.__code__)
    expected = f(2)
    f.__code__ = made
    assert f(2) == expected
    far = [i for i in body.instructions if i.target is not None and i.arg > 255]
    assert len(far) >= 2


def test_instruction_fields() -> None:
    def f(x: Any) -> Any:
        try:
            return x.relu() + 1000
        except ValueError:
            return None

    body = bytecode.disassemble(f.__code__)
    assert body is bytecode.disassemble(f.__code__)
    by_value = {repr(i.argval): i for i in body.instructions}
    assert by_value["'relu'"].line == f.__code__.co_firstlineno + 2
    assert by_value["1000"].opname == "LOAD_CONST"
    handler = body.handler_of(by_value["1000"])
    assert handler is not None and handler.target.opname == "PUSH_EXC_INFO"
    assert body.handler_of(body.instructions[0]) is None
    for i in body.instructions:
        assert body.at(i.offset) is i and body.instructions[i.index] is i
    assert "relu" in str(body)


def test_a_jump_that_cannot_go_backward_is_refused() -> None:
    def f(x: Any) -> Any:
        for _ in x:
            pass

    body = bytecode.disassemble(f.__code__)
    loop = next(i for i in body.instructions if i.opname == "FOR_ITER")
    turned = list(body.instructions)
    turned.remove(loop)
    turned.append(loop)
    try:
        bytecode.assemble(turned, [], f.__code__)
    except ValueError as error:
        assert "FOR_ITER" in str(error)
    else:
        raise AssertionError("a backward FOR_ITER was assembled")


def test_tables_follow_the_code_object() -> None:
    table = bytecode.PerCode()
    one, other = compile("1", "f", "eval"), compile("1", "f", "eval")
    assert one == other
    table[one] = "one"
    assert table.get(one) == "one" and table.get(other) is None
    del one
    assert len(table) == 0


def test_code_that_was_lengthened_without_its_line_table() -> None:
    def f(x: Any) -> Any:
        return x + 1

    nop = bytes([opcode.opmap["NOP"], 0])
    longer = f.__code__.replace(co_code=nop * 3 + f.__code__.co_code)
    body = bytecode.disassemble(longer)
    assert [i.opname for i in body.instructions[:3]] == ["NOP"] * 3
    assert body.instructions[-1].positions == (None,) * 4
