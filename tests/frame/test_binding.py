"""CompiledFunction binds arguments as CPython does, for every kind of signature and call."""

import random
from typing import Any

from tests.frame.extension import frame

MISSING = object()


def bound(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The flat parameters seen by on_miss, or the text of the TypeError."""
    seen: list[list[Any]] = []

    def on_miss(compiled: Any, fn: Any, code: Any, values: list[Any], *rest: Any) -> None:
        if code is function.__code__:
            seen.append(values)

    try:
        result = frame.CompiledFunction(function, on_miss)(*args, **kwargs)
    except TypeError as error:
        return str(error)
    assert len(seen) == 1
    assert seen[0] == result, "what the function got is not what the guards would read"
    return result


def expected(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except TypeError as error:
        return str(error)


def make_function(rng: random.Random) -> Any:
    """A function with a random signature that returns its flat parameters as a list."""
    n_pos, n_any, n_kw = rng.randint(0, 2), rng.randint(0, 3), rng.randint(0, 2)
    names = [f"p{i}" for i in range(n_pos)] + [f"a{i}" for i in range(n_any)]
    n_defaults = rng.randint(0, len(names))
    parts = []
    for i, name in enumerate(names):
        parts.append(f"{name}='{name}'" if i >= len(names) - n_defaults else name)
        if i == n_pos - 1:
            parts.append("/")
    varargs, varkw = rng.random() < 0.4, rng.random() < 0.4
    keyword_only = [f"k{i}" for i in range(n_kw)]
    if varargs:
        parts.append("*rest")
    elif keyword_only:
        parts.append("*")
    parts += [f"{k}='{k}'" if rng.random() < 0.5 else k for k in keyword_only]
    if varkw:
        parts.append("**more")
    flat = names + keyword_only + ["rest"] * varargs + ["more"] * varkw
    space: dict[str, Any] = {}
    exec(f"def f({', '.join(parts)}):\n    return [{', '.join(flat)}]", space)
    return space["f"]


def make_call(rng: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args = tuple(range(rng.randint(0, 6)))
    names = ["p0", "p1", "a0", "a1", "a2", "k0", "k1", "x", "y"]
    chosen = rng.sample(names, rng.randint(0, 4))
    return args, {name: name.upper() for name in chosen}


def test_random_signatures_and_calls() -> None:
    rng = random.Random(0)
    fitting = 0
    for _ in range(400):
        function = make_function(rng)
        for _ in range(12):
            args, kwargs = make_call(rng)
            want = expected(function, args, kwargs)
            got = bound(function, args, kwargs)
            assert got == want, (function.__code__.co_varnames, args, kwargs)
            fitting += not isinstance(want, str)
    assert fitting > 500


def test_more_parameters_than_fit_on_the_stack() -> None:
    names = [f"a{i}" for i in range(100)]
    space: dict[str, Any] = {}
    exec(f"def f({', '.join(names)}): return [{', '.join(names)}]", space)
    assert bound(space["f"], tuple(range(100)), {}) == list(range(100))
    assert "missing 1 required" in bound(space["f"], tuple(range(99)), {})


def test_keyword_that_is_equal_but_another_string_object() -> None:
    def f(alpha: int, *, beta: int) -> list[int]:
        return [alpha, beta]

    names = ["".join(["al", "pha"]), "".join(["be", "ta"])]
    assert bound(f, (), dict(zip(names, (1, 2), strict=True))) == [1, 2]


def test_defaults_are_read_at_each_call() -> None:
    def f(a: int, b: int = 1, *, c: int = 2) -> list[int]:
        return [a, b, c]

    assert bound(f, (0,), {}) == [0, 1, 2]
    f.__defaults__ = (5,)
    f.__kwdefaults__ = {"c": 6}
    assert bound(f, (0,), {}) == [0, 5, 6]
    f.__kwdefaults__ = None
    assert "missing 1 required keyword-only argument: 'c'" in bound(f, (0,), {})
