import pytest

from weft import errors
from weft.errors import SourceLine


def test_message_says_what_where_and_what_to_do():
    stack = [SourceLine("outer.py", 1, "main"), SourceLine("inner.py", 7, "step")]
    error = errors.GraphBreakError("print is called", id="WB001", stack=stack, hint="log later")
    text = str(error)
    assert "print is called" in text
    assert "WB001" in text
    assert text.index("inner.py:7 in step") < text.index("outer.py:1")
    assert "do: log later" in text


def test_user_mistakes_are_also_builtin_errors():
    assert isinstance(errors.NotCallable(3), TypeError)
    assert isinstance(errors.UnknownBackend("x", ["eager"]), ValueError)
    assert isinstance(errors.BadValue("no"), TypeError)


@pytest.mark.parametrize("kind", [errors.UnknownBackend, errors.UnknownMode, errors.UnknownOption,
                                  errors.UnknownArtifact])
def test_unknown_names_list_the_valid_ones(kind):
    text = str(kind("inducter", ["inductor", "eager"]))
    assert "'eager', 'inductor'" in text
    assert "did you mean 'inductor'?" in text
    assert "did you mean" not in str(kind("zzz", ["inductor", "eager"]))
