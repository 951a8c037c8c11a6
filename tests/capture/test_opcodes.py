"""Every instruction that the running Python's compiler emits has a handler, but for those that no
captured code contains."""

from __future__ import annotations

import opcode
from typing import Any

import torch

import weft
from tests.capture.harness import check
from weft.capture.core.frame import OPCODES

ASYNCHRONOUS = {
    "ASYNC_GEN_WRAP", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR", "GET_AITER", "GET_ANEXT",
    "GET_AWAITABLE",
}
"""Only in coroutines and asynchronous generators, whose frames are not captured."""

OF_MODULES = {"IMPORT_STAR", "PRINT_EXPR"}
"""Only in the code of modules and of the interactive prompt."""

NEVER_COMPILED = {"ENTER_EXECUTOR", "EXIT_INIT_CHECK", "INTERPRETER_EXIT", "RESERVED"}
"""Made by the interpreter, for itself."""


def emitted() -> set[str]:
    """The names of the instructions that `compile` emits."""
    made_later = {*getattr(opcode, "_specialized_instructions", ()),
                  *getattr(opcode, "_specialized_opmap", ())}
    return {name for name, number in opcode.opmap.items()
            if number < 256 and name not in made_later and not name.startswith("INSTRUMENTED_")}


def test_every_instruction_has_a_handler() -> None:
    assert emitted() - OPCODES.keys() - ASYNCHRONOUS - OF_MODULES == NEVER_COMPILED & emitted()


def test_no_handler_is_for_an_instruction_that_needs_none() -> None:
    assert not OPCODES.keys() & (ASYNCHRONOUS | OF_MODULES | NEVER_COMPILED)


def test_a_coroutine_runs_between_the_graphs() -> None:
    async def asked(x: Any) -> Any:
        return x * 2

    def f(x: Any) -> Any:
        y = x + 1
        coroutine = asked(y)
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value + 1
        return None

    check(f, (torch.ones(2),), breaks=None)
    assert weft.stats()["graphs"] >= 2
