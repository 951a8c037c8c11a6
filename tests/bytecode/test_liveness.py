"""Which variables the rest of a function still reads."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from tests.bytecode.loading import load

bytecode = load("bytecode")
liveness = load("bytecode.liveness")


def live_at_calls(function: FunctionType) -> list[set[str]]:
    """The live variables just before each CALL."""
    body = bytecode.disassemble(function.__code__)
    return [
        set(liveness.live_locals(function.__code__, i.offset))
        for i in body.instructions
        if i.opname == "CALL"
    ]


def test_straight_line() -> None:
    def f(x: Any, y: Any) -> Any:
        z = x(y)
        w = z()
        return w(z)

    assert live_at_calls(f) == [set(), {"z"}, set()]


def test_loop_carries_its_variables_round() -> None:
    def f(g: Any, n: Any) -> Any:
        total = 0
        for i in n:
            total += g(i)
        return total

    assert live_at_calls(f) == [{"g"}]  # the old total is on the stack


def test_a_handler_may_read_what_the_body_overwrites() -> None:
    def f(g: Any, x: Any) -> Any:
        try:
            x = g()
        except ValueError:
            return x
        return 1

    assert live_at_calls(f)[0] == {"x"}


def test_cells_are_live_while_a_function_may_use_them() -> None:
    def f(g: Any, x: Any) -> Any:
        y = x + 1
        g()
        h = lambda: y
        g()
        return h

    assert live_at_calls(f) == [{"g", "y"}, {"h"}]


def test_reading_the_frame_keeps_everything() -> None:
    def f(g: Any, x: Any) -> Any:
        g()
        return locals()

    assert live_at_calls(f)[0] == {"g", "x"}


def test_super_keeps_the_first_parameter() -> None:
    class Child(dict[str, int]):
        def size(self, g: Any) -> Any:
            g()
            return super().__len__, super()

    assert "self" in live_at_calls(Child.size)[0]
