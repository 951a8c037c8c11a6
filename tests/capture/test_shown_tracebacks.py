"""What a user sees of an error: the program's lines, not weft's, and not too many.

Each kind of error is raised at each place, with and without `fullgraph`, at the first call and at
the second; the traceback must be eager's, but for what `fullgraph` reports itself.
"""

import itertools
import traceback

import pytest
import torch
from torch import nn

import weft
from weft.config import config
from weft.errors import BackendError, GraphBreakError, RecompileError, is_ours

pytestmark = pytest.mark.usefixtures("fresh")


def python_error(x):
    raise ValueError("no such thing")


def shape_error(x):
    return x @ torch.ones(3, 7)


def index_error(x):
    return x[torch.tensor([99])]


def key_error(x):
    return {"a": x}["b"]


def attribute_error(x):
    return x.no_such_method()


def type_error(x):
    return x + "a"


def graph_break(x):
    print("between")
    return x


KINDS = [python_error, shape_error, index_error, key_error, attribute_error, type_error,
         graph_break]


def in_root(kind):
    return kind


def in_callee(kind):
    def outer(x):
        y = x + 1
        return kind(y) * 2

    return outer


def in_comprehension(kind):
    def outer(x):
        return [kind(x + i) for i in range(2)]

    return outer


def after_break(kind):
    def outer(x):
        print("first")
        return kind(x * 2)

    return outer


def in_handler(kind):
    def outer(x):
        try:
            return {}[x.dim()]
        except KeyError:
            return kind(x)

    return outer


def deep(kind):
    def recurse(x, n):
        return kind(x) if n == 0 else recurse(x + 1, n - 1)

    return lambda x: recurse(x, 6)


PLACES = [in_root, in_callee, in_comprehension, after_break, in_handler, deep]


def shown(call, *args):
    """Type and lines of the error that a call ends with, and its printed form."""
    try:
        call(*args)
    except Exception as error:
        entries = traceback.extract_tb(error.__traceback__)[1:]
        text = "".join(traceback.format_exception(error))
        return type(error), [(e.filename, e.lineno, e.name) for e in entries], text
    return None, [], ""


@pytest.mark.parametrize(("kind", "place"), list(itertools.product(KINDS, PLACES)),
                         ids=lambda part: part.__name__)
def test_errors_show_eager_s_lines(kind, place, capsys):
    program, x = place(kind), torch.randn(4, 4)
    eager = shown(program, x)
    for fullgraph in (False, True):
        compiled = weft.compile(program, fullgraph=fullgraph, backend="eager")
        for _ in range(2):
            found = shown(compiled, x)
            if found[0] is GraphBreakError:
                assert fullgraph
                assert found[1] == []
                assert len(found[2].splitlines()) <= 12, found[2]
                assert f"in {kind.__name__}" in found[2] or place is after_break, found[2]
            else:
                assert found[:2] == eager[:2]
            assert not any(is_ours(line[0]) for line in found[1])


def test_weft_s_own_frames_are_shown_if_asked_for():
    compiled = weft.compile(graph_break, fullgraph=True)
    with config.patch(full_traceback=True):
        _, lines, text = shown(compiled, torch.ones(2))
    assert any(is_ours(line[0]) for line in lines)
    assert "on_miss" in text


def test_a_backend_s_error_shows_the_backend_s_lines():
    def backend(gm, inputs):
        raise RuntimeError("not today")

    error, lines, text = shown(weft.compile(type_error, backend=backend), torch.ones(2))
    assert error is TypeError  # raised before there is a graph
    error, lines, text = shown(weft.compile(lambda x: x + 1, backend=backend), torch.ones(2))
    assert error is BackendError and lines == []
    assert "in backend" in text and "src/weft" not in text


def test_a_stance_s_error_shows_the_program_s_lines():
    with weft.set_stance("fail_on_recompile"):
        error, lines, text = shown(weft.compile(lambda x: x + 1), torch.ones(2))
    assert error is RecompileError and lines == [] and "src/weft" not in text


def test_an_internal_failure_keeps_its_frames(monkeypatch):
    def fails(*args):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("weft.capture.compiler.needs_frame", fails)
    error, lines, _ = shown(weft.compile(lambda x: x + 1), torch.ones(2))
    assert error is ZeroDivisionError
    assert any(is_ours(line[0]) for line in lines)


def test_breaks_in_modules_name_the_program_s_lines():
    class Block(nn.Module):
        def forward(self, x):
            return graph_break(x)

    model = nn.Sequential(*[nn.Sequential(nn.Sequential(Block())) for _ in range(2)])
    error, _, text = shown(weft.compile(model, fullgraph=True), torch.ones(2))
    assert error is GraphBreakError
    assert "in graph_break" in text and "in Block.forward" in text or "forward" in text
    assert len(text.splitlines()) <= 16, text
