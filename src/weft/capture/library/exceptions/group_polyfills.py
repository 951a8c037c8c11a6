"""What CPython does in C for `except*` and for the methods of exception groups (PEP 654).

Place in the pipeline: interpreted in place of the instructions and methods
(`opcodes/exceptions.py`, `methods.py`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any


def check_match(error: Any, kinds: Any) -> tuple[object, object]:
    """CHECK_EG_MATCH: the rest of the exception, and the part that matches; None for nothing."""
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(
                "catching classes that do not inherit from BaseException is not allowed")
        if issubclass(kind, BaseExceptionGroup):
            raise TypeError(
                "catching ExceptionGroup with except* is not allowed. Use except instead.")
    if isinstance(error, kinds):
        is_group = isinstance(error, BaseExceptionGroup)
        return None, error if is_group else ExceptionGroup("", (error,))
    if isinstance(error, BaseExceptionGroup):
        matching, rest = error.split(kinds)
        return rest, matching
    return error, None


def prepare_reraise(error: object, raised: Sequence[object]) -> object:
    """PREP_RERAISE_STAR: the exception that leaves the statement, or None."""
    if not isinstance(error, BaseExceptionGroup):
        return raised[0] if raised else None
    new: list[Any] = []
    again: list[Any] = []
    for e in raised:
        if e is not None:
            (again if _is_part(e, error) else new).append(e)
    leaves = [leaf for e in again for leaf in _leaves(e)]
    rest = _split(error, lambda it: any(it is leaf for leaf in leaves))[0] if leaves else None
    if rest is not None:
        new.append(rest)
    if not new:
        return None
    return new[0] if len(new) == 1 else ExceptionGroup("", new)


def _is_part(error: Any, whole: Any) -> bool:
    """Whether it is (a part of) the handled exception, raised again, and not a new one."""
    return (error.__traceback__ is whole.__traceback__ and error.__cause__ is whole.__cause__
            and error.__context__ is whole.__context__)


def _leaves(error: object) -> Iterator[object]:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _leaves(member)
    else:
        yield error


def split(self: object, condition: object) -> tuple[Any, Any]:
    """BaseExceptionGroup.split"""
    return _split(self, _test_of(condition))


def subgroup(self: object, condition: object) -> object:
    """BaseExceptionGroup.subgroup"""
    return _split(self, _test_of(condition))[0]


def derive(self: Any, exceptions: Any) -> object:
    """BaseExceptionGroup.derive"""
    return ExceptionGroup(self.message, exceptions)


def _test_of(condition: Any) -> Callable[[Any], bool]:
    if isinstance(condition, types.FunctionType):
        return lambda error: bool(condition(error))
    for kind in condition if isinstance(condition, tuple) else (condition,):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError("expected a function, exception type or tuple of exception types")
    return lambda error: isinstance(error, condition)


def _split(error: object, test: Callable[[Any], bool]) -> tuple[Any, Any]:
    if test(error):
        return error, None
    if not isinstance(error, BaseExceptionGroup):
        return None, error
    matching, rest = [], []
    for member in error.exceptions:
        inner = _split(member, test)
        if inner[0] is not None:
            matching.append(inner[0])
        if inner[1] is not None:
            rest.append(inner[1])
    return _derive(error, matching), _derive(error, rest)


def _derive(error: Any, exceptions: list[Any]) -> object:
    """A group like this one, of some of its exceptions."""
    if not exceptions:
        return None
    group = error.derive(exceptions)
    if not isinstance(group, BaseExceptionGroup):
        raise TypeError("derive must return an instance of BaseExceptionGroup")
    if error.__traceback__ is not None:
        group.__traceback__ = error.__traceback__
    group.__context__ = error.__context__
    group.__cause__ = error.__cause__
    if hasattr(error, "__notes__"):
        group.__notes__ = list(error.__notes__)
    return group
