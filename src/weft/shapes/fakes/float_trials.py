"""Finds out whether C++ passes floats on unchanged, by trying calls with several numbers.

Place in the pipeline: capture runs operators with symbolic floats through `run_carrying`. If C++
asks for a plain float, in the forward or in the backward, the call is tried on fakes without
symbols. If the operators below autograd are the same for each number, and the numbers in them are
constant or a formula of one that was tried, the symbol is carried (`carried_floats.py`). Otherwise
it is fixed by a guard::

    run_carrying(context, mode, torch.dropout, (x, r0, True), {})    # guards 0 < r0 < 1

Composite operators treat some numbers specially, as dropout does 0 and 1. These numbers (`BORDERS`)
are tried too; if they differ, a guard requires the float to lie between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

import torch

from weft._torch import (
    DataDependentOutputException,
    DispatchMode,
    FakeTensor,
    OpOverload,
    engine_gradients,
    no_dispatch,
    tree_flatten,
    tree_unflatten,
)
from weft.shapes.algebra.floats import FloatValue, compare
from weft.shapes.carried_floats import BORDERS, Formula, formula_of, nth_mark
from weft.shapes.fakes.fake_mode import MemoFakeMode
from weft.shapes.fakes.make_fake import make_fake, make_meta
from weft.shapes.fakes.schemas import schema_arguments
from weft.shapes.fakes.without_sympy import python_kernels
from weft.shapes.symnode import float_of

if TYPE_CHECKING:
    from weft.shapes.context import ShapeContext

_SAMPLES: Final = (*BORDERS, math.nan, -3.3, -0.3, 0.3, 0.7, 1.3, 7.7)
_FAR: Final = 9999
"""The number of a mark that is a thousandth away."""
_ERRORS: Final = (RuntimeError, TypeError, ValueError, IndexError, ArithmeticError)


def run_carrying(
    context: ShapeContext, mode: MemoFakeMode, function: Callable[..., Any],
    args: Sequence[Any], kwargs: dict[str, Any],
) -> tuple[object, bool]:
    """`mode.run`, with symbolic floats carried through C++ if possible (`context.floats.carrying`
    says whether they were)."""
    context.floats.carrying = False
    leaves = tree_flatten((args, kwargs))[0] if context.floats.has_floats else ()
    if not any(isinstance(leaf, torch.SymFloat) for leaf in leaves):
        return mode.run(function, args, kwargs)
    context.floats.tried = []
    try:
        result = mode.run(function, args, kwargs)
        trial = Trial(mode, function, args, kwargs, by_python=result[1])
        trial.ask_in_backward()
        asked = context.floats.tried
    finally:
        context.floats.tried = None
    if not asked:
        return result
    if trial.succeeds():
        trial.carry(context)
        return result
    for value in asked:
        context.specialize_float(value)  # also for what only the backward asks
    return mode.run(function, args, kwargs)


class _Failed(Exception):
    """The call cannot be tried, or C++ does more with a float than pass it on."""


@final
@dataclass
class _Run:
    """The operators on tensors, and the floats in them, that a call became for some numbers."""

    structure: list[Any] = field(default_factory=list)
    floats: list[float] = field(default_factory=list)


@final
class Trial:
    """A call with symbolic floats among its arguments."""

    def __init__(
        self, mode: MemoFakeMode, function: Callable[..., Any], args: Sequence[Any],
        kwargs: dict[str, Any], *, by_python: bool,
    ) -> None:
        """``by_python``: the call needs PyTorch's Python dispatcher."""
        self._mode = mode
        self._function = function
        self._by_python = by_python
        self._leaves, self._form = tree_flatten((list(args), kwargs))
        self._symbols = {
            float_of(leaf): leaf for leaf in self._leaves if isinstance(leaf, torch.SymFloat)}
        self._hints = {value: symbol.node.hint for value, symbol in self._symbols.items()}
        self._marks = {
            value: nth_mark(hint or 0.0, i) for i, (value, hint) in enumerate(self._hints.items())}
        self._base = _Run()
        self._formulas: list[tuple[FloatValue, Formula] | None] = []
        self._domains: dict[FloatValue, tuple[float, float] | None] = {}

    def ask_in_backward(self) -> None:
        """Run the backward of the call with its symbols, to see what C++ asks of them there."""
        tensors = (leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor))
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            with suppress(_Failed):
                self._run(self._symbols)

    def succeeds(self) -> bool:
        """Whether the floats may be carried."""
        try:
            self._base = self._run({})
            self._find_formulas()
            self._domains = {value: self._domain(value) for value in self._marks}
        except _Failed:
            return False
        return True

    def carry(self, context: ShapeContext) -> None:
        """Carry the floats from now on, in calls for which C++ does the same."""
        context.floats.carrying = True
        for value, domain in self._domains.items():
            context.floats.carried.mark(value, self._hints[value] or 0.0)
            formulas = [entry[1] for entry in self._formulas if entry and entry[0] is value]
            context.floats.carried.keep(value, formulas)
            if domain is not None:
                context.evaluate(compare("gt", value, domain[0]))
                context.evaluate(compare("lt", value, domain[1]))

    # -- what C++ makes of the numbers -------------------------------------------------------------

    def _find_formulas(self) -> None:
        """For each number of the run, a formula of one mark, or None for a constant."""
        self._formulas = [None] * len(self._base.floats)
        for value, mark in self._marks.items():
            other = nth_mark(mark, _FAR)
            run = self._run({value: other})
            if run.structure != self._base.structure:
                raise _Failed
            for i, (number, changed) in enumerate(zip(self._base.floats, run.floats, strict=True)):
                if _is_same(number, changed):
                    continue
                formula = formula_of(mark, number, other, changed)
                if formula is None or self._formulas[i] is not None:
                    raise _Failed
                self._formulas[i] = value, formula

    def _domain(self, value: FloatValue) -> tuple[float, float] | None:
        """The `BORDERS` between which the float must lie for the call to be the same, or None for
        anywhere."""
        differing = [number for number in _SAMPLES if not self._agrees(value, number)]
        if not differing:
            return None
        hint = self._hints[value]
        if hint is None or math.isnan(hint):
            raise _Failed
        below = max((number for number in differing if number <= hint), default=-math.inf)
        above = min((number for number in differing if number >= hint), default=math.inf)
        low = min(border for border in BORDERS if border >= below)
        high = max(border for border in BORDERS if border <= above)
        if not low < hint < high:
            raise _Failed
        return low, high

    def _agrees(self, value: FloatValue, number: float) -> bool:
        """Whether the call does the same for that number."""
        try:
            run = self._run({value: number})
            expected = [entry[1](number) if entry and entry[0] is value else constant
                        for entry, constant in zip(self._formulas, self._base.floats, strict=True)]
        except (_Failed, ArithmeticError):
            return False
        return run.structure == self._base.structure and all(map(_is_same, run.floats, expected))

    # -- one run -----------------------------------------------------------------------------------

    def _run(self, numbers: Mapping[FloatValue, float | torch.SymFloat]) -> _Run:
        """The call and its backward with these numbers, and the marks for all others."""
        numbers = {**self._marks, **numbers}
        twins: dict[int, tuple[FakeTensor, torch.Tensor]] = {}
        symbols, self._mode.symbols = self._mode.symbols, None  # nothing depends on data
        log = _Log(None if symbols is None else symbols.data.bool_answer)
        try:
            leaves = [self._plain_argument(leaf, numbers, twins) for leaf in self._leaves]
            args, kwargs = tree_unflatten(leaves, self._form)
            with self._mode, log, python_kernels() if self._by_python else nullcontext():
                result = self._function(*args, **kwargs)
                _differentiate(result, [*twins.values()])
        except _ERRORS as error:
            raise _Failed from error
        finally:
            self._mode.symbols = symbols
        log.read(result)
        return log.run

    def _plain_argument(
        self, leaf: object, numbers: Mapping[FloatValue, float | torch.SymFloat],
        twins: dict[int, tuple[FakeTensor, torch.Tensor]],
    ) -> object:
        """An argument of the call, without symbolic sizes."""
        if isinstance(leaf, torch.SymFloat):
            return numbers[float_of(leaf)]
        if isinstance(leaf, torch.SymInt):
            return _hint(leaf)
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in twins:
            twins[id(leaf)] = self._twin(leaf)
        return twins[id(leaf)][1]

    def _twin(self, fake: torch.Tensor) -> tuple[FakeTensor, torch.Tensor]:
        """A fake of plain sizes, and what is passed to the call: that, or a tensor that it may
        write to."""
        if type(fake) is not FakeTensor or fake.layout is not torch.strided:
            raise _Failed
        size, stride = [*map(_hint, fake.size())], [*map(_hint, fake.stride())]
        twin = make_fake(self._mode, make_meta(size, stride, fake.dtype), fake.fake_device)
        twin.requires_grad_(fake.requires_grad)
        if fake.is_leaf:
            return twin, twin
        with self._mode:
            return twin, twin.clone()


@final
class _Log(DispatchMode):
    """Records the operators that run inside it, for comparison."""

    def __init__(self, answer: bool | None) -> None:
        """``answer``: what C++ is told that asks a bool of data, as it was outside of the trial."""
        super().__init__()
        self._answer = answer
        self.run = _Run()
        self._tensors: list[torch.Tensor] = []  # kept alive, as they are told apart by identity
        self._positions: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        self.run.structure.append(func)
        self.read([*schema_arguments(func, args, kwargs or {}).values()])
        try:
            result = func(*args, **(kwargs or {}))
        except DataDependentOutputException:
            if self._answer is None or not _gives_bool(func, args):
                raise
            result = self._answer
        self.read(result)
        return result

    def read(self, value: object) -> None:
        """Record arguments or results."""
        structure = self.run.structure
        if isinstance(value, torch.Tensor):
            self._read_tensor(value)
        elif type(value) is float:
            structure.append(float)
            self.run.floats.append(value)
        elif isinstance(value, (list, tuple)):
            structure.append(len(value))
            for item in value:
                self.read(item)
        else:
            structure.append((type(value), value))

    def _read_tensor(self, tensor: torch.Tensor) -> None:
        """The tensor's number; for a real tensor its data, which C++ may have computed from a
        float."""
        if id(tensor) not in self._positions:
            self._positions[id(tensor)] = len(self._tensors)
            self._tensors.append(tensor)
        with no_dispatch():
            data = None if isinstance(tensor, FakeTensor) else repr(tensor)
            self.run.structure.append((self._positions[id(tensor)], data, tuple(tensor.shape),
                                       tensor.stride(), tensor.dtype))


def _gives_bool(func: OpOverload, args: Sequence[Any]) -> bool:
    """Whether an operator that reads data returns a bool."""
    aten = torch.ops.aten
    return func is aten.equal.default or (
        func is aten._local_scalar_dense.default and args[0].dtype is torch.bool)


def _differentiate(result: object, twins: list[tuple[FakeTensor, torch.Tensor]]) -> None:
    """Run the backward of the result, and of what may have been written."""
    inputs = [leaf for leaf, _ in twins if leaf.requires_grad]
    values = [*tree_flatten(result)[0], *(twin for leaf, twin in twins if twin is not leaf)]
    outputs = list({id(value): value for value in values
                    if isinstance(value, torch.Tensor) and value.requires_grad}.values())
    if outputs and inputs:
        engine_gradients(outputs, [torch.ones_like(output) for output in outputs], inputs)


def _is_same(a: float, b: float) -> bool:
    return repr(a) == repr(b)


def _hint(size: int | torch.SymInt) -> int:
    hint = size.node.hint if isinstance(size, torch.SymInt) else size
    if hint is None:
        raise _Failed
    return int(hint)
