"""Archives of the cache: what was saved is loaded, and nothing else."""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from pathlib import Path

import pytest

from weft.config import config
from weft.runtime import cache_archive, disk_cache
from weft.runtime.cache_archive import BadArchive
from weft.runtime.disk_cache import DiskCache
from weft.runtime.sealing import reference, sealed, signed


def key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


@pytest.fixture(autouse=True)
def no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_CACHE_KEY", raising=False)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    with config.patch(cache_dir=str(tmp_path / "first")):
        DiskCache("cpp").put_all([key("a"), key("b")], b"object")
        DiskCache("entries").put(key("c"), b"entry")
        DiskCache("machine").put(key("speed"), b"1.0")
        assert cache_archive.save(tmp_path / "warm.zip", disk_cache.files()) == 3
    return tmp_path / "warm.zip"


def load(archive: Path) -> list[bytes | None]:
    """Load an archive into an empty cache: what it has then."""
    with config.patch(cache_dir=f"{archive}-{os.urandom(4).hex()}"):
        try:
            cache_archive.load(archive)
        finally:
            contents = [DiskCache("cpp").appeared(key("a")), DiskCache("cpp").appeared(key("b")),
                        DiskCache("entries").appeared(key("c")),
                        DiskCache("machine").appeared(key("speed"))]
            if any(contents):
                assert len(disk_cache.files()) == 3
            else:
                assert disk_cache.files() == []
    return contents


WHOLE = [b"object", b"object", b"entry", None]


def test_what_was_saved_is_loaded(archive: Path) -> None:
    assert load(archive) == WHOLE
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert [file.name for file in archive.parent.iterdir() if file.name.startswith(".")] == []


def good(name: str = "a") -> bytes:
    return signed("cpp", key(name), sealed(b"object", [key(name)]))


def member(kind: str = "cpp", name: str = "a") -> str:
    return f"{kind}/{key(name)[:2]}/{key(name)}"


def linked() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(member())
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


HOSTILE = {
    "outside": ("../../../.bashrc", good()),
    "absolute": ("/etc/passwd", good()),
    "inside another": (f"cpp/../entries/{key('a')}", good()),
    "foreign name": ("README", b"hello"),
    "newline": (member() + "\n", good()),
    "other folder": (f"cpp/00/{key('a')}", good()),
    "kind": (member("machine"), good()),
    "folder": (f"{member()}/", b""),
    "link": (linked(), b"/etc/passwd"),
    "checksum": (member(), good()[:-1] + b"x"),
    "another key": (member(name="b"), good("a")),
    "another kind": (member("entries"), signed("entries", key("a"), b"no entry")),
    "reference": (member(), reference("cpp", key("a"), key("b"))),
    "no keys": (member(), signed("cpp", key("a"), sealed(b"object", []))),
    "older": (member(), b"weft\0\0\0\0" + good()[8:]),
    "newer": (member(), b"weft\0\0\0\2" + good()[8:]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_of_a_hostile_archive_is_loaded(tmp_path: Path, name: str) -> None:
    where, content = HOSTILE[name]
    file = tmp_path / "hostile.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr(member("entries", "c"), signed("entries", key("c"), sealed(
            b"entry", [key("c")])))
        target.writestr(where, content)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadArchive):
        load(file)
    assert [path for path in tmp_path.rglob("*") if path not in before and path.is_file()] == []


def test_archives_that_claim_or_hold_too_much_are_not_loaded(
        archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as target:
        target.writestr(member("triton"), bytes(3 << 20))  # 3 kB in the file
    with config.patch(cache_size_mb=2), pytest.raises(BadArchive, match="WEFT_CACHE_SIZE_MB"):
        load(archive)
    monkeypatch.setattr(cache_archive, "LARGEST", 1 << 20)
    with pytest.raises(BadArchive):
        load(archive)


def test_every_changed_byte_is_noticed_or_without_effect(archive: Path) -> None:
    whole = archive.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1:]):
            archive.write_bytes(data)
            try:
                contents = load(archive)
            except BadArchive:
                continue
            assert contents == WHOLE


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "missing", "."):
        with pytest.raises(BadArchive):
            cache_archive.load(tmp_path / name)


@pytest.mark.parametrize("saved, loaded, is_used", [
    ("ours", "ours", True), ("theirs", "ours", False), ("", "ours", False), ("ours", "", True),
])
def test_archives_are_signed(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                             saved: str, loaded: str, is_used: bool) -> None:
    monkeypatch.setenv("WEFT_CACHE_KEY", saved)
    with config.patch(cache_dir=str(tmp_path / "first")):
        cache_archive.save(archive, disk_cache.files())
    monkeypatch.setenv("WEFT_CACHE_KEY", loaded)
    if is_used:
        assert load(archive) == WHOLE
    else:
        with pytest.raises(BadArchive, match="WEFT_CACHE_KEY"):
            load(archive)
