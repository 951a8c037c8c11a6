import threading

import pytest

from weft.diagnostics import events, statistics


@pytest.fixture(autouse=True)
def _clean():
    events.reset()
    yield
    events.reset()


def test_counts_from_many_threads_add_up():
    threads = [threading.Thread(target=lambda: [events.count("n") for _ in range(1000)])
               for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert events.counters()["n"] == 8000


def test_inner_stage_is_not_counted_twice():
    with (events.collect() as seen, events.stage("outer"), events.stage("inner"),
          events.stage("outer")):
        pass
    own = events.stage_self_seconds()
    assert set(own) == {"outer", "inner"}
    assert sum(own.values()) == pytest.approx(seen[-1].seconds)


def test_stage_ends_when_its_block_raises():
    with pytest.raises(KeyError), events.stage("broken"):
        raise KeyError
    with events.collect() as seen, events.stage("after"):
        pass
    assert seen[-1].seconds == seen[-1].self_seconds  # it is inside of nothing
    assert "broken" in events.stage_self_seconds()


def test_collect_sees_only_its_block():
    events.record("graph", code="before")
    with events.collect() as seen, events.stage("capture"):
        events.record("graph", code="inside")
    events.record("graph", code="after")
    assert [e.kind for e in seen] == ["stage_start", "graph", "stage_end"]
    assert seen[1].code == "inside"
    with pytest.raises(AttributeError):
        _ = seen[1].nothing


def test_history_keeps_plain_fields_only():
    big = object()
    events.record("graph", gm=big, code="f")
    (event,) = events.history("graph")
    assert event.fields == {"code": "f"}


def test_statistics_always_have_the_documented_keys():
    with events.stage("capture"):
        events.count("graphs")
    got = statistics.snapshot(cache_entries=3)
    assert {"graphs", "graph_breaks", "recompiles", "cache_entries", "kernels", "extern_calls",
            "compile_seconds"} <= set(got)
    assert got["graphs"] == 1
    assert got["cache_entries"] == 3
    assert got["compile_seconds"]["total"] == pytest.approx(got["compile_seconds"]["capture"])
