"""Random programs that draw, write, guess and fail, as source text.

    python -m tools.fuzz_failures --seeds 0:500            # try these seeds, print what differs

Every statement is chosen by a seeded generator, so that a seed names a program. A program changes
tensors (through views, `.data`, NumPy, modules), containers, attributes, variables and generators;
branches on data and on drawn numbers; and runs operators that refuse some data, inside `try` or
not. Eager and compiled start from equal states, and after each of some calls all that a program can
see is compared: result or exception, handlers that ran, the whole state, all generators.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import io
import math
import random
import textwrap
import warnings
from collections import deque
from typing import Any

import numpy as np
import torch

import weft
from tests.capture.failing_statements import (
    BACKWARD,
    CAUGHT,
    COUNTED,
    EFFECTS,
    NUMBERS,
    REFUSING,
    SUPPORT,
    TENSORS,
    WRITES,
)
from tests.capture.harness import same


class Program:
    """Writes one random function `program(x, k, z, s)`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.numbers = ["2"]
        self.in_loop = False
        self.inner = 0
        """How many inner functions there are around the statement."""

    def _one(self, texts: tuple[str, ...]) -> str:
        text = self.random.choice(texts)
        number = self.random.choice(self.numbers)
        return text.replace("{i}", str(self.random.randrange(3))).replace(
            "{r}", number).replace("{b}", str(self.random.random() < 0.5))

    def _put(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def _block(self, indent: int, most: int, depth: int) -> None:
        kept = list(self.numbers)
        for _ in range(self.random.randint(1, most)):
            self.statement(indent, depth)
        self.numbers = kept

    def statement(self, indent: int, depth: int) -> None:
        """Any statement; compound ones have at most `depth` levels."""
        compound = [self._if, self._try, self._for, self._try, self._with, self._while,
                    self._function] if depth else []
        plain = [WRITES, WRITES, EFFECTS, EFFECTS, TENSORS, TENSORS, REFUSING, REFUSING, None, None,
                 BACKWARD]
        kind = self.random.choice([*plain, *compound])
        if callable(kind):
            kind(indent, depth)
        elif kind is None:
            name = f"r{len(self.lines)}"
            self._put(indent, f"{name} = {self._one(NUMBERS)}")
            self.numbers.append(name)
        elif kind is TENSORS:
            self._put(indent, f"x = {self._one(TENSORS)}")
        else:
            self._put(indent, self._one(kind))

    def _condition(self) -> str:
        number = self.random.choice(self.numbers)
        return self.random.choice((
            number, f"not {number}", f"{number} > 0", f"{number} == 1",
            f"{number} >= 2 and x.sum() > 0", "x.sum() > 3", "(x > 0).all()", "k > 1",
            "torch.isfinite(x).all()", "torch.rand(()) > 0.5", "random.random() < 0.5",
            "not (x < 9).any()", f"max({number}, 1) > 1", "s.w.sum() > 5", f"{number} in (1, 2)",
            "x[x > 0].numel() == 0", "s.n.sum().item() > 9", "np.random.rand() < 0.3",
            f"s.rng.random() < 0.5 or {number} > 1", "s.v.shape[0] > 3", "s.p.grad is None",
            "x.requires_grad", "s.a[0] > 1", "torch.equal(s.w, s.o)", "len(s.items) > 2",
            "s.net.training and x.mean() > 0", f"any(i == {number} for i in s.items)",
            "s.nrng.random() < 0.5", "torch.allclose(x, x * 1)", "bool(s.bits[0])",
            f"isinstance({number}, bool) or {number} is not None", f"k.item() < {number}",
        ))

    def _if(self, indent: int, depth: int) -> None:
        self._put(indent, f"if {self._condition()}:")
        self._block(indent + 1, 2, depth - 1)
        if self.in_loop and self.random.random() < 0.4:
            self._put(indent + 1, self.random.choice(("break", "continue")))
        elif self.random.random() < 0.1:
            self._leave(indent + 1)
        if self.random.random() < 0.3:
            self._put(indent, "else:")
            self._block(indent + 1, 2, depth - 1)

    def _leave(self, indent: int) -> None:
        """A result in the middle of the function."""
        self._put(indent, "return x" if self.inner else f"return x, {self.numbers[-1]}")

    def _for(self, indent: int, depth: int) -> None:
        number = self.random.choice(self.numbers)
        self._put(indent, self.random.choice((
            "for i in range(2):", f"for i in range({number}):", f"for y in pieces(x, {number}):",
            "for i, t in enumerate(s.tensors[:2]):", "for i in list(s.items)[:2]:",
            f"for i in (j for j in range(3) if j != {number}):")))
        outer, self.in_loop = self.in_loop, True
        self._block(indent + 1, 3, depth - 1)
        self.in_loop = outer
        if self.random.random() < 0.15:
            self._put(indent, "else:")
            self._block(indent + 1, 1, 0)

    def _while(self, indent: int, depth: int) -> None:
        name = f"w{len(self.lines)}"
        self._put(indent, f"{name} = 0")
        self._put(indent, f"while {name} < 2 and ({self._condition()}):")
        self._put(indent + 1, f"{name} += 1")
        outer, self.in_loop = self.in_loop, True
        self._block(indent + 1, 2, depth - 1)
        self.in_loop = outer

    def _with(self, indent: int, depth: int) -> None:
        self._put(indent, self.random.choice((
            "with torch.no_grad():", "with torch.no_grad():", "with torch.enable_grad():",
            "with Swallows():", "with Swallows():", "with doubled(s):", "with doubled(s) as y:",
            "with torch.random.fork_rng():", "with contextlib.suppress(IndexError):",
            "with contextlib.suppress(RuntimeError, Own), Swallows():",
            "with torch.autograd.set_grad_enabled(bool(k > 1)):")))
        self._block(indent + 1, 3, depth - 1)

    def _function(self, indent: int, depth: int) -> None:
        """An inner function that writes the variables of the outer one, and its calls."""
        name = f"f{len(self.lines)}"
        self._put(indent, f"def {name}(x, n={self.random.choice(self.numbers)}):")
        outer, self.in_loop = self.in_loop, False
        numbers, self.numbers = self.numbers, [*self.numbers, "n"]
        self.inner += 1
        self._block(indent + 1, 3, depth - 1)
        self._put(indent + 1, "return x")
        self.inner -= 1
        self.in_loop, self.numbers = outer, numbers
        self._put(indent, self.random.choice((
            f"x = {name}(x)", f"x = {name}(x, 1) + 1", f"x = {name}({name}(x))",
            f"x = sum(map({name}, [x, s.w]), x)", f"x = [{name}(t) for t in (x, x + 1)][-1]")))

    def _try(self, indent: int, depth: int) -> None:
        self._put(indent, "try:")
        self._block(indent + 1, 3, depth - 1)
        self._put(indent + 1, self._one(REFUSING))
        outer, self.in_loop = self.in_loop, False
        catches = self.random.random() < 0.85
        if catches:
            self._handlers(indent, depth)
        if not catches or self.random.random() < 0.25:
            self._put(indent, "finally:")
            self._block(indent + 1, 1, 0)
        self.in_loop = outer

    def _handlers(self, indent: int, depth: int) -> None:
        for _ in range(self.random.choice((1, 1, 2))):
            self._put(indent, f"except {self.random.choice(CAUGHT)} as error:")
            self._put(indent + 1, "log((type(error).__name__, str(error)))")
            self._block(indent + 1, 2, depth - 1)
            if self.random.random() < 0.15:
                self._put(indent + 1, self.random.choice((
                    "raise", "raise Own('again') from error", "raise KeyError(1)")))
        if self.random.random() < 0.2:
            self._put(indent, "else:")
            self._block(indent + 1, 1, 0)

    def source(self) -> str:
        """The program's text."""
        self._put(0, "def program(x, k, z, s):")
        for _ in range(self.random.randint(3, 8)):
            self.statement(1, 2)
        self._put(1, f"return x, {', '.join(self.numbers)}")
        return "\n".join(self.lines)


class World:
    """One side of a comparison: a program with a state of its own."""

    def __init__(self, source: str, name: str) -> None:
        self.log: list[Any] = []
        self.namespace: dict[str, Any] = {
            "__name__": name, "LOG": self.log, "torch": torch, "np": np, "random": random,
            "F": torch.nn.functional, "deque": deque, "collections": collections,
            "contextlib": contextlib, "dataclasses": dataclasses, "math": math,
            "warnings": warnings}
        code = compile(SUPPORT + textwrap.dedent(source), f"<{name}>", "exec", dont_inherit=True)
        exec(code, self.namespace)
        seed_all()
        self.state = self.namespace["State"]()
        self.state.h = self.state.leaf * 1
        self.function = self.namespace["program"]

    def compile(self, backend: Any) -> World:
        """Compile the program."""
        self.function = weft.compile(self.function, backend=backend)
        return self

    def call(self, kind: int) -> dict[str, Any]:
        """The result or exception of a call, and all that the program can see after it."""
        self.log.clear()
        random.seed(kind)
        np.random.seed(kind)
        torch.manual_seed(kind)
        x = torch.arange(3.0) - kind % 3
        k = torch.tensor([(0, 4, 1, 5, 2, 3)[kind % 6]])
        z = torch.tensor([1, 1, kind % 2])
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            result = self._result(x.requires_grad_(kind % 4 == 3), k, z)
        return {"result": result, "log": list(self.log), "x": x, "x.grad": x.grad,
                "tensors": _tensors(self.state), "shares": _sharing(self.state, result),
                "counter": self.namespace["counter"], "total": self.namespace["TOTAL"]["n"],
                "state": _shown(self.state), "classes": self._class_state(),
                "printed": printed.getvalue(), "generators": _generators(self.state),
                "warned": [str(w.message) for w in warned if str(w.message).startswith("w: ")],
                "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled())}

    def _result(self, *args: Any) -> Any:
        try:
            return copy.copy(self.function(*args, self.state))
        except Exception as error:
            causes = [type(e).__name__ for e in (error.__cause__, error.__context__)]
            return type(error).__name__, str(error), causes

    def _class_state(self) -> list[Any]:
        state, bump = self.namespace["State"], self.namespace["bump"]
        return [state.shared, state.total, vars(bump), self.namespace["kept"].__defaults__]


def _tensors(state: Any) -> dict[str, Any]:
    """All that shows of the tensors of a state."""
    return {
        name: (t, t.is_leaf and t.grad, t.requires_grad, t.is_leaf, t.stride(), t.storage_offset(),
               name in COUNTED and t._version)
        for name, t in _named_tensors(state).items()}


def _named_tensors(state: Any) -> dict[str, torch.Tensor]:
    tensors = dict(vars(state))
    tensors |= {f"tensors {i}": t for i, t in enumerate(state.tensors)}
    tensors |= {"tree": state.tree["t"], "left": state.pair.left, "data": state.data.t,
                "item": state.d.get("t")}
    return {name: t for name, t in tensors.items() if isinstance(t, torch.Tensor)}


def _sharing(state: Any, result: Any) -> list[str]:
    """Which tensors are the same object, and which have memory in common."""
    tensors = _named_tensors(state)
    parts = result if isinstance(result, tuple) else (result,)
    tensors |= {f"result {i}": t for i, t in enumerate(parts) if isinstance(t, torch.Tensor)}
    groups = collections.defaultdict(list)
    for name, tensor in tensors.items():
        groups[id(tensor), "same"].append(name)
        groups[tensor.untyped_storage()._cdata, "memory"].append(name)
    return [f"{kind}: {names}" for (_, kind), names in groups.items() if len(names) > 1]


def _shown(state: Any) -> dict[str, Any]:
    shown = {name: value for name, value in vars(state).items()
             if isinstance(value, (int, list, dict, set, deque, np.ndarray)) and name != "handles"}
    modules = {f"{m}.{name}": t for m in ("layer", "norm", "net")
               for name, t in vars(state)[m].state_dict().items()}
    parameters = [*state.layer.parameters(), *state.net.parameters()]
    kept = [(o.state[p].get("momentum_buffer"), o.state[p].get("exp_avg"), o.state[p].get("step"))
            for o in (state.opt, state.adam) for g in o.param_groups for p in g["params"]]
    rates = [g["lr"] for o in (state.opt, state.adam) for g in o.param_groups]
    return {**shown, **modules, "grads": [p.grad for p in parameters], "kept": kept,
            "flags": [p.requires_grad for p in parameters], "rates": rates,
            "tag": getattr(state.layer, "tag", None), "inner": state.inner.value,
            "net": (state.net.steps, state.net.mode, state.net.training),
            "data": (state.data.n, state.data.items), "right": state.pair.right,
            "n_handles": len(state.handles), "epochs": state.sched.last_epoch}


def _generators(state: Any) -> list[Any]:
    numpys = np.random.get_state()
    own = state.state.get_state()
    return [random.getstate(), numpys[1].tolist(), numpys[2:], torch.get_rng_state().tolist(),
            state.rng.getstate(), state.nrng.bit_generator.state, own[1].tolist(), own[2:],
            state.g.get_state().tolist()]


def seed_all() -> None:
    """Set the global generators to a known state."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def difference(seed: int, backend: Any = "eager", n_calls: int = 6) -> str:
    """Where the compiled program of that seed differs from the eager one; empty if nowhere."""
    return difference_of(Program(seed).source(), f"failing{seed}", backend, n_calls)


def difference_of(source: str, name: str, backend: Any = "eager", n_calls: int = 6) -> str:
    """As `difference`, of a program's text."""
    weft.reset()
    plain, compiled = World(source, name), World(source, name).compile(backend)
    for kind in range(n_calls):
        expected, actual = plain.call(kind), compiled.call(kind)
        for part, value in expected.items():
            if not same(value, actual[part]):
                return f"call {kind}, {part}: {_differing(value, actual[part])}"
    return ""


def _differing(expected: Any, actual: Any) -> str:
    if isinstance(expected, dict) and isinstance(actual, dict):
        keys = [k for k in {**expected, **actual}
                if k not in actual or k not in expected or not same(expected[k], actual[k])]
        return ", ".join(f"{k}: {actual.get(k)} instead of {expected.get(k)}" for k in keys)
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return ", ".join(f"[{i}]: {str(b)[:80]} instead of {str(a)[:80]}" for i, (a, b) in pairs
                         if not same(a, b))
    return f"{actual} instead of {expected}"
