"""Random programs against eager: by the interpreter (many) and by the C++ target (some)."""

from __future__ import annotations

import pytest

from tests.codegen.compiling import check
from tests.codegen.random_graphs import RandomProgram


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_random_programs_by_the_interpreter(start: int) -> None:
    for seed in range(start, start + 20):
        program = RandomProgram(seed)
        if program.is_stable():
            check(program.run, *program.inputs, oracle=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_random_programs_in_cpp(seed: int) -> None:
    program = RandomProgram(seed, length=24)
    if program.is_stable():
        check(program.run, *program.inputs, rtol=1e-4, atol=1e-5)
