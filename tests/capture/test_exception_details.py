"""Exceptions as programs see them: contexts, tracebacks, attributes, and what `except` compares."""

from __future__ import annotations

import contextlib
import enum
import operator
import sys
import traceback
import warnings
from typing import Any

import pytest
import torch

import weft
from tests.capture.harness import check

X = torch.ones(2)


def entries(error: BaseException | None) -> list[tuple[str, str]]:
    """Function and source line of each entry of the traceback."""
    assert error is not None
    return [(e.name, e.line or "") for e in traceback.extract_tb(error.__traceback__)]


def fails(x: Any) -> Any:
    y = x + 1
    raise ValueError(y.shape[0])


def passes_on(x: Any) -> Any:
    return fails(x * 2)


def keeps_error(x: Any, keep: list[Any]) -> Any:
    try:
        passes_on(x)
    except ValueError as error:
        keep.append(error)
    return x + 1


def test_a_caught_exception_shows_the_lines_of_the_program() -> None:
    expected: list[Any] = []
    found: list[Any] = []
    keeps_error(X, expected)
    weft.compile(keeps_error, backend="eager", fullgraph=True)(X, found)
    assert entries(found[0]) == entries(expected[0])
    assert [name for name, _ in entries(found[0])] == ["keeps_error", "passes_on", "fails"]


def test_printing_a_caught_exception_shows_its_traceback() -> None:
    def f(x: Any) -> Any:
        try:
            passes_on(x)
        except ValueError:
            print(traceback.format_exc().replace(" " * 4, ""))
        return x + 1

    check(f, (X,), breaks=None)


class Keeper:
    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        print(kind.__name__, trace is not None, trace.tb_lineno - self.first)
        return True

    first = 0


def test_exit_called_at_a_break_is_given_a_traceback() -> None:
    def f(x: Any, keeper: Any) -> Any:
        with keeper:
            raise ValueError(3)
        return x + 1

    keeper = Keeper()
    keeper.first = f.__code__.co_firstlineno
    check(f, (X, keeper), breaks=None)


def test_raising_an_exception_from_outside_extends_its_traceback() -> None:
    def f(x: Any, error: Any) -> Any:
        for _ in range(2):
            try:
                raise error
            except ValueError:
                x = x + 1
        return x

    errors = ValueError(1), ValueError(1)
    f(X, errors[0])
    weft.compile(f, backend="eager")(X, errors[1])
    lines = [[line for _, line in entries(error)] for error in errors]
    assert lines[0] == lines[1] == ["raise error"] * 2


def test_context_of_an_exception_that_had_one() -> None:
    def f(x: Any) -> Any:
        first, second = KeyError(1), IndexError(2)
        error = ValueError(3)
        for outer in (first, second):
            try:
                try:
                    raise outer
                except LookupError:
                    raise error
            except ValueError:
                x = x + 1
        return x, error.__context__ is second, first.__context__, second.__context__

    check(f, (X,))


def test_contexts_make_no_cycle() -> None:
    def f(x: Any) -> Any:
        first, second = KeyError(1), IndexError(2)
        try:
            try:
                raise first
            except KeyError:
                try:
                    raise second
                except IndexError:
                    raise first
        except KeyError:
            x = x + 1
        return x, first.__context__ is second, second.__context__

    check(f, (X,))


def test_context_of_an_operating_systems_error() -> None:
    def f(x: Any) -> Any:
        try:
            try:
                raise KeyError(1)
            except KeyError:
                raise OSError(2, "text")
        except OSError as error:
            return x + 1, repr(error.__context__)
        return x

    check(f, (X,), breaks=None)


def test_context_is_what_the_caller_handles() -> None:
    def f(x: Any, keep: list[Any]) -> Any:
        try:
            raise ValueError(1)
        except ValueError as error:
            keep.append(error)
        return x + 1

    keep: list[Any] = []
    compiled = weft.compile(f, backend="eager")
    for outer in (KeyError(1), KeyError(2)):
        try:
            raise outer
        except KeyError:
            compiled(X, keep)
        assert keep.pop().__context__ is outer


def test_errors_name_what_was_not_found() -> None:
    def f(x: Any, obj: Any) -> Any:
        found: list[Any] = []
        try:
            obj.missing
        except AttributeError as error:
            found += [error.name, error.obj is obj]
        try:
            nowhere  # type: ignore[name-defined]
        except NameError as error:
            found += [error.name]
        return x + 1, found

    check(f, (X, Keeper()))


def test_attributes_of_exceptions_are_set_and_made() -> None:
    def f(x: Any, keep: list[Any]) -> Any:
        error = ImportError("text", name="module", path="file")
        error.path = "other"
        stop = StopIteration(1)
        stop.value = 2
        keep += [error, stop]
        return x + 1, error.name, error.path, error.msg, stop.value, stop.args

    keep: list[Any] = []
    weft.compile(f, backend="eager", fullgraph=True)(X, keep)
    assert (keep[0].name, keep[0].path, keep[1].value, keep[1].args) == ("module", "other", 2, (1,))
    check(f, (X, []))


@pytest.mark.parametrize("name", ["__cause__", "__context__", "__traceback__"])
def test_attributes_that_must_not_be_numbers(name: str) -> None:
    def f(x: Any) -> Any:
        error = ValueError(1)
        try:
            setattr(error, name, 3)
        except TypeError as refused:
            return x + 1, str(refused)
        return x

    check(f, (X,), breaks=None)


class Asked(type):
    def __subclasscheck__(cls, other: Any) -> bool:
        raise RuntimeError("asked")


class AskedError(Exception, metaclass=Asked):
    pass


def test_except_does_not_ask_the_metaclass() -> None:
    def f(x: Any) -> Any:
        try:
            try:
                raise KeyError(1)
            except AskedError:
                x = x + 1
        except KeyError:
            x = x + 2
        return x

    check(f, (X,))


def deep(x: Any, n: int) -> Any:
    try:
        if n:
            return deep(x, n - 1)
        print("bottom")
        return x + 1
    except ValueError:
        return x


def test_a_break_under_many_handlers() -> None:
    check(lambda x: deep(x, 40), (X,), breaks=None)


def test_frames_are_traced_where_the_program_asks_for_it() -> None:
    def called(x: Any) -> Any:
        y = x + 1
        return y * 2

    def f(x: Any) -> Any:
        lines: list[int] = []

        def trace(frame: Any, event: str, arg: Any) -> Any:
            if event == "line" and frame.f_code.co_name == "called":
                lines.append(frame.f_lineno - frame.f_code.co_firstlineno)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            y = called(x)
        finally:
            sys.settrace(before)
        return y, lines

    check(f, (X,), breaks=None)


def helper_that_fails(x: Any) -> Any:
    print("a break")
    return int("no number")


def calls_helper(x: Any) -> Any:
    y = helper_that_fails(x)
    return y + 1


def lets_it_through(x: Any) -> Any:
    x = x + 1
    return calls_helper(x) * 2


def catches_it(x: Any, keep: list[Any]) -> Any:
    try:
        return lets_it_through(x)
    except ValueError as error:
        keep.append(error)
        return x


def unknown(x: Any) -> Any:
    return sys.setswitchinterval("text")  # type: ignore[arg-type]


def handles_and_fails(x: Any) -> Any:
    try:
        raise KeyError(1)
    except KeyError:
        x = x + 1
        return unknown(x)


@pytest.mark.parametrize("function", [lets_it_through, calls_helper, unknown, handles_and_fails])
def test_an_error_behind_a_break_shows_the_lines_of_the_program(function: Any) -> None:
    def shown(call: Any) -> Any:
        for _ in range(2):
            try:
                call(X)
            except (TypeError, ValueError) as error:
                lines = entries(error)
                context = entries(error.__context__) if error.__context__ else None
        return lines[1:], context

    expected = shown(function)
    found = shown(weft.compile(function, backend="eager"))
    assert found == expected


def check_what_is_caught(function: Any) -> None:
    expected: list[Any] = []
    found: list[Any] = []
    compiled = weft.compile(function, backend="eager")
    for _ in range(2):
        function(X, expected)
        compiled(X, found)
    assert entries(found[0]) == entries(expected[0]) == entries(found[1])


def test_an_error_behind_a_break_is_caught_with_the_lines_of_the_program() -> None:
    check_what_is_caught(catches_it)


def catches_it_inside(x: Any, keep: list[Any]) -> Any:
    y = catches_it(x, keep)
    return y + 1


def after_with(x: Any) -> Any:
    with contextlib.nullcontext():
        x = x + 1
    raise ValueError(x.shape[0])


def in_handler(x: Any) -> Any:
    try:
        raise KeyError(1)
    except KeyError as error:
        x = x + len(error.args)
        raise ValueError(x.shape[0]) from error
        x = x + 1


def frame_lines(error: BaseException) -> list[int]:
    """The lines at which the frames of the traceback ended."""
    return [frame.f_lineno for frame, _ in traceback.walk_tb(error.__traceback__)][1:]


def test_callers_of_the_handling_frame_do_not_show() -> None:
    check_what_is_caught(catches_it_inside)


@pytest.mark.parametrize("function", [after_with, in_handler])
def test_frames_end_where_their_error_was_raised(function: Any) -> None:
    def f(x: Any, keep: list[Any]) -> Any:
        try:
            function(x)
        except ValueError as error:
            keep.append(error)
        return x + 1

    expected: list[Any] = []
    found: list[Any] = []
    f(X, expected)
    weft.compile(f, backend="eager")(X, found)
    assert frame_lines(found[0]) == frame_lines(expected[0])


def test_the_context_of_a_given_error_is_what_the_caller_handles() -> None:
    def nested(inner: Exception, outer: Exception) -> None:
        try:
            raise inner
        finally:
            raise outer

    def f(x: Any, inner: Exception, outer: Exception) -> Any:
        y = x + 1
        try:
            nested(inner, outer)
        except ValueError:
            return y

    compiled = weft.compile(f, backend="eager")
    for _ in range(2):
        first, second, third = KeyError(0), ValueError(1), ValueError(2)
        try:
            raise first
        except KeyError:
            compiled(X, second, third)
        assert third.__context__ is second and second.__context__ is first
        assert first.__context__ is None


class Colour(enum.Enum):
    RED = 1

    @classmethod
    def _missing_(cls, value):
        raise LookupError(value)


def test_an_error_of_a_search_for_a_member_has_the_enums_error_as_context():
    def f(x, value):
        try:
            return x, Colour(value)
        except LookupError as error:
            return x + 1, type(error.__context__), str(error.__context__)

    check(f, (X, 3), (X, 1), breaks=None)


class Padding(enum.Enum):
    LEFT = "left"

    @classmethod
    def _missing_(cls, value):
        if isinstance(value, str):
            raise ValueError(f"{value} is not one of {[one.value for one in cls]}")


def test_a_value_that_no_member_has_is_an_error_of_the_program():
    def f(x, value):
        try:
            return x, Padding(value)
        except ValueError as error:
            return x + 1, str(error), error.__context__

    check(f, (X, "left"), (X, "top"), (X, 5), breaks=0)


def warns(x, level):
    warnings.warn("old", DeprecationWarning, stacklevel=level)
    return x + 1


def warns_deeply(x, level):
    with contextlib.suppress(KeyError):
        return warns(x, level) * 2


def calls_what_warns(function, x, level):
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        function(x, level)
    return [(str(one.message), one.filename, one.lineno) for one in given]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_warning_names_the_callers_line_that_it_is_about(level):
    compiled = weft.compile(warns_deeply, backend="eager")
    for _ in range(2):
        found = calls_what_warns(compiled, X, level)
        assert found == calls_what_warns(warns_deeply, X, level)


class Bare:
    pass


@pytest.mark.parametrize("operation", [
    lambda b: -b, lambda b: +b, lambda b: ~b, abs, operator.index, len, next, lambda b: b[0],
    lambda b: operator.setitem(b, 0, 1), lambda b: operator.delitem(b, 0), lambda b: 0 in b,
    lambda b: getattr(b, 3), lambda b: hasattr(b, 3), lambda b: -[b], lambda b: abs({b}),
])
def test_what_an_object_cannot_do_is_refused_in_pythons_words(operation):
    def f(x, bare):
        try:
            return operation(bare)
        except TypeError as error:
            return x + 1, str(error)

    check(f, (X, Bare()), breaks=None)


def test_a_plus_before_a_tensor():
    def f(x):
        return +x, +(x > 0).long(), -x

    check(f, (X,), graphs=1)


def test_an_index_that_is_no_number_is_refused():
    class Index:
        def __init__(self, given):
            self.given = given

        def __index__(self):
            return self.given

    def f(x, given):
        try:
            return x + operator.index(Index(given)), [5, 6, 7][operator.index(Index(1))]
        except TypeError as error:
            return x, str(error)

    check(f, (X, 2), (X, "bad"), (X, 1.5), breaks=None)


def test_groups_are_caught_in_parts() -> None:
    def f(x: torch.Tensor, how: int) -> Any:
        log = []
        try:
            try:
                inner = ExceptionGroup("in", [TypeError("c"), ValueError("d")])
                raise ExceptionGroup("many", [ValueError("a"), KeyError("b"), inner])
            except* ValueError as group:
                log.append((str(group), [type(one).__name__ for one in group.exceptions]))
            except* (KeyError, TypeError) as group:
                log.append(group.message)
                if how == 1:
                    raise
                if how == 2:
                    raise RuntimeError("new") from group
        except Exception as error:
            log += [repr(error), repr(error.__context__), repr(error.__cause__)]
        return x + len(log), log

    check(f, *((X, how) for how in (0, 1, 2)), breaks=0)


def test_naked_exceptions_and_breaks_in_except_star() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            raise ValueError(3)
        except* ValueError as group:
            print(group.exceptions)
            x = x + len(group.exceptions)
        try:
            x = x * 2
        except* KeyError:
            x = x * 0
        else:
            x = x + 1
        return x

    check(f, (X,), breaks=1)


def test_parts_of_groups() -> None:
    class Errors(ExceptionGroup):
        def derive(self, excs: Any) -> Any:
            return Errors(self.message + "!", excs)

    def f(x: torch.Tensor) -> Any:
        group = Errors("m", [ValueError(1), ExceptionGroup("n", [KeyError(2)])])
        group.add_note("seen")
        matching, rest = group.split(ValueError)
        found = group.subgroup(lambda error: isinstance(error, KeyError))
        texts = [f"{it!r} {it} {it.__notes__}" for it in (group, matching, rest, found)]
        return x + 1, texts, group.split(IndexError)[0], group.derive([TypeError()]).message

    check(f, (X,), breaks=0)


def test_a_plain_exception_that_a_group_clause_catches_is_in_a_tuple() -> None:
    def f(x):
        try:
            raise ValueError(1)
        except* ValueError as group:
            found = group
        return x, found

    eager, compiled = f(torch.ones(1))[1], weft.compile(f, backend="eager")(torch.ones(1))[1]
    assert repr(compiled.args) == repr(eager.args)


def test_exceptions_whose_constructor_does_more_than_keep_arguments() -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        seen = []
        for make in (lambda: OSError(2, "none", "f"), lambda: OSError("only"),
                     lambda: SyntaxError("bad", ("f", n, 2, "t")), lambda: TimeoutError(1, "late"),
                     lambda: UnicodeDecodeError("utf8", b"a", 0, 1, "r"), lambda: OSError(n)):
            try:
                raise make()
            except Exception as error:
                seen.append((type(error), str(error), repr(error), getattr(error, "filename", 0)))
        error = OSError(2, "x")
        error.strerror = "y"
        if n > 3:
            raise FileNotFoundError(2, "nothing", f"file{n}")
        return x, seen, str(OSError(2, "a", "b"))

    check(f, (X, 2), (X, 4), breaks=None)
    check(lambda x: (x, str(OSError(2, "a", "b")), str(SyntaxError("m"))), (X,), breaks=0)


def refused(x: Any, obj: Any) -> Any:
    texts = []
    for operation in (lambda: obj[0], lambda: obj(1), lambda: operator.setitem(obj, 0, 1),
                      lambda: operator.delitem(obj, 0), lambda: [*obj], lambda: obj[x.shape[0]:]):
        try:
            operation()
        except TypeError as error:
            texts.append(str(error))
    try:
        obj[0] = 1
    except TypeError as error:
        texts.append(str(error))
    return x + len(texts), texts


@pytest.mark.parametrize("obj", [0, None, 1.5, True, len, (1, 2), "ab"])
def test_operations_that_a_type_does_not_have(obj: Any) -> None:
    check(refused, (X, obj), graphs=1)


def test_functions_cannot_be_indexed() -> None:
    def f(x: Any) -> Any:
        def inner() -> None: ...

        return refused(x, inner)[0]

    check(f, (X,), graphs=1)
