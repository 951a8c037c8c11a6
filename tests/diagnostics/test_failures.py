import warnings
from pathlib import Path

import pytest

from weft import errors
from weft.config import config
from weft.diagnostics import events, failures
from weft.errors import SourceLine


@pytest.fixture(autouse=True)
def _relaxed(tmp_path):
    failures.forget_warnings()
    with config.patch(strict=False, suppress_errors=True, report_dir=str(tmp_path)):
        yield
    failures.forget_warnings()


def _fail(error=None, **how):
    try:
        raise error or ZeroDivisionError("inside weft")
    except Exception as caught:
        failures.handle(caught, during="lowering", what="f", **how)


def test_warns_once_and_names_the_report(tmp_path):
    with pytest.warns(errors.FallbackWarning, match=str(tmp_path)) as seen:
        for _ in range(3):
            _fail(stack=[SourceLine("model.py", 3, "f")], attachments={"graph.py": "x = 1"})
    assert len(seen) == 1
    assert "model.py:3" in str(seen[0].message)
    report = next(Path(tmp_path).iterdir()).read_text()
    for part in ("ZeroDivisionError", "model.py:3", "graph.py", "x = 1", "torch ", "cache_size"):
        assert part in report
    assert events.counters()["fallbacks"] >= 3


def test_strict_mode_raises_the_error_itself():
    with config.patch(strict=True), pytest.raises(ZeroDivisionError):
        _fail()
    with config.patch(suppress_errors=False), pytest.raises(ZeroDivisionError):
        _fail()


@pytest.mark.parametrize("error", [errors.GraphBreakError("x"), errors.NotCallable(1),
                                   errors.BackendError("b")])
def test_user_errors_always_surface(error):
    with pytest.raises(type(error)):
        _fail(error)


def test_missing_compiler_is_told_once_and_is_no_failure(tmp_path):
    before = events.counters().get("fallbacks", 0)
    with config.patch(strict=True), \
            pytest.warns(errors.CompilerMissingWarning, match=r"install g\+\+") as seen:
        _fail(errors.CompilerNotFound(["g++", "clang++"]))
        _fail(errors.CompilerNotFound(["g++", "clang++"]))
    assert len(seen) == 1
    assert not list(Path(tmp_path).iterdir())
    assert events.counters().get("fallbacks", 0) == before


def test_unwritable_report_directory_still_warns(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with config.patch(report_dir=str(blocked / "below")), \
            pytest.warns(errors.FallbackWarning, match="no report could be written"):
        _fail()


def test_the_same_failure_elsewhere_is_told_again():
    with pytest.warns(errors.FallbackWarning) as seen:
        _fail()
        _fail(ValueError("another"))
    assert len(seen) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _fail()
