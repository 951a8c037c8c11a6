"""Exceptions and warnings that a user of weft can meet, one class per mistake.

Place in the pipeline: the bottom; every stage raises these.

Each message says what happened, where in the user's code (when there is a place), and what to do::

    weft.errors.UnknownBackend: there is no backend named 'inducter'
      valid: 'aot_eager', 'eager', 'inductor' (did you mean 'inductor'?)
      do: pass one of these names, or any callable backend(gm, example_inputs)
"""

from __future__ import annotations

import sys
import sysconfig
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final, final

from weft.quoting import one_line

_INSTALLED: Final = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib"))
_MOST_LINES: Final = 4
"""How many lines of the program a message names."""


@final
@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's program, which graph nodes, breaks and kernels refer to."""

    file: str
    line: int
    function: str

    @property
    def is_installed(self) -> bool:
        """Whether it is a line of Python's or an installed package's, not the program's."""
        return self.file.startswith(_INSTALLED)

    def __str__(self) -> str:
        return f"{one_line(self.file)}:{self.line} in {one_line(self.function)}"


def _shown_lines(stack: Sequence[SourceLine]) -> list[str]:
    """The innermost line, then the program's own ones, as many as a reader wants."""
    lines = list(reversed(stack))
    if len(lines) <= _MOST_LINES:
        return list(map(str, lines))
    own = [line for line in lines[1:] if not line.is_installed] or lines[1:]
    shown = [lines[0], *own[:_MOST_LINES - 2]]
    return [*map(str, shown), f"… and {len(lines) - len(shown)} more calls"]


class WeftError(Exception):
    """Base class of everything weft raises: what happened, where, what to do."""

    def __init__(
        self, what: str, *, stack: Sequence[SourceLine] = (), do: str | None = None
    ) -> None:
        self.what = what
        self.stack = tuple(stack)
        self.do = do
        super().__init__(self._text())

    def _text(self) -> str:
        parts = [self.what]
        parts.extend(f"  at: {line}" for line in _shown_lines(self.stack))
        if self.do:
            parts.append(f"  do: {self.do}")
        return "\n".join(parts)


class UserError(WeftError):
    """The call of weft itself is wrong; raised at once, never turned into a fallback."""


class UnknownName(UserError, ValueError):
    """A name that is not in a closed list; the message shows the list and the nearest name."""

    noun = "name"

    def __init__(self, name: object, valid: Iterable[str], *, do: str | None = None) -> None:
        self.given = name
        self.valid = tuple(sorted(valid))
        listed = ", ".join(repr(v) for v in self.valid) or "(none)"
        near = get_close_matches(str(name), self.valid, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        super().__init__(f"there is no {self.noun} named {name!r}\n  valid: {listed}{hint}", do=do)


class UnknownPass(UnknownName):
    """`options={"passes": …}` names no registered pass."""

    noun = "pass"

    def __init__(self, name: object, valid: Iterable[str]) -> None:
        super().__init__(name, valid, do="give one of these names, or a function of a GraphModule")


class UnknownBackend(UnknownName):
    """`backend=` names no registered backend."""

    noun = "backend"

    def __init__(self, name: object, valid: Iterable[str]) -> None:
        do = "pass one of these names, or any callable backend(gm, example_inputs)"
        super().__init__(name, valid, do=do)


class UnknownMode(UnknownName):
    """`mode=` is not one of the modes."""

    noun = "mode"

    def __init__(self, name: object, valid: Iterable[str]) -> None:
        super().__init__(name, valid, do="leave mode out, or pass one of these")


class UnknownOption(UnknownName, AttributeError):
    """`options=` or `weft.config` has no such setting."""

    noun = "setting"

    def __init__(self, name: object, valid: Iterable[str]) -> None:
        super().__init__(name, valid, do="`print(weft.config.describe())` lists what each does")


class UnknownTorchOption(UserError, ValueError):
    """An option of torch.compile that is neither PyTorch's nor weft's."""

    def __init__(self, name: str, valid: Iterable[str]) -> None:
        self.given = name
        near = get_close_matches(name, tuple(valid), n=3)
        hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
        super().__init__(
            f"there is no option named {name!r}, in PyTorch or in weft{hint}",
            do="`print(weft.config.describe())` lists weft's options")


class UnknownArtifact(UnknownName):
    """`WEFT_LOGS` or `weft.set_logs` names no log."""

    noun = "log"


class UnknownContender(UnknownName):
    """`against=` of `weft.benchmark` names nothing that weft can be measured against."""

    noun = "contender"

    def __init__(self, name: object, valid: Iterable[str]) -> None:
        super().__init__(name, valid, do="pass one of these names, or a callable")


class UnknownStance(UnknownName):
    """`set_stance` was given a name that is no stance."""

    noun = "stance"


class BadValue(UserError, TypeError):
    """An argument or setting of the wrong type or outside its range."""


class NotCallable(UserError, TypeError):
    """A function of weft (`taker`) received something that cannot be called."""

    def __init__(self, value: object, taker: str = "weft.compile") -> None:
        super().__init__(
            f"{taker} needs a function, a torch.nn.Module or another callable, "
            f"and got {type(value).__name__}",
            do="pass the function itself, not the result of calling it",
        )


class FixedDimensionError(UserError, ValueError):
    """The program fixed a dimension that `mark_dynamic` declares as changing."""

    def __init__(self, what: str, size: int, *, stack: Sequence[SourceLine] = ()) -> None:
        self.size = size
        super().__init__(
            f"{what} is marked dynamic, but the program works only for {size}", stack=stack,
            do="remove the mark, or make this line work for other sizes")


class DimensionError(UserError, ValueError):
    """A size violates its `Dim`, `mark_dynamic` or `dynamic_shapes`."""


class GraphBreakError(WeftError):
    """A graph break, with `fullgraph=True`.

    `id` is stable between versions; `reason`, `stack` (outermost first) and `hint` describe it.
    """

    def __init__(
        self, reason: str, *, id: str = "", stack: Sequence[SourceLine] = (), hint: str = ""
    ) -> None:
        self.reason = reason
        self.id = id
        self.hint = hint
        named = f" [{id}]" if id else ""
        super().__init__(f"graph break under fullgraph=True{named}: {reason}", stack=stack,
                         do=hint or None)


class RecompileError(WeftError):
    """No compiled variant fits the call, under the stance "fail_on_recompile"."""

    def __init__(self, what: str, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        why = "".join(f"\n  {reason}" for reason in reasons) or "\n  it was never compiled"
        super().__init__(f"{what} would have to be compiled again under the stance "
                         f"'fail_on_recompile':{why}",
                         do="call it with such arguments before setting the stance")


class CompilerNotFound(WeftError):
    """No usable C++ compiler for the CPU code generator."""

    def __init__(self, tried: Iterable[str]) -> None:
        names = ", ".join(tried)
        super().__init__(
            f"no C++ compiler found (tried {names})",
            do="install g++ (Debian/Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`; "
            "macOS: `xcode-select --install`), or name one with WEFT_CPP_COMPILER",
        )


class MissingDependency(WeftError):
    """A required package is not installed."""

    def __init__(self, package: str, purpose: str, command: str) -> None:
        super().__init__(f"{package} is needed to {purpose}, and is not installed", do=command)


class UnsupportedTorch(WeftError, ImportError):
    """The installed PyTorch lacks what weft stands on."""


class CompilationFailed(WeftError):
    """The C++ compiler or Triton refused generated code: a bug in weft, not in the program."""


class InternalError(WeftError):
    """A stage of weft failed."""


class VerificationError(InternalError):
    """An intermediate form is malformed; raised by a `verify()`."""


class NumericsError(WeftError):
    """Under `config.check_numerics`: a compiled graph does not compute what eager computes.

    `operators` are enough to show it (all of the graph's if it could not be made smaller); `path`
    is the program that shows it, if one was written.
    """

    def __init__(
        self, problem: str, *, stage: str, operators: Sequence[str], stack: Sequence[SourceLine],
        reduced: bool, path: object = None,
    ) -> None:
        self.problem = problem
        self.operators = tuple(operators)
        self.path = path
        part = f"the part {', '.join(operators)} of a graph" if reduced else "a graph"
        do = (f"run {path}, which shows it, and report it with that file" if path is not None else
              f"set repro_after={stage!r} to have a program written that shows it")
        super().__init__(f"compiled, {part} differs from eager: {problem}", stack=stack, do=do)


class BackendError(WeftError):
    """A user's backend raised or returned something that is not callable."""


class PassError(UserError):
    """A user's pass raised, or returned something else than a pass returns."""


class WeftWarning(UserWarning):
    """Base class of weft's warnings."""


class FallbackWarning(WeftWarning):
    """weft could not compile something and runs it eagerly."""


class CacheWarning(WeftWarning):
    """The folder of compiled kernels cannot be used, or holds something of another user."""


class UntestedTorchWarning(WeftWarning):
    """PyTorch is newer than the versions that weft is tested with."""


class TorchOptionWarning(WeftWarning):
    """An argument of torch.compile has no counterpart in weft, which does something else."""


class RecompileLimitWarning(WeftWarning):
    """A function was compiled `cache_size_limit` times; further variants run eagerly."""


class CompilerMissingWarning(FallbackWarning):
    """The code generator has no C++ compiler, or no Triton."""


_OURS: Final = (str(Path(__file__).parent), "<weft ")
"""How the file names of weft's own frames begin, replacements included."""


CALLS_OF_MODULES: Final = frozenset({"_call_impl", "_wrapped_call_impl"})
"""PyTorch's methods that call a module, by name."""


def is_ours(file: str) -> bool:
    """Whether frames of a file are weft's own."""
    return file.startswith(_OURS)


def warn(category: type[Warning], message: str) -> None:
    """Warn, at the user's line."""
    warnings.warn(message, category, stacklevel=users_level())


def users_level() -> int:
    """The `stacklevel` with which the caller's warning names the user's line instead of one of
    weft's, or of PyTorch's call of a module."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and (
            is_ours(frame.f_code.co_filename) or frame.f_code.co_name in CALLS_OF_MODULES):
        frame, level = frame.f_back, level + 1
    return level
