"""The disk cache: corruption, size limit, foreign files, many processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.config import config
from weft.runtime import disk_cache
from weft.runtime.disk_cache import DiskCache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> object:
    with config.patch(cache_dir=str(tmp_path)):
        yield


def key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def test_what_was_put_is_found() -> None:
    cache = DiskCache("cpp")
    assert cache.get(key("a")) is None
    cache.put(key("a"), b"content")
    assert cache.get(key("a")) == b"content"
    assert DiskCache("triton").get(key("a")) is None


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 200])
def test_a_damaged_file_counts_as_missing_and_is_removed(damage: bytes) -> None:
    cache = DiskCache("cpp")
    cache.put(key("a"), b"content")
    file = cache.path(key("a"))
    file.write_bytes(damage)
    assert cache.get(key("a")) is None
    assert not file.exists()


def test_one_flipped_bit_is_noticed() -> None:
    cache = DiskCache("cpp")
    cache.put(key("a"), b"content")
    file = cache.path(key("a"))
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)
    assert cache.get(key("a")) is None


def test_least_recently_used_files_go_first() -> None:
    cache = DiskCache("cpp")
    for i in range(8):
        cache.put(key(str(i)), os.urandom(300 << 10))
        when = time.time() - 1000 + i
        os.utime(cache.path(key(str(i))), (when, when))
    with config.patch(cache_size_mb=2):
        disk_cache.trim()
    assert [cache.get(key(str(i))) is not None for i in range(8)] == [False] * 3 + [True] * 5


def test_clear_leaves_foreign_files_alone(tmp_path: Path) -> None:
    DiskCache("cpp").put(key("a"), b"content")
    foreign = tmp_path / "mine" / "ab" / "notes.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("keep")
    assert disk_cache.clear() == 1
    assert foreign.read_text() == "keep"
    assert disk_cache.files() == []


def test_without_disk_cache_nothing_is_written_to_it(tmp_path: Path) -> None:
    with config.patch(disk_cache=False):
        DiskCache("cpp").put(key("a"), b"content")
        assert DiskCache("cpp").get(key("a")) == b"content"
    assert list(tmp_path.iterdir()) == []


PROCESS = """
import sys
from weft.runtime.compile_pool import submit
source = 'extern "C" __attribute__((visibility("default"))) int f() { return 7; }\\n'
print(submit([source])[0].wait().library().f())
"""


def test_processes_compiling_the_same_kernel_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", PROCESS], env=environment, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [p.communicate()[0] for p in started] == [b"7\n"] * 3
    assert len(disk_cache.files()) == 1
