from weft.diagnostics.timing import Timing, interleaved, ratio


def test_every_callable_is_run_equally_often_in_turn():
    order = []
    times = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")},
                        rounds=5, warmup=1, sample_seconds=0.0)
    assert {name: len(t.samples) for name, t in times.items()} == {"a": 5, "b": 5}
    assert order[-4:] == ["a", "b", "a", "b"]


def test_budget_ends_the_rounds_early():
    times = interleaved({"a": lambda: None}, rounds=10_000, sample_seconds=0.0005,
                        budget_seconds=0.01)
    assert 3 <= len(times["a"].samples) < 10_000


def test_ratio_is_paired():
    times = {"x": Timing((2.0, 4.0, 8.0)), "y": Timing((1.0, 2.0, 4.0))}
    assert ratio(times, "x", "y") == 2.0
    assert times["x"].median == 4.0
