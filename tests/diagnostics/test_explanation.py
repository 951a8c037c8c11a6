import io

import torch
from rich.console import Console

from weft.diagnostics import events
from weft.diagnostics.explanation import Explanation
from weft.diagnostics.rendering import render
from weft.errors import SourceLine

LINE = SourceLine("model.py", 12, "forward")


def _graph():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.relu, (x,)))
    return torch.fx.GraphModule({}, graph)


def _explained():
    with events.collect() as seen:
        with events.stage("capture"):
            events.record("graph", code="forward", gm=_graph())
            events.record("guards", code="forward", guards=["x.dtype is float32", "y == 3"])
            events.record("graph_break", id="WB1", reason="print", stack=(LINE,), hint="log")
        events.record("kernel", name="relu_0", target="cpp", stack=(LINE, LINE))
        events.record("kernel", name="relu_0", target="cpp", stack=())
        events.record("extern_call", op="aten.mm")
        events.record("uncompiled", reason="a sparse input")
        events.record("recompile", code="forward", reason="x.dtype changed")
    return Explanation.from_events(seen, name="Model")


def test_data():
    e = _explained()
    assert [g.operators for g in e.graphs] == [1]
    assert "relu" in e.graphs[0].text
    assert e.graph_breaks[0].stack == (LINE,)
    assert e.kernels[0].lines == ("model.py:12",)
    assert [str(r) for r in e.recompiles] == ["forward: x.dtype changed"]
    assert e.total_seconds > 0


def test_text():
    text = str(_explained())
    for part in ("Captured 1 graph of 1 operator with 2 guards.", "1 graph break.",
                 "Generated 2 kernels: relu_0 x 2; 1 operator left to ATen: aten.mm.",
                 "model.py:12 in forward", "print [WB1]", "y == 3", "1 recompile.",
                 "1 graph left uncompiled, to run operator by operator: a sparse input."):
        assert part in text
    assert "\x1b" not in text


def test_drawing_is_plain_in_a_pipe_and_coloured_on_a_terminal():
    plain, colour = io.StringIO(), io.StringIO()
    render(_explained(), Console(file=plain, width=100))
    render(_explained(), Console(file=colour, width=100, force_terminal=True,
                                 color_system="standard"))
    assert "\x1b" not in plain.getvalue()
    assert "\x1b" in colour.getvalue()
    assert "Kernels" in plain.getvalue()


def test_long_tables_are_cut():
    e = Explanation("f", guards=[f"g{i}" for i in range(50)])
    out = io.StringIO()
    render(e, Console(file=out, width=100), most_rows=5)
    assert "… 45 more" in out.getvalue()
    assert "g49" in str(e)
