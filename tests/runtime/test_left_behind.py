"""What killed processes leave behind is removed; `weft cache clear` clears everything; nothing is
left open at exit.

Temporary files and folders of killed processes stayed for ever, and so did those that a clock put
into the future.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft import folders
from weft.config import config
from weft.diagnostics import failures, trace_files
from weft.runtime import disk_cache
from weft.runtime.disk_cache import DiskCache

KILLED = """
import contextlib, os, shutil, signal, sys, tempfile, time
from pathlib import Path
from weft import folders
from weft.config import config
from weft.diagnostics import trace_files
from weft.runtime import compile_pool, cpp_build, disk_cache, file_locks, shared_objects

def source(n):
    return (f'extern "C" __attribute__((visibility("default"))) int weft_kernel() '
            f"{{ return {n}; }}")

def run(n):
    sources = [source(n), source(n + 1)]
    return [getattr(c.library(), c.symbol)() - i - n
            for i, c in enumerate(compile_pool.submit(sources))] == [0, 0]

POINTS = [(os, "replace"), (os, "link"), (os, "fchmod"), (tempfile, "mkstemp"),
          (tempfile, "mkdtemp"), (cpp_build.subprocess, "Popen"), (os, "chmod"),
          (os, "memfd_create"), (folders.fcntl, "flock"), (shared_objects.ctypes, "CDLL"),
          (os, "unlink"),
          (Path, "mkdir"), (disk_cache, "sealed"), (Path, "touch")]

def killing(function, before):
    def call(*args, **kwargs):
        if before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return call

killed = 0
for n, (place, name) in enumerate(POINTS * 2):
    child = os.fork()
    if child == 0:
        setattr(place, name, killing(getattr(place, name), n < len(POINTS)))
        with contextlib.suppress(BaseException):
            run(10 * n)
        os._exit(0)
    killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

roots = Path(os.environ["TMPDIR"]), config.cache_path()
left = [path for root in roots for path in root.rglob("*")
        if path.name.startswith((".tmp-", "weft-process-"))]
times = [float(t) for t in sys.argv[1:]]
for n, path in enumerate(path for root in roots for path in root.rglob("*")):
    os.utime(path, (times[n % len(times)],) * 2, follow_symlinks=False)
disk_cache.remove_left_behind()
temporary = [path for path in roots[0].iterdir() if path.name.startswith("weft-process-")]
others = [path for path in roots[1].rglob("*") if path.is_file() and path not in disk_cache.files()
          and path.parent.name != "locks" and path.name != disk_cache._STAMP]
right = all(run(10 * n) for n in range(2 * len(POINTS)))
print(killed, len(left), [*map(str, temporary)], [*map(str, others)], right)
"""


def test_whenever_a_process_is_killed_what_it_leaves_is_removed(tmp_path):
    (tmp_path / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, "1", str(time.time() + 1e8)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "WEFT_COMPILE_JOBS": "1",
             "WEFT_CACHE_DIR": str(tmp_path / "cache")})
    assert done.returncode == 0, done.stderr
    killed, left, rest = done.stdout.split(" ", 2)
    assert int(killed) >= 24 and int(left) >= 10
    assert rest == "[] [] True\n"


# -- clearing -------------------------------------------------------------------------------------


def _kernel(cache: Path) -> None:
    DiskCache("cpp").put_all(["ab" * 32, "cd" * 32], b"content")


def _measurement(cache: Path) -> None:
    DiskCache("machine").put("12" * 32, b"1.5")


def _gpu_binary(cache: Path) -> None:
    DiskCache("triton").put("34" * 32, b"{}")


def _temporary(cache: Path) -> None:
    for kind in ("cpp", "triton", "machine"):
        folders.folder_inside(cache / kind / "ef").joinpath(".tmp-left").write_text("")


def _lock(cache: Path) -> None:
    with DiskCache("cpp").lock("ab"):
        pass


def _report(cache: Path) -> None:
    assert failures.write_report(ValueError(), during="a test")


def _program(cache: Path) -> None:
    (failures.report_folder() / "repro-20260101-000000-12345678.py").write_text("")


def _trace(cache: Path) -> None:
    with config.patch(trace=True), trace_files.traced():
        failures.events.record("perf", text="something")
    (trace_files.own_folder() / "kernel.so").write_bytes(b"")


WRITTEN = [_kernel, _measurement, _gpu_binary, _temporary, _lock, _report, _program, _trace]


@pytest.mark.parametrize("write", [*WRITTEN, lambda cache: [w(cache) for w in WRITTEN]])
def test_clear_removes_what_was_written(write, tmp_path):
    from typer.testing import CliRunner

    from weft.cli import app

    with config.patch(cache_dir=str(tmp_path / "cache")):
        write(folders.cache_root())
        files = {p for p in (tmp_path / "cache").rglob("*") if p.is_file()}
        assert files
        done = CliRunner().invoke(app, ["cache", "clear"])
        assert done.exit_code == 0, done.output
    left = {p for p in (tmp_path / "cache").rglob("*") if p.is_file()}
    assert {p.name for p in left} <= {disk_cache._STAMP}


def test_clear_removes_the_folder_of_a_process_that_was_just_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(folders.tempfile, "tempdir", None)
    script = ("from weft import folders; import os, signal; folders.process_folder(); "
              "os.kill(os.getpid(), signal.SIGKILL)")
    subprocess.run([sys.executable, "-c", script], check=False)
    (folder,) = tmp_path.glob("weft-process-*")
    with config.patch(cache_dir=str(tmp_path / "cache")):
        disk_cache.clear()
        assert folder.exists()  # a process that has just begun may not hold its lock yet
        before = time.time() - 2 * disk_cache._JUST_BEGUN
        os.utime(folder, (before, before))
        disk_cache.clear()
    assert not folder.exists()


# -- the end of a process -------------------------------------------------------------------------

ENDS = """
import os, threading, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)
import torch, weft
from weft.codegen import compile

f = weft.compile(lambda x: x.sin() + x.relu().sum())
f(torch.ones(8, requires_grad=True)).sum().backward()

child = os.fork()
thread = threading.Thread(target=lambda: weft.compile(lambda x: x.exp() * 3)(torch.ones(5)))
thread.start()
thread.join()
if child:
    os.waitpid(child, 0)

def fails(*_):
    raise ValueError

compile.make_schedule = fails
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    weft.compile(lambda x: x.cos())(torch.ones(3))
assert len(seen) == 1, seen
"""


@pytest.mark.parametrize("again", [False, True])
def test_nothing_is_left_open_at_exit(again, tmp_path_factory):
    """Also of threads, forked children and failures, with an empty cache and with a full one."""
    place = tmp_path_factory.getbasetemp() / "ends"
    (place / "tmp").mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", ENDS],
        capture_output=True, text=True, check=False, env={
            **os.environ, "WEFT_CACHE_DIR": str(place / "cache"), "WEFT_TRACE": str(int(again)),
            "TMPDIR": str(place / "tmp")})
    said = [line for line in done.stderr.splitlines() if "(WEFT_TRACE)" not in line]
    assert done.returncode == 0 and not said
    assert not [*(place / "tmp").iterdir()]
