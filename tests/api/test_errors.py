import pytest

import weft
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


@pytest.mark.parametrize(("mistake", "message"), [
    (lambda: weft.disable(3), "weft.disable needs a function"),
    (lambda: weft.allow_in_graph(3), "weft.allow_in_graph needs a function"),
    (lambda: weft.explain(3), "weft.explain needs a function"),
    (lambda: weft.compile(len, disable="no"), "disable must be True or False"),
    (lambda: weft.mark_dynamic([1], 0), "mark_dynamic takes a tensor, got list"),
    (lambda: weft.mark_static("x"), "mark_static takes a tensor, got str"),
    (lambda: weft.register_backend(3, len), "a backend's name is a text, got 3"),
])
def test_a_mistake_names_the_function_and_what_it_got(mistake, message):
    with pytest.raises(errors.UserError, match=message):
        mistake()
