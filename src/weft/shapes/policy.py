"""Which sizes and numbers become symbolic.

Place in the pipeline: capture keeps one `DynamicPolicy` per code object and asks it for each
tensor and number that it reads from outside. With ``dynamic=None`` everything is static at first;
at a recompile, a dimension (or a Python int or float) whose value differs from the last capture's
becomes symbolic and stays so. ``dynamic=True`` makes all dimensions symbolic at once, and the
numbers among the arguments; ``False`` none but marked ones. In the same way it remembers functions
that the program makes anew, which are then guarded by their code.

    policy = DynamicPolicy(None)
    policy.dimensions("x", (8, 128), {})       # {}: static
    policy.dimensions("x", (16, 128), {})      # {0: DimensionRange(history=(8, 16))}
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final, final

from weft.dims import Declarations, Dim, DimRange, Mark
from weft.shapes.algebra.intervals import INF
from weft.shapes.contents import Contents
from weft.shapes.seen_values import SeenValues

_MOST_DISAPPOINTMENTS: Final = 16
_AMONG_CALLS: Final = 128
"""If so many calls, among so many, ran eagerly because data was not as expected, nothing is
expected any more."""

_MOST_TESTED: Final = 6
"""Captures that rely on tests of the inputs' data; further ones break at such branches."""


@final
@dataclass(frozen=True, slots=True)
class DimensionRange:
    """A symbolic dimension: its limits, and the sizes seen at the last two captures.

    Dimensions with the same history share a symbol: they changed together. `alone`: this one does
    not, it may have the size of another by chance. `marked`: it is an error if the program fixes
    it; `dim`: the user's name for it; `unbacked`: its size in the current call must not decide
    anything.
    """

    history: tuple[int, ...]
    lo: int | None = None
    hi: int = INF
    marked: bool = False
    dim: Dim | None = None
    unbacked: bool = False
    alone: bool = False


def no_user() -> None:
    """In place of a reference to a compiled function."""


@final
class DynamicPolicy:
    """What earlier captures of one code object saw, and which sizes are symbolic because of
    that."""

    def __init__(self, dynamic: bool | None, *, automatic: bool = True, outermost: bool = False,
                 declared: Declarations | None = None, user: Callable[[], object] = no_user
                 ) -> None:
        """`outermost`: the code is the function that the user compiled; `user`: gives the compiled
        function, None if it is gone."""
        self.dynamic = dynamic
        self._outermost = outermost
        self._user = user
        self._of_arguments = outermost and dynamic is True
        self.declared = declared or Declarations()
        self.automatic = automatic and dynamic is not False
        self.expected: dict[str, set[int]] = {}
        """Dimensions that were symbolic in the part of the program before this one."""
        self.breaks_on_data = False
        """Whether graphs end at data-dependent operations: such a graph could not be compiled."""
        self.ends_before_refusals = False
        """Whether graphs end before operators that may fail, if what was written before cannot be
        undone."""
        self.expects = True
        """Whether captures may expect something of data (`ShapeContext.expect`)."""
        self.unexpected: set[Hashable] = set()
        """Branches without expectations: they end loops."""
        self._disappointments: deque[int] = deque(maxlen=_MOST_DISAPPOINTMENTS)
        self.repeats_calls = True
        """Whether calls may repeat earlier ones (`capture/repeats/`)."""
        self.contents = Contents()
        self._n_tested = 0
        self.fixes_all = False
        """Whether sizes may be fixed without limit, because graphs may not end."""
        self.all_static = False
        """Whether no size may be symbolic: the backend cannot compile such a graph."""
        self.must_share = False
        """Whether this is the last variant: it should serve all calls that no other one serves."""
        self._seen = SeenValues()

    def dimensions(
        self, name: str, sizes: tuple[int, ...], marks: Mapping[int, Mark], *,
        parameter: bool = False,
    ) -> dict[int, DimensionRange]:
        """The symbolic dimensions of the tensor called ``name``.

        ``marks``: what the user said about dimensions; None: static. Parameters and buffers are
        static unless they changed.
        """
        self._seen.note_sizes(name, sizes)
        if self.all_static:
            return {}
        chosen = {d for d in self.expected.get(name, ()) if d < len(sizes)}
        if self.automatic:
            chosen |= self._seen.changed_dimensions(name)
        if self.dynamic and not parameter:
            chosen = set(range(len(sizes)))
        ranges = {d: DimensionRange(self._seen.history(name, d, sizes[d])) for d in chosen}
        for d, mark in marks.items():
            if isinstance(mark, DimRange):
                mark.check(f"{name}.size({d})", sizes[d])
                ranges[d] = _marked(self._seen.history(name, d, sizes[d]), mark)
            else:
                ranges.pop(d, None)
        return ranges

    def for_equal_code(self, declared: Declarations, user: Callable[[], object], *, sizes: bool
                       ) -> DynamicPolicy:
        """The policy for another compiled function, `user()`, with equal code; `sizes`: it has used
        variants of this one, and so had its sizes.

        If it takes the place of one that is gone (a lambda that is compiled at each call), it goes
        on with its policy. Otherwise it lives beside it, as the next layer of a model does, whose
        sizes and settings (``self.heads``) are others for good: it knows the other numbers, and
        which functions are made anew.
        """
        if self._user() is None:
            self._user = user
            return self
        known = DynamicPolicy(self.dynamic, automatic=self.automatic, outermost=self._outermost,
                              declared=declared, user=user)
        known._seen = self._seen.for_another_object(sizes=sizes)
        return known

    def is_symbolic(self, name: str, value: int | float, *, argument: bool = False,
                    attribute: bool = False) -> bool:
        """Whether the Python number called ``name`` is symbolic: it had another value at an earlier
        capture, or it is an argument of the call and everything is symbolic from the start.

        attribute: an object has it.
        """
        self._seen.note_number(name, value, is_setting=attribute and type(value) is int)
        if self.all_static:
            return False
        if argument and self._of_arguments and value not in (0, 1):
            return True
        return self.automatic and self._seen.has_changed(name)

    def has_asked_for(self, name: str) -> bool:
        """Whether it was asked whether the number called ``name`` is symbolic."""
        return self._seen.knows_number(name)

    def is_replaced(self, name: str, function: FunctionType) -> bool:
        """Whether the function called ``name`` was another one at an earlier capture: the program
        makes it anew, so that its code says more than its identity."""
        self._seen.note_function(name, function)
        return self._seen.was_replaced(name)

    def number_range(self, name: str, value: int | float) -> DimRange | None:
        """What ``dynamic_shapes`` says about the Python number called ``name``."""
        declared = self.declared.numbers.get(name)
        if declared is not None and type(value) is int:
            declared.check(name, value)
        return declared

    def disappointed(self, calls: int) -> bool:
        """Record that an assumption on data failed in the latest of so many calls; True if that was
        once too often."""
        latest = self._disappointments
        latest.append(calls)
        self.expects = len(latest) < _MOST_DISAPPOINTMENTS or calls - latest[0] >= _AMONG_CALLS
        return not self.expects

    @property
    def may_test_inputs(self) -> bool:
        """Whether branches on the inputs' data have not yet gone too many ways."""
        return self._n_tested < _MOST_TESTED

    def note_input_tests(self, count: int) -> None:
        """Record that a capture relies on so many tests of its inputs."""
        self._n_tested += count > 0

    @property
    def may_fix(self) -> bool:
        """Whether a graph may fix symbolic sizes that an operator takes as plain numbers."""
        return self.fixes_all or not self.must_share

    def seen(self) -> list[list[Any]]:
        """The sizes and numbers of the last capture, as plain data."""
        return self._seen.as_data()

    def continue_from(self, seen: Sequence[Sequence[Any]]) -> None:
        """Go on as if the captures of this code so far had seen these."""
        for name, value in seen:
            if isinstance(value, list):
                self._seen.note_sizes(name, tuple(value))
            else:
                self._seen.note_number(name, value)


def _marked(history: tuple[int, ...], mark: DimRange) -> DimensionRange:
    hi = INF if mark.max is None else mark.max
    if mark.unbacked:
        return DimensionRange(history, mark.min, hi, unbacked=True)
    lo = mark.min if mark.min > 2 else None
    is_guess = not mark.strict and len(history) == 1  # PyTorch marks nested tensors' parts so
    return DimensionRange(history, lo, hi, marked=mark.strict, dim=mark.dim, alone=is_guess)
