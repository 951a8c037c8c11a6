"""Functions to break anywhere: each kind of statement, with its effects in `LOG`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LOG: list[Any] = []


def log(*values: Any) -> Any:
    LOG.append(values)
    return values[-1] if values else None


class Manager:
    def __init__(self, name: str, swallow: bool = False) -> None:
        self.name, self.swallow = name, swallow

    def __enter__(self) -> str:
        return log("enter", self.name)

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        log("exit", self.name, kind and kind.__name__)
        return self.swallow


def expressions(a: int, b: int, *rest: int, flag: bool = True, **named: int) -> Any:
    c = log(a) + log(b) * len(rest)
    d = {"x": log(c), **named}
    text = f"{log(a)!r:>5} {c + 1:04d} {d['x']}"
    part = [a, b, c][log(0) : log(2)]
    chained = log(a) < log(b) < log(c)
    return text, part, chained, (log("yes") if flag and log(rest) else log("no")), named.get("k", 7)


def calls(a: int, b: int) -> Any:
    first = log(log(a), log(b))
    text = "-".join([str(log(x)) for x in (a, b)]).upper()
    both = dict(one=log(a), two=log(b), **{"three": log(3)})
    most = max(*[a, b, log(9)], key=lambda v: -v)
    return first, text, both, most, log(*(1, 2), *[3]), sorted([b, a], key=log, reverse=True)


def for_loop(n: int) -> int:
    total = 0
    for i in range(n):
        if i == 1:
            continue
        for j, k in zip("ab", (10, 20)):
            total += log(i) + k
            if total > 100:
                break
        else:
            log("else", j)
    return total


def while_loop(n: int) -> int:
    while n > 0:
        n -= log(1)
        if n == 3:
            continue
        if log(n) == 1:
            break
    else:
        log("never")
    return n


def try_except(n: int) -> Any:
    out = []
    for i in range(n):
        try:
            out.append(log(10) / (i - 1))
            if i == 2:
                raise KeyError(log("key"))
        except ZeroDivisionError as error:
            out.append(log(str(error)))
            try:
                [][log(5)]
            except IndexError as inner:
                out.append(type(inner.__context__).__name__)
            log("handled")
        except KeyError:
            out.append(log("other"))
        else:
            out.append(log("fine"))
        finally:
            log("finally", i)
    return out


def reraises(n: int) -> Any:
    try:
        try:
            log(1)
            raise ValueError(log(n))
        except ValueError:
            log("again")
            raise
        finally:
            log("cleanup")
    except ValueError as error:
        log("outer")
        return log(error.args)


def escapes(n: int) -> Any:
    try:
        log("start")
        return {}[log(n)]
    except KeyError as error:
        log("translate")
        raise RuntimeError(log("bad")) from error
    finally:
        log("last")


def finally_returns(n: int) -> Any:
    for i in range(3):
        try:
            log(i)
            if i == n:
                return log("found")
        finally:
            log("leaving", i)
            if n == 5:
                break
    return "none"


def with_blocks(n: int) -> Any:
    with Manager("a") as a, Manager("b", True) as b:
        log(a, b)
        if n:
            raise ValueError(log(n))
        log("not raised")
    for _ in range(2):
        with Manager("c"):
            if log(n) == 0:
                break
    with Manager("d"):
        return log("returned")


def closures(n: int) -> Any:
    total = log(n)
    late: int

    def add(k: int) -> int:
        nonlocal total
        total += k
        return total

    add(log(1))
    functions = [lambda i=i: i + total + n for i in range(log(2))]
    n += log(10)
    late = add(5)
    late += 1

    def reads() -> int:
        return late

    return total, [f() for f in functions], reads(), add(log(0))


def comprehensions(n: int) -> Any:
    x = 5
    squares = [log(x) ** 2 for x in range(n)]
    pairs = {(x, y): log(x) for x in range(2) for y in squares if log(y)}
    nested = [[log(i * j) for i in range(2)] for j in range(2)]
    getters = [lambda: i + n for i in range(2)]
    return x, squares, pairs, nested, {log(s) for s in "aab"}, [g() for g in getters]


def comprehension_unbound(n: int) -> Any:
    first = [log(fresh) for fresh in range(n)]
    if n > 100:
        fresh = 1
    return first, [log(g) for g in (log(fresh) for fresh in range(2))]


def comprehension_cells(n: int) -> Any:
    i = log(n)
    outer = lambda: i
    plain = [log(i) for i in range(2)]
    inner = [[lambda: i + outer() for i in range(2)] for _ in range(log(1))]
    i += 1
    return outer(), plain, [g() for row in inner for g in row], log(i)


def matches(value: Any) -> Any:
    match log(value):
        case {"kind": str(kind), **others} if log(others):
            return log(kind)
        case [int(first), *more] if log(first) > 0:
            return first, log(more)
        case Manager(name=name):
            return log(name)
        case 1 | 2:
            return log("small")
        case _:
            return log("other")


def unbound(n: int) -> Any:
    if n:
        value = log(n)
    log("between")
    if n > 1:
        del value
    log("after")
    return value


def many_locals(a0: int) -> Any:
    a1 = a2 = a3 = a4 = log(a0)
    a5, a6 = log(a1), a2
    a7, a8 = a6, log(a5)
    a9 = a10 = a11 = a12 = a3 + a4
    b1, b2 = a9, a10
    b3, b4 = b2, b1
    b5 = (b3, b4, a11, a12, log(a7), a8)
    b6, b7 = b5, a0
    return b6, b7, b5, a11, a12


class Base:
    def method(self, n: int) -> Any:
        return log("base", n)


class Derived(Base):
    def method(self, n: int) -> Any:
        first = log(n)
        second = super().method(log(first))
        parent = super()
        kinds = [__class__.__name__, log(second)]
        return parent.method(3), kinds, self is not None

    def caught(self, n: int) -> Any:
        me = lambda: self
        log("caught")
        parent = super()
        return parent.method(log(n)), me() is self


def _fresh() -> Derived:
    return Derived()


Program = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

PROGRAMS: list[Program] = [
    (expressions, (1, 2, 3), {"k": 4}),
    (expressions, (3, 2), {"flag": False}),
    (calls, (4, 2), {}),
    (for_loop, (3,), {}),
    (while_loop, (5,), {}),
    (try_except, (3,), {}),
    (reraises, (1,), {}),
    (escapes, (1,), {}),
    (finally_returns, (1,), {}),
    (finally_returns, (5,), {}),
    (with_blocks, (0,), {}),
    (with_blocks, (1,), {}),
    (closures, (3,), {}),
    (comprehensions, (2,), {}),
    (comprehension_cells, (2,), {}),
    (comprehension_unbound, (2,), {}),
    (matches, ({"kind": "k", "more": 1},), {}),
    (matches, ([3, 4, 5],), {}),
    (matches, (Manager("m"),), {}),
    (matches, (2,), {}),
    (matches, (9,), {}),
    (unbound, (0,), {}),
    (unbound, (1,), {}),
    (unbound, (2,), {}),
    (many_locals, (1,), {}),
    (Derived.method, (_fresh(), 1), {}),
    (Derived.caught, (_fresh(), 1), {}),
]
