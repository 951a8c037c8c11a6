"""Entries that are none, or of another form, under their very key and with a right checksum: the
program is compiled again, without a warning. `tools/stress_cache.py` disturbs files and folders."""

from __future__ import annotations

import os
import random
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.capture.stored.lookup import disk
from weft.diagnostics import events
from weft.runtime.sealing import sealed
from weft.store.packing import packed, unpacked

FACTOR = 3.0


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR


def _program(x: torch.Tensor) -> torch.Tensor:
    return _scaled(x) + x.shape[0]


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[None]:
    with weft.config.patch(cache_dir=str(tmp_path / "cache"), store_entries=True):
        yield
    weft.reset()


def run(rows: int = 2) -> tuple[int, int]:
    """How many entries were loaded and stored, as a new process would see it."""
    weft.reset()
    x = torch.ones(rows, 3)
    with torch.no_grad(), warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        assert torch.equal(weft.compile(_program, backend="aot_eager")(x), _program(x))
    assert len(issued) <= (not weft.config.strict), [str(one.message) for one in issued]
    counters = events.counters()
    return counters.get("entries_loaded", 0), counters.get("entries_stored", 0)


def entry() -> Path:
    (file,) = (f for f in disk().directory.glob("??/*") if len(f.name) == 64)
    return file


def put(content: bytes) -> None:
    file = entry()
    file.write_bytes(sealed(content, [file.name]))


Bad = Callable[[Any], bytes]

FORMS: dict[str, Bad] = {
    "empty": lambda data: b"",
    "not packed": lambda data: b"{}",
    "cut": lambda data: packed(data)[:-5],
    "more behind": lambda data: packed(data) + b"more",
    "no JSON": lambda data: zlib.compress(b"{"),
    "not UTF-8": lambda data: zlib.compress(b'"\xff"'),
    "nested": lambda data: zlib.compress(b"[" * 200_000 + b"]" * 200_000),
    "a list": lambda data: packed([data]),
    "null": lambda data: packed(None),
    "older": lambda data: packed({"entry": data, "version": 0}),
    "code that is none": lambda data: packed({**data, "text": "def replacement(v:"}),
    "another name": lambda data: packed({**data, "text": "def other(v): return v"}),
    "unknown kinds": lambda data: packed({**data, "graph": [["no such kind", 0, []], True, False]}),
    "no such program": lambda data: packed({**data, "programs": []}),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_entry_is_compiled_again_and_replaced(form: str) -> None:
    assert run() == (0, 1)
    put(FORMS[form](unpacked(disk().appeared(entry().name) or b"")))
    if form == "more behind":  # the rest is not read
        assert run() == (1, 0)
        return
    assert run() == (0, 1)
    assert run() == (1, 0)


def test_a_bad_entry_does_not_hide_further_ones() -> None:
    assert run(2) == (0, 1)
    bad = entry()
    assert run(5) == (0, 1)
    bad.write_bytes(sealed(b"none", [bad.name]))
    assert run(5) == (1, 0)


def test_a_small_file_that_claims_gigabytes_is_not_unpacked(monkeypatch: pytest.MonkeyPatch
                                                           ) -> None:
    monkeypatch.setattr("weft.store.packing._LONGEST", 1 << 20)
    assert run() == (0, 1)
    put(zlib.compress(b" " * (1 << 24)))
    assert run() == (0, 1)


_OTHERS = (None, True, -1, 1 << 60, "", "x", [], [None], {}, ["program", 99], ["again", 99],
           ["torch", "nothing"], ["name", "os", "nothing"])


def _places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = data.items() if type(data) is dict else enumerate(data) if type(data) is list else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


_CHECKED = ("name", "text", "constants", "graph", "programs", "libraries", "places")
"""Parts whose change cannot leave another program that looks right."""


@pytest.mark.parametrize("seed", range(int(os.environ.get("WEFT_TEST_SEEDS", "25"))))
def test_changed_entries_are_replaced_or_do_the_same(seed: int) -> None:
    """A part, or a part of it, becomes something else or is missing. Where that is seen only when
    the entry runs, the call runs eagerly."""
    dice = random.Random(seed)
    assert run() == (0, 1)
    data = unpacked(disk().appeared(entry().name) or b"")
    *path, last = dice.choice([p for p in _places(data) if p[0] in _CHECKED and len(p) < 3])
    parent = data
    for key in path:
        parent = parent[key]
    if type(parent) is dict and dice.random() < 0.5:
        del parent[last]
    else:
        parent[last] = dice.choice([other for other in _OTHERS if other != parent[last]])
    put(packed(data))
    with weft.config.patch(strict=False):
        run()
        run()
