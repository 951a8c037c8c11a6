"""Random Python functions over tensors, numbers and containers, as source text.

    python -m tests.capture.random_programs 100 400      # try seeds 100 to 399, print what differs

Every statement is chosen by a seeded generator, so that a seed names a program. Programs end: loops
are bounded. They may raise: the exception is part of what is compared. `stop(v)` gives `v` and may
be a graph break; `log(v)` appends to a global list.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

import weft
from tests.capture.harness import compare, run, same
from weft.config import config

LOG: list[Any] = []
STATE: dict[str, Any] = {}


class Program:
    """Writes one random function."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.numbers = ["n", "m"]
        self.tensors = ["x", "y"]
        self.lists = ["items"]
        self.count = 0
        self.in_loop = False
        self.in_function = 0

    # -- choices ----------------------------------------------------------------------------------

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    # -- expressions ------------------------------------------------------------------------------

    def number(self, depth: int = 2) -> str:
        if depth == 0 or self.chance(30):
            return str(self.one(*self.numbers, 0, 1, 2, 3, -1))
        a, b = self.number(depth - 1), self.number(depth - 1)
        return self.one(
            f"({a} + {b})", f"({a} * {b})", f"({a} - {b})", f"min({a}, {b}, 9)",
            f"stop({a})", f"(({a}) % 5)", f"len({self.one(*self.lists)})",
            f"({a} if {self.condition(0)} else {b})", f"({a} and {b})", f"abs({a})",
            f"{self.one(*self.tensors)}.shape[0]", f"({a} // {b})", f"log({a})",
            f"[{a}, {b}][{self.one(0, 1, -1)}]", f"{{'k': {a}, **{{'j': {b}}}}}['k']",
            f"(lambda q, w={a}: q + w)({b})", f"sum([{a} for _ in range(2)])",
            f"STATE.get('s', {a})", f"helper({a}, b={b})", f"sum(walk({a}, {b}))", f"fact(min({a}, 4))",
            f"int({self.one(*self.tensors)} is {self.one(*self.tensors)})", "box.double",
            f"sorted([{a}, {b}], reverse=True)[0]", f"len(f'{{{self.one(*self.numbers)}}}')",
            f"dict(zip('ab', ({a}, {b})))['b']", f"list(map(lambda q: q + 1, [{a}, {b}]))[-1]",
            f"int(isinstance({a}, bool))", f"({a}, {b}) [{a} > {b}]",
            f"apply(max, {a}, {b})", f"len({{{a}, {b}}})",
        )

    def condition(self, depth: int = 1) -> str:
        a, b = self.number(depth), self.number(depth)
        return self.one(
            f"{a} > {b}", f"{a} == {b}", f"not {a}", f"{a} in ({b}, 2)", f"{a} is None",
            f"0 <= {a} < 3", self.one(*self.lists),
            f"({self.tensor(depth)}).sum() > {self.one(0, 2, 5)}" if self.chance(20) else f"{a} < 2",
        )

    def tensor(self, depth: int = 2) -> str:
        if depth == 0 or self.chance(25):
            return self.one(*self.tensors)
        a, b = self.tensor(depth - 1), self.tensor(depth - 1)
        n = self.number(depth - 1)
        return self.one(
            f"({a} + {b})", f"({a} * {n})", f"torch.relu({a})", f"({a} - {b}).abs()",
            f"stop({a})", f"({a} if {self.condition(0)} else {b})", f"torch.where({a} > 0, {a}, {b})",
            f"log({a})", f"{a}.clone()", f"{a}.clamp(-9, 9)", f"helper({a}, b={n})",
            f"sum(t for t in ({a}, {b}))", f"torch.stack([{a}, {b}]).mean(0)",
            f"(lambda t: t + {n})({a})", f"{a}[1:].sum().expand(3)", f"{a}.view(3, 1)[:, 0]",
            f"next(g for g in ({a}, {b}))", f"max([{a}, {b}], key=lambda t: t.dim())",
            f"[*({a}, {b})][{self.one(0, 1)}]", f"apply(torch.add, {a}, other={b})",
        )

    # -- statements -------------------------------------------------------------------------------

    def put(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def block(self, indent: int, size: int, depth: int) -> None:
        """A nested block; the names it makes are forgotten after it."""
        kept = list(self.numbers), list(self.tensors), list(self.lists)
        for _ in range(self.random.randint(1, size)):
            self.statement(indent, depth)
        self.numbers, self.tensors, self.lists = kept

    def statement(self, indent: int, depth: int) -> None:
        simple = [self.assign, self.assign, self.augment, self.mutate, self.effect, self.unpack,
                  self.generator]
        nested = [self.if_, self.for_, self.while_, self.try_, self.with_, self.function]
        leaving = [self.leave]
        kinds = simple * 3 + (nested * 2 if depth else []) + leaving
        self.one(*kinds)(indent, depth)

    def assign(self, indent: int, depth: int) -> None:
        kind = self.one("number", "tensor", "tensor", "list")
        if kind == "number":
            name = self.one(self.fresh("n"), *self.numbers)
            self.put(indent, f"{name} = {self.number()}")
            self._know(self.numbers, name)
        elif kind == "tensor":
            name = self.one(self.fresh("t"), *self.tensors)
            self.put(indent, f"{name} = {self.tensor()}")
            self._know(self.tensors, name)
        else:
            name = self.fresh("l")
            made = self.one(
                f"[{self.number()}, {self.tensor()}]",
                "[]",
                f"list(range({self.number(1)}))",
                f"[{self.number(1)} for e in range(3) if e != {self.number(0)}]",
            )
            self.put(indent, f"{name} = {made}")
            self._know(self.lists, name)

    def _know(self, names: list[str], name: str) -> None:
        if name not in names:
            names.append(name)

    def augment(self, indent: int, depth: int) -> None:
        if self.chance(50):
            self.put(
                indent, f"{self.one(*self.numbers)} {self.one('+=', '-=', '*=')} {self.number(1)}"
            )
        else:
            self.put(
                indent,
                f"{self.one(*self.tensors)} = {self.one(*self.tensors)} {self.one('+', '*')} "
                f"{self.tensor(1)}",
            )

    def mutate(self, indent: int, depth: int) -> None:
        items = self.one(*self.lists)
        self.put(indent, self.one(
            f"{items}.append({self.number()})", f"{items}.append({self.tensor()})",
            f"{items}.extend([{self.number()}])", f"STATE['s'] = {self.number()}",
            "STATE.pop('s', None)", f"{items}.insert(0, {self.number()})", f"{items}.clear()",
            f"box.value = {self.number()}", f"box.items.append({self.number(1)})",
            f"{self.one(*self.tensors)}.add_({self.number(1)})", f"box.double = {self.number(1)}",
            f"{self.one(*self.tensors)}[{self.one(0, 1)}] = {self.number(1)}",
            f"{self.one(*self.tensors)}[1:].mul_(2)", f"{items}[:1] = [{self.number(1)}, 5]",
            f"STATE.setdefault('l', []).append({self.number(1)})", f"{items}.reverse()",
            f"box.items = {items}", f"{items}.append({items}[:1])", f"box.__dict__['extra'] = {self.number(1)}",
            f"del {items}[:1]", f"{items} += box.items[:1]", "box.other = box.items",
            f"{self.fresh('z')} = {items}.pop() if {items} else None",
        ))

    def effect(self, indent: int, depth: int) -> None:
        self.put(indent, self.one(
            f"log({self.number()})", f"log({self.tensor()})", "stop()", f"log(f'{{{self.one(*self.numbers)}:>4}}')",
            "log(box.value)", f"log(len({self.one(*self.lists)}))",
        ))

    def unpack(self, indent: int, depth: int) -> None:
        a, b = self.one(*self.numbers), self.one(*self.numbers)
        t, u = self.one(*self.tensors), self.one(*self.tensors)
        rest = self.fresh("r")
        self.put(indent, self.one(
            f"{a}, {b} = {b}, {a}", f"{t}, {a} = {self.tensor()}, {self.number()}",
            f"{t}, {u} = {u}, {t}", f"{a}, *{rest} = {self.number()}, {self.number()}, 7",
        ))

    def generator(self, indent: int, depth: int) -> None:
        """One that is alive for a while: partly read, then read on or closed."""
        name = self.fresh("g")
        made = self.one(
            f"walk({self.number(1)}, {self.number(0)})", f"steps({self.tensor(1)})",
            f"(stop(q) * {self.number(0)} for q in range(3))", f"guarded({self.number(0)})",
            f"zip(walk({self.number(0)}, 2), [1, 2, 3])", "enumerate(iter([3, 4, 5]))",
            f"itertools.count({self.number(0)})", f"map(stop, walk(1, {self.number(0)}))",
        )
        self.put(indent, f"{name} = {made}")
        for _ in range(self.random.randint(0, 2)):
            self.put(indent, self.one(f"log(next({name}, None))", f"stop(next({name}, 0))"))
            if self.chance(40):
                self.effect(indent, depth)
        if not made.startswith("itertools"):
            self.put(indent, self.one(
                f"log(list({name}))", f"{name} = None", f"log(sum(1 for _ in {name}))",
                f"getattr({name}, 'close', stop)()",
            ))

    def if_(self, indent: int, depth: int) -> None:
        self.put(indent, f"if {self.condition()}:")
        self.block(indent + 1, 3, depth - 1)
        if self.chance(50):
            self.put(indent, "else:")
            self.block(indent + 1, 2, depth - 1)

    def for_(self, indent: int, depth: int) -> None:
        variable = self.fresh("i")
        source = self.one(
            f"range({self.one(1, 2, 3)})",
            f"({self.number()}, 2)",
            "list(box.items)[:3]",
            f"enumerate([{self.number()}, 1])",
            "zip((1, 2), 'ab')",
            f"walk({self.number()}, {self.number(1)})",
            f"map(lambda q: stop(q) + 1, [{self.number()}, 2])",
            f"({self.number(0)} + q for q in range({self.one(1, 2, 3)}))",
            f"reversed([{self.number()}, 3])",
            f"enumerate(walk({self.number(0)}, 2))",
            f"filter(None, [{self.number()}, 0, 2])",
            f"{{1: {self.number(1)}, 2: 3}}.items()",
            f"itertools.chain([{self.number()}], range(2))",
            f"itertools.islice(walk({self.number(0)}, 1), 3)",
        )
        pair = source.startswith(("enumerate", "zip", "{"))
        self.put(indent, f"for {variable + ', _' if pair else variable} in {source}:")
        self._loop_body(indent, depth, [] if source.startswith("list") else [variable])

    def _loop_body(self, indent: int, depth: int, numbers: list[str]) -> None:
        outer, self.in_loop = self.in_loop, True
        kept = list(self.numbers)
        self.numbers += numbers
        self.block(indent + 1, 3, depth - 1)
        self.numbers = kept
        self.in_loop = outer
        if self.chance(20):
            self.put(indent, "else:")
            self.block(indent + 1, 1, depth - 1)

    def while_(self, indent: int, depth: int) -> None:
        counter = self.fresh("c")
        self.put(indent, f"{counter} = 0")
        self.put(indent, f"while {counter} < {self.one(1, 2, 3)}:")
        self.put(indent + 1, f"{counter} += 1")
        self._loop_body(indent, depth, [])

    def try_(self, indent: int, depth: int) -> None:
        self.put(indent, "try:")
        self.block(indent + 1, 2, depth - 1)
        if self.chance(50):
            self.put(indent + 1, self.one(
                f"raise ValueError({self.number()})", "{}['key']", "[][1]", f"1 // {self.number(1)}",
                f"check({self.number()})", f"log(check({self.number()}) + 1)", f"calls({self.number()})",
            ))
        catches = self.chance(80)
        if catches:
            kinds = self.one("ValueError", "(KeyError, IndexError)", "Exception")
            self.put(indent, f"except {kinds} as error:")
            self.put(indent + 1, "log((type(error).__name__, error.args))")
            self.block(indent + 1, 2, depth - 1)
            if self.chance(15):
                self.put(indent + 1, self.one("raise", "raise RuntimeError('again') from error"))
            if self.chance(20):
                self.put(indent, "else:")
                self.block(indent + 1, 1, depth - 1)
        if not catches or self.chance(30):
            self.put(indent, "finally:")
            loop, self.in_loop = self.in_loop, False
            self.block(indent + 1, 2, depth - 1)
            self.in_loop = loop

    def with_(self, indent: int, depth: int) -> None:
        name = self.one("", f" as {self.fresh('v')}")
        manager = self.one(
            "Manager('a')", "Manager('b', swallow=True)", "manager('c')", "torch.no_grad()",
            "torch.autocast('cpu')", "contextlib.suppress(KeyError, ValueError)",
        )
        self.put(indent, f"with {manager}{name}:")
        self.block(indent + 1, 3, depth - 1)

    def function(self, indent: int, depth: int) -> None:
        name, parameter = self.fresh("f"), self.fresh("p")
        kept = list(self.numbers), list(self.tensors), list(self.lists)
        shared = self.one(*[n for n in self.numbers if n[0] == "n"] or ["n"])
        self.put(indent, f"def {name}({parameter}, d={self.number(1)}):")
        self.put(indent + 1, f"nonlocal {shared}")
        loop, self.in_loop = self.in_loop, False
        self.in_function += 1
        # What is assigned in the function would be local to it: only read outer names.
        self.numbers = [shared, "d"]
        self.tensors = [parameter]
        self.lists = ["box.items"]
        for _ in range(self.random.randint(1, 3)):
            self.statement(indent + 1, max(depth - 1, 0))
        self.put(indent + 1, f"return {self.tensor(1)}")
        self.in_function -= 1
        self.in_loop = loop
        self.numbers, self.tensors, self.lists = kept
        target = self.one(*self.tensors)
        self.put(indent, f"{target} = {name}({self.tensor(1)})")

    def leave(self, indent: int, depth: int) -> None:
        if not self.chance(40):
            return self.effect(indent, depth)
        choices = [f"return {self.tensor(1)}", f"raise KeyError({self.number(1)})"]
        if self.in_loop:
            choices += ["break", "continue"] * 3
        self.put(indent, f"if {self.condition(0)}:")
        self.put(indent + 1, self.one(*choices))
        return None

    def source(self) -> str:
        self.put(0, "def program(x, y, n, m, items, box):")
        for _ in range(self.random.randint(3, 8)):
            self.statement(1, 3)
        names = ", ".join(dict.fromkeys(self.tensors + self.numbers + self.lists))
        self.put(1, f"return {names}, box.value")
        return "\n".join(self.lines)


_SUPPORT = """
import contextlib
import itertools

class Manager:
    def __init__(self, name, swallow=False):
        self.name, self.swallow = name, swallow
    def __enter__(self):
        return log(self.name)
    def __exit__(self, kind, value, trace):
        log((self.name, kind and kind.__name__))
        return self.swallow

@contextlib.contextmanager
def manager(name):
    log("enter")
    try:
        yield name
    finally:
        log("leave")

class Box:
    def __init__(self):
        self.value, self.items = 1, [1, 2]
    @property
    def double(self):
        return stop(self.value * 2)
    @double.setter
    def double(self, value):
        self.value = value
        log("set")

def walk(a, b):
    for i in range(2):
        yield a
        a = a + 1
    yield from [b, 1]

def steps(t):
    for i in range(3):
        t = t + i
        got = yield t
        log(got)
    return 5

def guarded(n):
    try:
        yield n
        stop()
        yield n + 1
    except ValueError as error:
        yield error.args
    finally:
        log("guarded")

def fact(n):
    return 1 if n < 2 else n * fact(n - 1)

def apply(f, *args, **kwargs):
    return f(*args, **kwargs)

def helper(a, b=1):
    if isinstance(b, int) and b > 2:
        a = a + 1
    return stop(a) * b

def check(n):
    if n > 1:
        raise ValueError("too big")
    return n

def calls(n):
    log("calls")
    try:
        k = check(n)
    finally:
        log("called")
    return k + stop(1)
"""


def identities(value: Any, seen: dict[int, int]) -> Any:
    """Which mutable objects are the same object: each by the number of its first sight."""
    if isinstance(value, (int, float, str, type(None))):
        return None
    if isinstance(value, tuple):
        return [identities(item, seen) for item in value]
    if id(value) in seen:
        return seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, list):
        return [identities(item, seen) for item in value]
    if isinstance(value, dict):
        return [identities(item, seen) for item in value.values()]
    return identities(vars(value), seen) if type(value).__name__ == "Box" else "new"


def log(value: Any = None) -> Any:
    LOG.append(value)
    return value


def stop(value: Any = 0) -> Any:
    return value


class Trial:
    """One program, its namespace, and what to call it with."""

    def __init__(self, seed: int, *, breaking: bool) -> None:
        self.source = Program(seed).source()
        self.namespace: dict[str, Any] = {
            "torch": torch, "LOG": LOG, "STATE": STATE, "log": log, "__name__": f"random{seed}",
            "stop": weft.disable(stop) if breaking else stop,
        }
        exec(compile(_SUPPORT + self.source, f"<random {seed}>", "exec"), self.namespace)
        if breaking:
            self.namespace["check"] = weft.disable(self.namespace["check"])

    def arguments(self, kind: int) -> tuple[Any, ...]:
        box = self.namespace["Box"]()
        x = torch.arange(3.0) - kind
        return x, torch.ones(3) * kind, kind, 2, [1, kind], box

    def outcome(
        self, function: Callable[..., Any], kind: int
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        LOG.clear()
        STATE.clear()
        return run(function, self.arguments(kind), {}), list(LOG), dict(STATE)

    def check(self) -> None:
        """Compiled and eager agree on results, exceptions, effects, for several arguments."""
        function = self.namespace["program"]
        compiled = weft.compile(function, backend="eager")
        for kind in (0, 1, 0, 3):
            expected, actual = self.outcome(function, kind), self.outcome(compiled, kind)
            compare(expected[0], actual[0])
            assert same(expected[1], actual[1]), (expected[1], actual[1])
            assert same(expected[2], actual[2]), (expected[2], actual[2])
            one, other = (
                identities((o.result, o.args, log, state), {})
                for o, log, state in (expected, actual)
            )
            assert one == other, (one, other)


def main(first: int, last: int) -> None:
    config.suppress_errors = False
    warnings.simplefilter("ignore")
    failed = 0
    for seed in range(first, last):
        for breaking in (False, True):
            weft.reset()
            try:
                trial = Trial(seed, breaking=breaking)
            except SyntaxError as error:
                print(f"seed {seed}: {error}")
                break
            try:
                trial.check()
            except Exception as error:
                failed += 1
                print(
                    f"seed {seed} breaking={breaking}: {type(error).__name__} {str(error)[:300]}",
                    flush=True,
                )
    print(f"{failed} of {2 * (last - first)} differ")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
