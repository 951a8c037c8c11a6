"""Generated programs that decide by a number, drawn or read from a tensor: `program(draw, use)`.

Each pairs a way to get a small number `r` with a way to decide something by it::

    def program(x, data):
        r = random.randrange(0, 4)
        return x * 2 if r > 0 else x + 1
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

OWN = random.Random(0)
RNG = np.random.default_rng(0)
STATE = np.random.RandomState(0)

DRAWS = {
    "randrange": "random.randrange(0, 4)",
    "randint": "random.randint(0, 3)",
    "getrandbits": "random.getrandbits(2)",
    "choice": "random.choice([0, 1, 2, 3])",
    "below": "int(random.random() * 4)",
    "own": "OWN.randrange(4)",
    "numpy": "np.random.randint(4)",
    "numpy state": "STATE.randint(0, 4)",
    "numpy generator": "int(RNG.integers(0, 4))",
    "numpy integer": "RNG.integers(4)",
    "sum": "random.randrange(0, 2) + random.randrange(0, 3)",
}
"""Numbers from 0 to 3 of generators of Python and NumPy."""

READS = {
    "item": "data.sum().item()",
    "int": "int(data[0])",
    "tolist": "data.tolist()[0]",
    "index": "data.argmax().item() + data[0].item()",
    "nonzero": "torch.nonzero(MASK[:4] < data[0]).shape[0]",
    "mask": "MASK[MASK < data[0]].numel()",
    "unique": "len(torch.unique(MASK.clamp(max=data[0].item()))) - 1",
    "rows": "len(x[MASK[:3] < data[0]])",
    "bool": "int((data[0] > 1).item())",
}
"""Numbers from 0 to 3 of the tensor `data`, whose first item is that and whose others are 0."""

MASK = torch.arange(6)

USES = {
    "truth": "return x * 2 if r else x + 1",
    "not": "return x * 2 if not r else x + 1",
    "greater": """
        if r > 0:
            x = x * 2
        return x + 1
    """,
    "equal": "return x * 3 if r == 1 else x",
    "unequal": "return x * 3 if r != 2 else x",
    "less": "return x.exp() if r < 3 else x",
    "chained": "return x * 5 if 0 < r <= 2 else x",
    "and": "return x * 5 if r and r < 3 else x",
    "or": "return (x * 5) if r > 2 or not r else x",
    "value of or": "return x * (r or 7)",
    "value of and": "return x * (r and 7)",
    "max": "return x * max(r, 2)",
    "min": "return x * min(1, r)",
    "arithmetic": "return x * 2 if r * 2 + 1 > 3 else x",
    "remainder": "return x * 2 if r % 2 else x",
    "quotient": "return x * 2 if r // 2 == 1 else x",
    "bits": "return x * 2 if r & 2 else x",
    "continue": """
        for i in range(4):
            if i > r:
                continue
            x = x * 2
        return x
    """,
    "break": """
        for i in range(4):
            if i == r:
                break
            x = x * 2
        return x
    """,
    "else of loop": """
        for i in range(3):
            if i == r:
                break
        else:
            x = x * 9
        return x
    """,
    "while": """
        while r > 0:
            x = x + r
            r -= 1
        return x
    """,
    "range": """
        for i in range(r):
            x = x + i + 1
        return x
    """,
    "filter": "return torch.stack([x * i for i in range(5) if i <= r]).sum(0)",
    "any": "return x * 2 if any(r == i for i in (1, 3)) else x",
    "slice": "return x[r:].sum() + x[:r].sum() * 2",
    "empty slice": "return x[:r].sum() if x[:r].numel() else x.prod()",
    "index": "return x * [2.0, 3.0, 4.0, 5.0][r]",
    "element": "return x[r if r < 3 else 0] * 2",
    "dict": "return x * {0: 2, 1: 3, 2: 4}.get(r, 5)",
    "in": "return x * 2 if r in (1, 2) else x",
    "match": """
        match r:
            case 0: return x
            case 1 | 2: return x * 2
            case _: return x * 3
    """,
    "nested function": """
        def inner(y):
            if r > 1:
                return y * 2
            return y
        return inner(x)
    """,
    "module": "return GATE(x, r)",
    "two branches": """
        if r >= 1:
            x = x + 1
            if r >= 2:
                x = x + 10
        return x * r
    """,
    "number result": """
        kind = 'many' if r > 1 else 'few'
        return x.relu(), kind, r
    """,
    "no tensor": "return 'some' if r > 0 else 'none'",
    "write": """
        x = x.clone()
        if r > 1:
            x.mul_(3)
        return x
    """,
    "write of the argument": """
        x.add_(1)
        if r > 1:
            x.mul_(3)
        return x + 1
    """,
    "attribute": """
        GATE.seen = r
        return x * 2 if r == 0 else x
    """,
    "text": "return x * 2 if str(r) == '1' else x",
    "float": "return x * 2 if r / 2 > 0.7 else x",
    "checkpoint": """
        return checkpoint(lambda y: y.sin() if r > 1 else y.cos(), x, use_reentrant=False)
    """,
    "no branch": "return x * r + r",
    "error": """
        if r == 3:
            raise ValueError('three')
        return x + r
    """,
    "caught": """
        try:
            if r > 1:
                raise KeyError(r)
            x = x * 2
        except KeyError:
            x = x - 1
        return x
    """,
    "assert": """
        assert r < 3, 'large'
        return x + 1
    """,
    "check": """
        torch._check(r < 3)
        return x + 1
    """,
}


class Gate(torch.nn.Module):
    """Applies its layer if the number is odd."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.seen = -1

    def forward(self, x: torch.Tensor, r: int) -> Any:
        if r % 2 == 1:
            x = self.linear(x)
        return x


def program(draw: str, use: str) -> Callable[..., Any]:
    """The program with this way to get `r` and this use of it."""
    body = textwrap.dedent(USES[use]).strip("\n")
    source = DRAWS.get(draw) or READS[draw]
    lines = ["def program(x, data):", f"    r = {source}", textwrap.indent(body, "    ")]
    torch.manual_seed(0)
    scope = {**globals(), "GATE": Gate(), "checkpoint": torch.utils.checkpoint.checkpoint}
    exec("\n".join(lines), scope)
    return scope["program"]  # type: ignore[no-any-return]


def seed(number: int) -> None:
    """Set all generators."""
    random.seed(number)
    OWN.seed(number)
    np.random.seed(number)
    STATE.seed(number)
    torch.manual_seed(number)
    RNG.bit_generator.state = np.random.default_rng(number).bit_generator.state


def generator_states() -> Any:
    """The states of all generators, in a form that can be compared."""
    return [random.getstate(), OWN.getstate(), *map(str, (
        np.random.get_state(), STATE.get_state(), RNG.bit_generator.state)),
        torch.get_rng_state().tolist()]


def seeds_by_value(draw: str) -> dict[int, int]:
    """For each number that can be drawn, a seed that makes it the first one."""
    found: dict[int, int] = {}
    expression = compile(DRAWS[draw], draw, "eval")
    for number in range(60):
        seed(number)
        found.setdefault(int(eval(expression, globals())), number)
    return found
