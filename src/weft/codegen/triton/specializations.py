"""Kernels of symbolic sizes: a few specializations of one kernel, chosen by the sizes of a call.

Place in the pipeline: between `target.py`, which compiles a specialization, and the call sequence.
One text for all sizes would be slow: rows of 128 in tiles of 4096, loads of single elements because
rows may start anywhere, index arithmetic in 64 bits. A specialization assumes what is true of many
sizes::

    assumption                        holds for sizes where
    tile of [1, 1024], row at once    the row has at most 1024 elements
    indices in 32 bits                no index of the kernel is larger
    s0, s1 multiples of 4, 8 or 16    they are: loads of whole vectors
    the row has no cut tile           its length is a multiple of the tile's: no masks
    rows in 16 pieces                 the row has 16 elements; chosen where the results are few
    the pieces are equal              16 divides the row's length

The specialization for the sizes seen while compiling is compiled with the graph. Other sizes use
any that holds for them, however slow, until they occur again: then they get their own. So a loop
over growing lengths does not compile at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, final

import torch

from weft import _cuda
from weft.codegen.ir.loop_ir import Indirect, Kernel, index_exprs, number_of_points
from weft.codegen.triton.emit import number_names
from weft.codegen.triton.split_reductions import choose_chunks, split_in
from weft.codegen.triton.tiling import Measure, Tiling, choose_tiling, is_whole
from weft.shapes.algebra.atoms import Atom, Symbol
from weft.shapes.algebra.expr import Expr, IntExpr, maximum, operands, subs
from weft.shapes.algebra.printing import python_text

POWERS: Final = (16, 8, 4)
"""Sizes that are multiples of these keep rows aligned to wide loads."""
WORTH_SPECIALIZING: Final = 3
"""After this many calls with the same sizes, these sizes get the best specialization for them."""
MOST_SIZES: Final = 4096
"""Tuples of sizes whose specialization is remembered."""

Launch = Callable[..., None]
"""Takes the kernel's buffers, then its sizes."""


@final
@dataclass(frozen=True)
class Specialization:
    """The assumptions of one text of the kernel; `tilings`: of the kernel, or of the two kernels
    that a reduction in `chunks` pieces, of equal length if `even`, is split into."""

    tilings: tuple[Tiling, ...]
    chunks: int
    even: bool
    narrow: bool
    multiples: frozenset[tuple[str, int]]


@final
class Specializations:
    """The specializations of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.numbers = number_names(kernel)
        self.symbols = tuple(s for s in kernel.sizes if str(s) not in self.numbers)
        self.names = tuple(map(str, self.symbols))

    def best(self, sizes: tuple[int, ...]) -> Specialization:
        """The best one for these sizes (in the order of `Kernel.sizes`, without floats)."""
        measure = self._measure(sizes)
        multiples = frozenset(
            (name, power) for name, size in zip(self.names, sizes, strict=True)
            if (power := next((p for p in POWERS if size % p == 0), 0))
        )
        choice = self._specialize(sizes, even=True)
        measured = tuple(t.measured(measure) for t in choice.tilings)
        return replace(choice, tilings=measured, multiples=multiples)

    def general(self, sizes: tuple[int, ...]) -> Specialization:
        """One for these sizes that also holds for many others."""
        choice = self._specialize(sizes, even=False)
        tilings = tuple(t.measured(lambda extent: extent) for t in choice.tilings)
        return replace(choice, tilings=tilings)

    def _specialize(self, sizes: tuple[int, ...], *, even: bool) -> Specialization:
        """The tiles and pieces for these sizes; `even`: may assume that pieces are equal."""
        measure = self._measure(sizes)
        tiling = choose_tiling(self.kernel, measure)
        chunks = choose_chunks(self.kernel, tiling, measure)
        tilings: tuple[Tiling, ...] = (tiling,)
        row = measure(number_of_points(self.kernel.inner))
        even = even and chunks > 1 and row % chunks == 0
        if chunks > 1:
            split = split_in(self.kernel, chunks, even=even)
            tilings = tuple(choose_tiling(k, measure) for k in (split.first, split.second))
        return Specialization(tilings, chunks, even, self._largest(*sizes) < 2**31, frozenset())

    def holds(self, choice: Specialization, sizes: tuple[int, ...]) -> bool:
        """Whether the specialization gives the right result for these sizes."""
        if choice.narrow and self._largest(*sizes) >= 2**31:
            return False
        named = dict(zip(self.names, sizes, strict=True))
        if any(named[name] % power for name, power in choice.multiples):
            return False
        measure = self._measure(sizes)
        row = measure(number_of_points(self.kernel.inner))
        if isinstance(row, int) and choice.chunks > row:
            return False  # more partial results than elements: `_largest` does not cover them
        if isinstance(row, int) and choice.even and row % choice.chunks:
            return False
        cut = any(a.whole and not is_whole(a, measure) for t in choice.tilings for a in t.axes)
        return not cut and all(_holds_row(tiling, measure) for tiling in choice.tilings)

    def _measure(self, sizes: tuple[int, ...]) -> Measure:
        values = dict(zip(self.symbols, sizes, strict=True))
        return lambda extent: subs(extent, values)

    @cached_property
    def _largest(self) -> Callable[..., int]:
        """A function of the sizes that bounds every index and its intermediate results."""
        limits = {v.symbol: v.extent for v in (*self.kernel.outer, *self.kernel.inner)}
        limits |= {n.symbol: n.size for n in self.kernel.nodes if isinstance(n, Indirect)}
        bounds = {_magnitude(e, limits) for e in _expressions(self.kernel)
                  if str(e) not in self.numbers}
        text = python_text(maximum(*bounds, 0))
        function: Callable[..., int] = eval(f"lambda {', '.join(self.names)}: {text}")
        return function


def _holds_row(tiling: Tiling, measure: Measure) -> bool:
    row = tiling.axis("r")
    if row is None or not tiling.persistent:
        return True
    extent = measure(row.extent)
    return isinstance(extent, int) and extent <= row.block


def _expressions(kernel: Kernel) -> Iterator[IntExpr]:
    """All expressions of sizes and loop variables that the text computes."""
    points = number_of_points((*kernel.outer, *kernel.inner))
    yield points * 2 + 65536  # flat indices; tiles reach past the end
    yield from index_exprs(kernel.nodes)
    for store in kernel.stores:
        yield store.index


def _magnitude(value: IntExpr, limits: Mapping[Expr, IntExpr]) -> IntExpr:
    """A bound of the absolute value of the expression and of all its parts."""
    if isinstance(value, int):
        return abs(value)
    total: IntExpr = abs(value.const)
    for monomial, coefficient in value.terms.items():
        term: IntExpr = abs(coefficient)
        for atom in monomial:
            term = term * _magnitude_of_atom(atom, limits)
        total = total + term
    return total


def _magnitude_of_atom(atom: Atom, limits: Mapping[Expr, IntExpr]) -> IntExpr:
    if isinstance(atom, Symbol):
        limit = limits.get(atom.expr)  # a loop variable or an index from memory
        return atom.expr if limit is None else _magnitude(limit, {})
    total: IntExpr = 0
    for part in operands(atom):
        total = total + _magnitude(part, limits)
    return total


@final
class SpecializedKernel:
    """A kernel as a callable (`launch`) that chooses the specialization for its sizes."""

    def __init__(
        self, choices: Specializations, launches: dict[Specialization, Launch],
        build: Callable[[Specialization], Launch],
    ) -> None:
        self.choices, self.launches, self.build = choices, launches, build
        self.bound: dict[tuple[int, ...], Launch] = {}
        self.calls: dict[tuple[int, ...], int] = {}
        sizes = enumerate(choices.kernel.sizes, len(choices.kernel.buffers))
        keys = tuple(i for i, size in sizes if str(size) not in choices.numbers)
        self.launch: Launch = _cuda.Sized(self.find, keys)

    def find(self, sizes: tuple[int, ...]) -> tuple[Launch, bool]:
        """The launch for these sizes, and whether it is the best one."""
        launch = self.bound.get(sizes)
        if launch is not None:
            return launch, True
        wanted = self.choices.best(sizes)
        launch = self.launches.get(wanted)
        if launch is None:
            calls = self.calls[sizes] = self.calls.get(sizes, 0) + 1
            if calls < WORTH_SPECIALIZING or torch.cuda.is_current_stream_capturing():
                return self._holding(sizes), False
            launch = self.launches[wanted] = self.build(wanted)
        for known in (self.bound, self.calls):
            if len(known) > MOST_SIZES:
                known.clear()
        self.bound[sizes] = launch
        return launch, True

    def _holding(self, sizes: tuple[int, ...]) -> Launch:
        """The launch of a specialization that holds for these sizes; if there is none, of a general
        one that is built now."""
        for choice, launch in self.launches.items():
            if self.choices.holds(choice, sizes):
                return launch
        choice = self.choices.general(sizes)
        launch = self.launches[choice] = self.build(choice)
        return launch
