"""Kernels of symbolic sizes: a few forms of one kernel, chosen by the sizes of a call.

Place in the pipeline: between `target.py`, which compiles a form, and the call sequence. One text
for all sizes would be slow: rows of 128 in tiles of 4096, loads of single elements because rows may
start anywhere, index arithmetic in 64 bits. A form assumes what is true of many sizes::

    form                              holds for sizes where
    tile of [1, 1024], row at once    the row has at most 1024 elements
    indices in 32 bits                no index of the kernel is larger
    s0, s1 multiples of 4, 8 or 16    they are: loads of whole vectors
    the row has no cut tile           its length is a multiple of the tile's: no masks
    rows in 16 pieces                 the row has 16 elements; chosen where the results are few
    the pieces are equal              16 divides the row's length

The form for the sizes seen while compiling is compiled with the graph. Other sizes use any form
that holds for them, however slow, until they occur again: then they get their own. So a loop over
growing lengths does not compile at each step.
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
from weft.codegen.triton.split import choose_chunks, split_in
from weft.codegen.triton.tiling import Measure, Tiling, choose_tiling, is_whole
from weft.shapes.algebra.atoms import Atom, Symbol
from weft.shapes.algebra.expr import Expr, IntExpr, maximum, operands, subs
from weft.shapes.algebra.printing import python_text

POWERS: Final = (16, 8, 4)
"""Sizes that are multiples of these keep rows aligned to wide loads."""
WORTH_A_FORM: Final = 3
"""After this many calls with the same sizes, these sizes get the form that suits them best."""
MOST_SIZES: Final = 4096
"""Tuples of sizes whose form is remembered."""

Launch = Callable[..., None]
"""Takes the kernel's buffers, then its sizes."""


@final
@dataclass(frozen=True)
class Form:
    """The assumptions of one text of the kernel; `tilings`: of the kernel, or of the two kernels
    that a reduction in `chunks` pieces, of equal length if `even`, is split into."""

    tilings: tuple[Tiling, ...]
    chunks: int
    even: bool
    narrow: bool
    multiples: frozenset[tuple[str, int]]


@final
class Forms:
    """The forms of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.numbers = number_names(kernel)
        self.symbols = tuple(s for s in kernel.sizes if str(s) not in self.numbers)
        self.names = tuple(map(str, self.symbols))

    def best(self, sizes: tuple[int, ...]) -> Form:
        """The best form for these sizes (in the order of `Kernel.sizes`, without floats)."""
        measure = self._measure(sizes)
        multiples = frozenset(
            (name, power) for name, size in zip(self.names, sizes, strict=True)
            if (power := next((p for p in POWERS if size % p == 0), 0))
        )
        form = self._form(sizes, even=True)
        measured = tuple(t.measured(measure) for t in form.tilings)
        return replace(form, tilings=measured, multiples=multiples)

    def general(self, sizes: tuple[int, ...]) -> Form:
        """A form for these sizes that also holds for many others."""
        form = self._form(sizes, even=False)
        return replace(form, tilings=tuple(t.measured(lambda extent: extent) for t in form.tilings))

    def _form(self, sizes: tuple[int, ...], *, even: bool) -> Form:
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
        return Form(tilings, chunks, even, self._largest(*sizes) < 2**31, frozenset())

    def holds(self, form: Form, sizes: tuple[int, ...]) -> bool:
        """Whether the form gives the right result for these sizes."""
        if form.narrow and self._largest(*sizes) >= 2**31:
            return False
        named = dict(zip(self.names, sizes, strict=True))
        if any(named[name] % power for name, power in form.multiples):
            return False
        measure = self._measure(sizes)
        row = measure(number_of_points(self.kernel.inner))
        if isinstance(row, int) and form.chunks > row:
            return False  # more partial results than elements: `_largest` does not cover them
        if isinstance(row, int) and form.even and row % form.chunks:
            return False
        cut = any(a.whole and not is_whole(a, measure) for t in form.tilings for a in t.axes)
        return not cut and all(_holds_row(tiling, measure) for tiling in form.tilings)

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
class SizedKernel:
    """A kernel as a callable (`launch`) that chooses the form for its sizes."""

    def __init__(
        self, forms: Forms, launches: dict[Form, Launch], build: Callable[[Form], Launch]
    ) -> None:
        self.forms, self.launches, self.build = forms, launches, build
        self.bound: dict[tuple[int, ...], Launch] = {}
        self.calls: dict[tuple[int, ...], int] = {}
        sizes = enumerate(forms.kernel.sizes, len(forms.kernel.buffers))
        keys = tuple(i for i, size in sizes if str(size) not in forms.numbers)
        self.launch: Launch = _cuda.Sized(self.find, keys)

    def find(self, sizes: tuple[int, ...]) -> tuple[Launch, bool]:
        """The launch for these sizes, and whether it is the best one."""
        launch = self.bound.get(sizes)
        if launch is not None:
            return launch, True
        wanted = self.forms.best(sizes)
        launch = self.launches.get(wanted)
        if launch is None:
            calls = self.calls[sizes] = self.calls.get(sizes, 0) + 1
            if calls < WORTH_A_FORM or torch.cuda.is_current_stream_capturing():
                return self._holding(sizes), False
            launch = self.launches[wanted] = self.build(wanted)
        for known in (self.bound, self.calls):
            if len(known) > MOST_SIZES:
                known.clear()
        self.bound[sizes] = launch
        return launch, True

    def _holding(self, sizes: tuple[int, ...]) -> Launch:
        """The launch of a form that holds for these sizes; builds a general one if there is
        none."""
        for form, launch in self.launches.items():
            if self.forms.holds(form, sizes):
                return launch
        form = self.forms.general(sizes)
        launch = self.launches[form] = self.build(form)
        return launch
