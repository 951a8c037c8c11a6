"""A cache elsewhere: read on a miss, written behind; what fails there costs time only."""

from __future__ import annotations

import hashlib
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft import folders
from weft.config import config
from weft.diagnostics import events
from weft.runtime import remote_cache
from weft.runtime.disk_cache import DiskCache
from weft.runtime.sealing import sealed, signed

pytest.importorskip("fsspec")


def key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


@pytest.fixture(autouse=True)
def told_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_has_told", False)
    monkeypatch.setattr(folders, "_problems", [])
    monkeypatch.delenv("WEFT_CACHE_KEY", raising=False)


@pytest.fixture(params=["file", "memory"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield f"file://{tmp_path}/shared" if request.param == "file" else f"memory://{tmp_path}"
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem.store.clear()


class Machine:
    """A cache folder of its own, with the cache elsewhere."""

    def __init__(self, folder: Path, address: str) -> None:
        self.settings = {"cache_dir": str(folder), "cache_remote": address}

    def put(self, names: list[str], content: bytes) -> None:
        with config.patch(self.settings):
            DiskCache("cpp").put_all(map(key, names), content)
            assert remote_cache.flush()

    def get(self, name: str) -> tuple[bytes | None, int]:
        """The content, and how many warnings there were."""
        with config.patch(self.settings), warnings.catch_warnings(record=True) as issued:
            warnings.simplefilter("always")
            content = DiskCache("cpp").get(key(name))
            folders.tell_problems()
        return content, len(issued)


@pytest.fixture
def first(tmp_path: Path, address: str) -> Machine:
    return Machine(tmp_path / "first", address)


@pytest.fixture
def second(tmp_path: Path, address: str) -> Machine:
    return Machine(tmp_path / "second", address)


def replace(machine: Machine, name: str, frame: bytes) -> None:
    """Write bytes of one's own to the cache elsewhere."""
    with config.patch(machine.settings):
        remote = remote_cache.remote("cpp")
        assert remote is not None
        remote._put("cpp", key(name), frame)


def test_what_one_machine_puts_the_other_gets_and_keeps(
        first: Machine, second: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    first.put(["a", "b"], b"content")
    assert second.get("b") == (b"content", 0)
    assert second.get("missing") == (None, 0)
    monkeypatch.setattr(remote_cache.Remote, "fetch", lambda *_: None)
    assert second.get("a") == second.get("b") == (b"content", 0)


def test_measurements_of_a_machine_stay_there(first: Machine) -> None:
    with config.patch(first.settings):
        DiskCache("machine").put(key("speed"), b"1.0")
        assert remote_cache.remote("machine") is None


@pytest.mark.parametrize("frame", [
    b"", b"weft", b"x" * 500, signed("cpp", key("a"), sealed(b"other", [key("b")])),
    signed("cpp", key("a"), sealed(b"content", [key("a")]))[:-1],
], ids=["empty", "short", "foreign", "swapped", "cut"])
def test_damaged_files_elsewhere_are_not_used_and_written_again(
        first: Machine, second: Machine, frame: bytes) -> None:
    replace(second, "a", frame)
    assert second.get("a") == (None, 0)
    first.put(["a"], b"content")
    assert second.get("a") == (b"content", 0)


def test_only_files_that_are_signed_with_the_own_secret_are_used(
        first: Machine, second: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    first.put(["unsigned"], b"content")
    monkeypatch.setenv("WEFT_CACHE_KEY", "theirs")
    first.put(["theirs"], b"content")
    monkeypatch.setenv("WEFT_CACHE_KEY", "ours")
    first.put(["ours"], b"content")
    assert [second.get(name) for name in ("unsigned", "theirs", "ours")] == [
        (None, 1), (None, 0), (b"content", 0)]
    monkeypatch.delenv("WEFT_CACHE_KEY")
    assert second.get("theirs") == (b"content", 0)


def test_a_signature_holds_for_one_key_and_kind(
        second: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE_KEY", "ours")
    data = sealed(b"content", [key("a"), key("b")])
    replace(second, "b", signed("cpp", key("a"), data))
    assert second.get("b") == (None, 1)
    replace(second, "b", signed("entries", key("b"), data))
    assert second.get("b") == (None, 0)
    replace(second, "b", signed("cpp", key("b"), data))
    assert second.get("b") == (b"content", 0)


@pytest.mark.parametrize("nowhere", [
    "nosuchprotocol://x", "file:///proc/nowhere/x", "s3://", "http://localhost:1/x", "\0", "::",
])
def test_an_address_that_does_not_work_costs_one_warning(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowhere: str) -> None:
    monkeypatch.chdir(tmp_path)  # fsspec takes "::" for a folder in this one
    machine = Machine(tmp_path / "only", nowhere)
    warned = 0
    for name in ("a", "b"):
        with config.patch(machine.settings):
            DiskCache("cpp").put(key(name), b"content")
        assert remote_cache.flush()
        content, issued = machine.get(name)
        assert content == b"content"
        warned += issued + machine.get(f"{name}, missing")[1]
    assert warned <= 1


def test_an_address_that_hangs_is_not_waited_for(
        first: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(remote_cache, "LONGEST", 0.1)
    monkeypatch.setattr(remote_cache.Remote, "_read", lambda *_: release.wait(60) and None)
    monkeypatch.setattr(remote_cache.Remote, "_put", lambda *_: release.wait(60) and None)
    try:
        assert first.get("a") == (None, 1)
        before = events.counters()["remote_cache_failures"]
        assert first.get("b") == (None, 0)
        with config.patch(first.settings):
            DiskCache("cpp").put(key("a"), b"content")
        assert first.get("a") == (b"content", 0)
        assert events.counters()["remote_cache_failures"] == before
    finally:
        release.set()


def test_too_much_that_waits_to_be_written_is_left_out(
        first: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(remote_cache, "_MOST_WAITING", 2)
    monkeypatch.setattr(remote_cache.Remote, "_put", lambda *_: release.wait(60) and None)
    with config.patch({**first.settings, "cache_remote": "memory://of-this-test"}):
        for number in range(9):
            DiskCache("cpp").put(key(str(number)), b"content")
        release.set()
        assert remote_cache.flush()


def test_huge_files_elsewhere_are_not_read(
        first: Machine, second: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    first.put(["a"], b"content" * 1000)
    monkeypatch.setattr(remote_cache, "LARGEST", 1000)
    assert second.get("a") == (None, 0)


def test_an_address_is_tried_again_after_a_while(
        first: Machine, second: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    first.put(["a"], b"content")
    read = remote_cache.Remote._read
    monkeypatch.setattr(remote_cache, "PAUSE", 0.05)
    monkeypatch.setattr(remote_cache.Remote, "_read", lambda *_: 1 / 0)
    assert second.get("a") == (None, 1)
    monkeypatch.setattr(remote_cache.Remote, "_read", read)
    time.sleep(0.1)
    assert second.get("a") == (b"content", 0)


def test_an_address_that_can_only_be_read_is_read(
        first: Machine, second: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    first.put(["a"], b"content")

    def refuse(*_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(remote_cache.Remote, "_put", refuse)
    second.put(["b"], b"other")
    assert second.get("a") == (b"content", 1)
    assert second.get("b") == (b"other", 0)


def test_passwords_in_addresses_are_not_shown(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(folders, "_problems", notes)
    remote = remote_cache.Remote("ftp://user:secret@nowhere/x")
    remote._fail(remote._reading, OSError("gone"))
    assert "ftp://…@nowhere/x" in notes[0] and "secret" not in notes[0]
