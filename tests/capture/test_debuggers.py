"""Under a debugger, a line tracer or coverage, frames are the program's own, with its variables."""

import pdb
import sys

import pytest
import torch

import weft
from weft.errors import GraphBreakError

pytestmark = pytest.mark.usefixtures("fresh")


def stops(y):
    z = y + 1
    breakpoint()
    return z


def sets_trace(y):
    z = y + 1
    pdb.set_trace()
    return z


def guarded(y):
    z = y + 1
    if z.dim() > 5:
        breakpoint()
    return z


def calls(x, stop):
    a = x * 2
    b = stop(a)
    return b * 3


@pytest.fixture
def frames(monkeypatch):
    """Names and variables of the frames in which the program stops, innermost first."""
    found = []

    def stop(*args, **kwargs):
        frame = sys._getframe(1)
        while frame.f_code.co_filename == __file__ and not frame.f_code.co_name.startswith("test_"):
            found.append((frame.f_code.co_name, sorted(frame.f_locals)))
            frame = frame.f_back

    monkeypatch.setattr(sys, "breakpointhook", stop)
    monkeypatch.setattr(pdb, "set_trace", stop)
    return found


@pytest.mark.parametrize("stop", [stops, sets_trace])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_breakpoint_shows_the_frames_with_their_variables(frames, stop, backend):
    compiled, x = weft.compile(calls, backend=backend), torch.ones(2)
    for n in (1, 2):
        torch.testing.assert_close(compiled(x, stop), torch.full((2,), 9.0))
        assert frames[-2:] == [(stop.__name__, ["y", "z"]), ("calls", ["a", "stop", "x"])]
        assert len(frames) == 2 * n


def test_a_breakpoint_of_the_compiled_function_itself(frames):
    compiled = weft.compile(stops)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert frames == [("stops", ["y", "z"])]


@pytest.mark.parametrize("program", [stops, lambda x: calls(x, stops)])
def test_a_breakpoint_under_fullgraph_is_an_error_that_says_what_to_do(frames, program):
    with pytest.raises(GraphBreakError, match="breakpoint"):
        weft.compile(program, fullgraph=True)(torch.ones(2))


def test_a_breakpoint_that_is_not_reached_changes_nothing(frames):
    compiled = weft.compile(calls)
    torch.testing.assert_close(compiled(torch.ones(2), guarded), torch.full((2,), 9.0))
    assert frames == []


def plain(x):
    a = x * 2
    b = a.relu()
    return inner(b) + 1


def inner(y):
    z = y - 1
    return z


LINES = [("plain", 1, ["x"]), ("plain", 2, ["a", "x"]), ("plain", 3, ["a", "b", "x"]),
         ("inner", 1, ["y"]), ("inner", 2, ["y", "z"])]


def test_a_line_tracer_sees_the_lines_and_variables_of_compiled_functions():
    compiled, x = weft.compile(plain), torch.ones(2)
    expected = compiled(x)
    seen = []

    def trace(frame, event, argument):
        code = frame.f_code
        if code.co_filename == __file__ and event == "line":
            line = frame.f_lineno - code.co_firstlineno
            seen.append((code.co_name, line, sorted(frame.f_locals)))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = compiled(x)
    finally:
        sys.settrace(before)
    assert [line for line in seen if line[0] in ("plain", "inner")] == LINES
    torch.testing.assert_close(result, expected)
    graphs = weft.stats()["graphs"]
    compiled(x)
    assert weft.stats()["graphs"] == graphs == 1  # what was compiled is used again


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
@pytest.mark.parametrize("tool", [0, 1], ids=["debugger", "coverage"])
def test_monitored_lines_of_compiled_functions_are_seen(tool):
    compiled, x = weft.compile(plain), torch.ones(2)
    compiled(x)
    monitoring, seen = sys.monitoring, []
    if monitoring.get_tool(tool) is not None:
        pytest.skip("the tests themselves are monitored")
    monitoring.use_tool_id(tool, "test")
    try:
        monitoring.register_callback(tool, monitoring.events.LINE,
                                     lambda code, line: seen.append((code.co_name, line)))
        monitoring.set_local_events(tool, inner.__code__, monitoring.events.LINE)
        compiled(x)
    finally:
        monitoring.set_local_events(tool, inner.__code__, 0)
        monitoring.free_tool_id(tool)
    first = inner.__code__.co_firstlineno
    assert seen == [("inner", first + 1), ("inner", first + 2)]


def test_a_function_profiler_leaves_compiled_functions_compiled():
    compiled, x = weft.compile(plain), torch.ones(2)
    compiled(x)
    seen = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: seen.append(frame.f_code.co_name))
    try:
        compiled(x)
    finally:
        sys.setprofile(before)
    assert "inner" not in seen
