"""Entries on disk that are damaged, foreign, or cannot be written: the right result, no error."""

import subprocess
import sys
import textwrap

import pytest

from weft.capture.stored.lookup import packed, unpacked
from weft.store import DoesNotFit, NotStorable, Reader, Writer
from weft.store.code_hash import code_hash
from weft.store.identity import identity

PROGRAM = textwrap.dedent("""
    import warnings, json, sys
    import torch
    import weft
    from weft.diagnostics import events

    def helper(x):
        return x * 2

    def f(x):
        return helper(x) + 1

    x = torch.arange(4.0)
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        result = weft.compile(f, backend="aot_eager")(x)
    assert torch.equal(result, f(x))
    print(json.dumps([len(issued), events.counters().get("entries_loaded", 0),
                      events.counters().get("entries_stored", 0)]))
""")


@pytest.fixture
def run(tmp_path, monkeypatch):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    cache = tmp_path / "cache"
    monkeypatch.setenv("WEFT_CACHE_DIR", str(cache))
    monkeypatch.setenv("WEFT_STORE_ENTRIES", "1")

    def once():
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
        warnings, loaded, stored = eval(done.stdout.strip().splitlines()[-1])
        return warnings, loaded, stored

    return once, cache


def _entries(cache):
    return [file for file in cache.glob("entries/??/*") if len(file.name) == 64]


def test_damaged_and_swapped_entries_are_compiled_again(run):
    once, cache = run
    assert once() == (0, 0, 1)
    (file,) = _entries(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert once() == (0, 0, 1)
    (file,) = _entries(cache)
    assert once() == (0, 1, 0)
    file.write_bytes(whole[:40] + b"x" + whole[41:])
    assert once()[:2] == (0, 0)


def test_what_an_entry_is_not_made_of():
    for content in (b"", b"no entry", packed({"nodes": []})[:-3]):
        with pytest.raises(ValueError):
            unpacked(content)


def _round(obj):
    writer = Writer()
    data = writer.value(obj)
    return Reader(writer.programs).value(unpacked(packed(data)))


@pytest.mark.parametrize("obj", [
    None, True, 3, -(1 << 70), 0.1, -0.0, float("inf"), 1 + 2j, "a\ud800", b"\x00", (1, (2.0,)),
    [1, [2]], {"a": (1,), 2: None}, frozenset({1, 2}), slice(1, None), range(3), ...,
], ids=repr)
def test_constants_come_back_with_their_types(obj):
    again = _round(obj)
    assert repr(again) == repr(obj) and type(again) is type(obj)


def test_one_object_stays_one():
    inner = [1]
    first, second = _round([inner, inner])
    assert first is second


def test_objects_of_the_program_are_not_stored():
    class Local:
        def method(self):
            return id(self)

    with pytest.raises(NotStorable):
        Writer().value(object())
    writer = Writer()
    reader_of = lambda: Reader(writer.programs)
    data = writer.refer(Local)
    assert reader_of().bind(data, Local) is Local
    with pytest.raises(DoesNotFit):
        reader_of().bind(data, dict)


def test_places_that_held_two_objects_cannot_hold_one():
    first, second = (lambda x: x, lambda x: x)
    same_code = [type(first)(first.__code__, {}) for _ in range(2)]
    writer = Writer()
    left, right = map(writer.refer, same_code)
    reader = Reader(writer.programs)
    reader.bind(left, same_code[0])
    with pytest.raises(DoesNotFit):
        reader.bind(right, same_code[0])


def _function(text):
    space = {"__name__": "program"}
    exec(compile(text, "program.py", "exec"), space)
    return space["f"]


@pytest.mark.parametrize("other", [
    "def f(x, n=1): return x + 2", "def f(x, n=2): return x + 1", "def f(x, n=True): return x + 1",
    "def f(x, n=1.0): return x + 1", "def f(y, n=1): return y + 1",
    "def f(x, *, n=1): return x + 1",
])
def test_a_function_with_other_code_or_defaults_is_another_one(other):
    mine, again = _function("def f(x, n=1): return x + 1"), _function("def f(x, n=1): return x + 1")
    assert identity(mine) == identity(again) != identity(_function(other))
    assert code_hash(mine.__code__) == code_hash(again.__code__)
