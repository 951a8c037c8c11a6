"""What may be loaded from the cache, and what happens where there can be none.

Planted and cut shared objects ended the process, a swapped file was another kernel, a pipe in a
file's place was waited for, and a folder that could not be made ended in eager runs.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from weft import folders
from weft.config import config
from weft.diagnostics import failures, trace_files
from weft.errors import CacheWarning
from weft.runtime import compile_pool, cpp_build, disk_cache, file_locks, shared_objects
from weft.runtime.disk_cache import DiskCache
from weft.runtime.shared_objects import is_loadable

STRANGER = 4242
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def source(n: int) -> str:
    return (f'extern "C" __attribute__((visibility("default"))) int weft_kernel() '
            f"{{ return {n}; }}\n")


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has compiled and warned of nothing."""
    monkeypatch.setattr(folders, "_has_told", False)
    compile_pool._running.clear()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with config.patch(cache_dir=str(tmp_path / "cache")):
        yield tmp_path / "cache"


def run(n: int) -> int:
    """What the compiled source returns."""
    compiled = compile_pool.submit([source(n)])[0]
    return int(getattr(compiled.library(), compiled.symbol)())


def runs_with_a_warning(n: int) -> list[str]:
    """Compiles and runs twice; what was warned of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert run(n) == n and run(n + 1000) == n + 1000
    assert all(issubclass(w.category, CacheWarning) for w in seen)
    return [str(w.message) for w in seen]


# -- folders --------------------------------------------------------------------------------------


def _as_file(path: Path) -> Path:
    path.write_text("")
    return path


def _open_to_all(path: Path) -> Path:
    path.mkdir()
    path.chmod(0o777)
    return path


def _open_to_the_group(path: Path) -> Path:
    path.mkdir()
    path.chmod(0o770)
    return path


def _of_a_stranger(path: Path) -> Path:
    path.mkdir()
    os.chown(path, STRANGER, -1)
    return path


def _link_of_a_stranger(path: Path) -> Path:
    target = path.with_name("target")
    target.mkdir(0o700)
    path.symlink_to(target)
    os.chown(path, STRANGER, -1, follow_symlinks=False)
    return path


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


UNUSABLE: list[Any] = [
    _as_file, _open_to_all, _open_to_the_group, _pipe,
    pytest.param(_of_a_stranger, marks=as_root), pytest.param(_link_of_a_stranger, marks=as_root),
    lambda path: _as_file(path) / "below", lambda path: path / ("long" * 100),
    lambda path: path / "/".join(["deep"] * 1000), lambda path: path / "null\0",
    lambda path: Path("/dev/null/cache"), lambda path: Path("/proc/nothing/cache"),
    lambda path: Path("~nobody-has-this-name/cache"),
]


@pytest.mark.parametrize("make", UNUSABLE)
def test_a_folder_that_cannot_be_used_is_replaced_with_one_warning(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    place = make(tmp_path / "cache")
    with config.patch(cache_dir=str(place)):
        told = runs_with_a_warning(1)
    assert len(told) == 1 and "WEFT_CACHE_DIR" in told[0]
    assert folders.process_cache().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("home", [None, "", "/proc/nothing", "relative"])
def test_without_a_home(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(_: int) -> Any:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    with config.patch(cache_dir=""):
        assert len(runs_with_a_warning(2)) == (home != "" or os.geteuid() != 0)
        assert failures.report_place()


def test_a_relative_xdg_cache_home_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for relative in ("", "cache", "./cache", "~/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        with config.patch(cache_dir=""):
            assert config.cache_path() == tmp_path / ".cache" / "weft"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with config.patch(cache_dir=""):
        assert config.cache_path() == tmp_path / "xdg" / "weft"


@pytest.mark.parametrize("name", [
    "with space", "a\nb", "'\"`$(true)", "$ORIGIN ${LIB}", "%s {x} \\", "ünï✓", "\udcff", "-x",
])
def test_strange_names_are_names(name: str, tmp_path: Path) -> None:
    with config.patch(cache_dir=str(tmp_path / name)):
        assert runs_with_a_warning(3) == [] or "$" in name
        assert len(disk_cache.files()) == 2
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("mask", [0, 0o777, 0o022])
def test_files_are_ours_alone_whatever_the_umask(mask: int, cache: Path) -> None:
    before = os.umask(mask)
    try:
        assert run(4) == 4
        with config.patch(trace=True), trace_files.traced():
            failures.events.record("perf", text="something")
        failures.write_report(ValueError(), during="a test")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(p.lstat().st_mode) for p in (cache, *cache.rglob("*")) if p.is_dir()}
    assert modes == {0o700}
    assert {stat.S_IMODE(p.stat().st_mode) for p in disk_cache.files()} == {0o600}
    assert len([*cache.glob("trace/*/*")]) == 1


def test_a_folder_of_the_users_choice_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with config.patch(cache_dir=str(tmp_path)):
        assert run(4) == 4
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "cpp").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["cpp", "cpp/locks"])
@pytest.mark.parametrize("hostile", [_as_file, _open_to_all, _pipe, lambda p: p.symlink_to("/etc")])
def test_what_lies_in_the_way_inside_is_replaced(
    name: str, hostile: Callable[[Path], Any], cache: Path
) -> None:
    path = cache / name
    path.parent.mkdir(parents=True, mode=0o700)
    hostile(path)
    assert run(5) == 5
    assert not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o700
    assert len(disk_cache.files()) == 1


def test_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = disk_cache.tempfile.mkstemp

    def mkstemp(**options: Any) -> Any:
        if options["dir"].is_relative_to(cache):
            raise OSError(28, "No space left on device")
        return make(**options)

    monkeypatch.setattr(disk_cache.tempfile, "mkstemp", mkstemp)
    told = runs_with_a_warning(6)
    assert len(told) == 1 and "No space left" in told[0] and "WEFT_CACHE_DIR" in told[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_file_system_from_which_nothing_is_executed_holds_the_cache(tmp_path: Path) -> None:
    """Kernels are loaded from memory."""
    place = tmp_path / "cache"
    place.mkdir(0o700)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "noexec,mode=0700", "tmpfs", str(place)],
                      capture_output=True, check=False).returncode:
        pytest.skip("nothing may be mounted here")
    try:
        with config.patch(cache_dir=str(place)):
            assert runs_with_a_warning(13) == []
            compile_pool._running.clear()
            assert run(13) == 13 and len(disk_cache.files()) == 2
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


# -- files ----------------------------------------------------------------------------------------


def file_of(n: int) -> Path:
    compile_pool._running.clear()
    compiled = compile_pool.submit([source(n)])[0]
    compiled.wait()
    return DiskCache("cpp").path(compiled.key)


def _resealed(file: Path, content: bytes) -> None:
    file.write_bytes(disk_cache.sealed(content, [file.name]))


def _cut_but_sealed(file: Path) -> None:
    content = file.read_bytes()
    _resealed(file, content[:len(content) // 4])


def _header_only(file: Path) -> None:
    _resealed(file, file.read_bytes()[:64])


def _no_object(file: Path) -> None:
    _resealed(file, b"\x7fELF" + os.urandom(5000))


def _swapped(file: Path) -> None:
    shutil.copy(file_of(999), file)


def _another_function(file: Path) -> None:
    content = disk_cache.unsealed(file_of(998).read_bytes(), file_of(998).name)
    assert content is not None
    _resealed(file, content)


def _replaced(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def replace(file: Path) -> None:
        file.unlink()
        make(file)

    return replace


def _socket(file: Path) -> None:
    here = os.getcwd()
    os.chdir(file.parent)  # their names are short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(file.name)
    os.chdir(here)


def _folder_with_files(file: Path) -> None:
    file.mkdir()
    (file / "inside").write_text("")


SPOILED: list[Any] = [
    lambda file: file.write_bytes(b""), lambda file: os.truncate(file, 200),
    lambda file: file.write_bytes(file.read_bytes() + b"x"), _cut_but_sealed, _header_only,
    _no_object, _swapped, _another_function, _replaced(os.mkfifo), _replaced(_socket),
    _replaced(_folder_with_files), _replaced(lambda file: file.symlink_to("/etc/passwd")),
    lambda file: file.chmod(0),
]


@pytest.mark.parametrize("spoil", SPOILED)
def test_a_spoiled_file_is_compiled_again(spoil: Callable[[Path], None], cache: Path) -> None:
    number = 100 + SPOILED.index(spoil)
    file = file_of(number)
    spoil(file)
    compile_pool._running.clear()
    assert run(number) == number
    assert stat.S_ISREG(file.lstat().st_mode)
    compile_pool._running.clear()
    assert file_of(number) == file


@pytest.mark.parametrize("spoil", [
    lambda file: file.chmod(0o666), lambda file: file.chmod(0o620),
    pytest.param(lambda file: os.chown(file, STRANGER, -1), marks=as_root),
])
def test_what_others_could_have_written_is_not_loaded(
    spoil: Callable[[Path], None], cache: Path
) -> None:
    file = file_of(7)
    before = file.stat().st_mtime_ns
    spoil(file)
    compile_pool._running.clear()
    told = runs_with_a_warning(7)
    assert len(told) == 1 and str(file) in told[0]
    assert file.stat().st_mtime_ns != before and not folders.distrust(file.stat())


def _other_bytes(file: Path) -> None:
    file.write_bytes(b"\x7fELF" + bytes(100))


CHANGED: list[Any] = [
    lambda file: file.unlink(), _replaced(os.mkfifo),
    lambda file: shutil.rmtree(file.parent.parent),
    lambda file: os.truncate(file, 100), lambda file: os.truncate(file, 4096), _other_bytes,
    _swapped, lambda file: file.chmod(0),
]


@pytest.mark.parametrize("change", CHANGED)
def test_what_is_loaded_is_what_was_checked(change: Callable[[Path], None], cache: Path) -> None:
    """A file that was replaced between its check and its loading ended the process, or hung it."""
    number = 300 + CHANGED.index(change)
    file_of(number)
    compile_pool._running.clear()
    compiled = compile_pool.submit([source(number)])[0]
    compiled.wait()
    change(DiskCache("cpp").path(compiled.key))
    assert getattr(compiled.library(), compiled.symbol)() == number


MANY_PAGES = "".join(f"""extern "C" __attribute__((visibility("default"), noinline))
int f{n}(int x) {{ for (int i = 0; i < x; i++) x = x * {n} + i % 7; return x; }}
""" for n in range(400))


def test_a_file_that_is_cut_after_it_was_loaded_is_not_missed(cache: Path) -> None:
    compiled = compile_pool.submit([MANY_PAGES])[0]
    library = compiled.wait().library()
    os.truncate(DiskCache("cpp").path(compiled.key), 10)
    assert [getattr(library, f"f{n}")(0) for n in range(400)] == [0] * 400


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


def maps_of(library: Any) -> set[str]:
    """The names under which this process has mapped it."""
    address = ctypes.cast(library.f, ctypes.c_void_p).value
    ranges = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return {fields[-1] for fields in ranges
            if int(fields[0].split("-")[0], 16) <= address < int(fields[0].split("-")[1], 16)}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with config.patch(cache_dir=str(tmp_path_factory.mktemp("cache"))):
        return cpp_build.toolchain().compile(source(0).replace("weft_kernel", "f"))


def test_many_objects_are_loaded_each_as_its_own(content: bytes) -> None:
    """The loader takes a name that it knows, and a file that it knows, for what it has loaded."""
    before = handles()
    copies = [content + bytes(n) for n in range(100)]
    libraries = [shared_objects.load(copy, "ab" * 32) for copy in copies]
    assert len({library._handle for library in libraries}) == 100
    assert [shared_objects.load(copy, "cd") for copy in copies] == libraries
    assert handles() == before
    assert any("weft-abab" in name for name in maps_of(libraries[0]))


def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")


def _refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr(os, "memfd_create", refuse)


def _no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_objects, "_spelling", lambda _: "/nowhere/")


@pytest.mark.parametrize("system", [_no_memory, _refused, _no_proc])
def test_objects_load_where_memory_has_no_names(
    system: Callable[[pytest.MonkeyPatch], None], content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    system(monkeypatch)
    copy = content + system.__name__.encode()
    assert shared_objects.load(copy, "ef" * 32).f() == 0
    assert not [*folders.process_folder().glob("object-*")]


def test_a_process_that_can_write_nothing_removes_no_file(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    file = file_of(401)
    compile_pool._running.clear()
    shared_objects._loaded.clear()
    monkeypatch.setattr(shared_objects, "_places", lambda: [refuse])
    with pytest.raises(OSError, match="No space"):
        run(401)
    assert file.exists()


def test_with_traces_objects_are_files_that_profilers_can_read(cache: Path, content: bytes) -> None:
    with config.patch(trace=True):
        library = shared_objects.load(content + b"traced", "12" * 32)
    (file,) = cache.glob("trace/*/*.so")
    assert library.f() == 0 and file.read_bytes() == content + b"traced"
    assert maps_of(library) == {str(file)}


def test_objects_are_checked_before_they_are_mapped() -> None:
    whole = Path(hashlib.__file__).parent  # any shared object of Python's will do
    library = next((whole / "lib-dynload").glob("_ctypes*.so")).read_bytes()
    assert is_loadable(library)
    for length in (0, 10, 63, 64, 300):
        assert not is_loadable(library[:length])
    for place in (0, 4, 16, 18, 54):
        spoiled = bytearray(library)
        spoiled[place] ^= 0x55
        assert not is_loadable(bytes(spoiled))


# -- locks ----------------------------------------------------------------------------------------


def test_a_lock_that_is_a_link_changes_nothing_elsewhere(cache: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    locks = cache / "cpp" / "locks"
    locks.mkdir(parents=True, mode=0o700)
    for n in range(256):
        (locks / f"{n:02x}").symlink_to(victim)
    assert run(9) == 9
    assert victim.read_text() == "precious"


def test_a_lock_is_not_emptied(cache: Path) -> None:
    disk = DiskCache("cpp")
    with disk.lock("ab"):
        pass
    file = cache / "cpp" / "locks" / "ab"
    file.write_text("a note")
    with disk.lock("ab"):
        pass
    assert file.read_text() == "a note"


@pytest.mark.parametrize("hostile", [os.mkfifo, os.mkdir, _socket])
def test_what_is_no_lock_is_replaced(hostile: Callable[[Path], Any], cache: Path) -> None:
    (cache / "cpp" / "locks").mkdir(parents=True, mode=0o700)
    hostile(cache / "cpp" / "locks" / "ab")
    with DiskCache("cpp").lock("ab"):
        assert (cache / "cpp" / "locks" / "ab").is_file()


def test_a_lock_that_is_never_released_is_waited_for_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_locks, "LONGEST", 0.1)
    monkeypatch.setattr(file_locks, "_given_up", set())
    disk = DiskCache("cpp")
    with disk.lock("00"):
        pass
    held = []
    for n in range(256):
        file = cache / "cpp" / "locks" / f"{n:02x}"
        held.append(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
        fcntl.flock(held[-1], fcntl.LOCK_EX)
    assert run(10) == 10
    assert len(file_locks._given_up) == 1
    for handle in held:
        os.close(handle)


def test_waiting_for_a_lock_ends_when_it_is_cancelled(cache: Path) -> None:
    disk = DiskCache("cpp")
    with disk.lock("ab"), disk.lock("ab", lambda: True) as second:
        assert second._handle is not None


# -- what is left behind --------------------------------------------------------------------------

LEAVES = """
import os, signal
from weft import folders
print(folders.process_folder(), flush=True)
if os.fork() == 0:
    folders.process_folder()
    raise SystemExit
os.wait()
assert folders.process_folder().exists(), "the child removed its parent's folder"
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_folders_of_killed_processes_are_removed_and_others_are_not(tmp_path: Path) -> None:
    import tempfile

    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True,
                          env={**os.environ, "TMPDIR": tempfile.gettempdir()})
    killed = Path(done.stdout.strip())
    assert killed.exists() and done.stderr == ""
    ours = folders.process_folder()
    users = Path(tempfile.mkdtemp(prefix="weft-process-"))  # the user's, whatever its name
    (users / "data").touch()
    old = time.time() - 2 * folders.STALE_SECONDS
    assert killed not in folders.left_behind()
    for folder in (killed, ours, users):
        os.utime(folder, (old, old))
    assert folders.left_behind() == [killed] or killed in folders.left_behind()
    assert ours not in folders.left_behind() and users not in folders.left_behind()
    with config.patch(cache_dir=str(tmp_path)):
        disk_cache.remove_left_behind()
    assert not killed.exists() and ours.exists() and users.exists()
    shutil.rmtree(users)


def test_reports_are_kept_by_number_and_age(cache: Path) -> None:
    for n in range(failures._REPORTS_KEPT + 20):
        assert failures.write_report(ValueError(n), during="a test")
    assert len(failures.reports()) == failures._REPORTS_KEPT
    foreign = failures.report_place() / "notes.txt"
    foreign.write_text("")
    old = time.time() - 100 * 86400
    for file in failures.reports():
        os.utime(file, (old, old))
    failures.write_report(ValueError(), during="a test")
    assert len(failures.reports()) == 1 and foreign.exists()
