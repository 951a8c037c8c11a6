"""Disturbs compilations on one cache: killed compilers and writers, spoiled files, full disks, …

Place in the pipeline: for developers; `tests/tools/test_stress_cache.py` runs a few rounds::

    python -m tools.stress_cache --rounds 500 --seed 0

Each round starts processes that compile small programs and compare them with eager, and disturbs
them in one way. A process must end in time, with the right results and at most one warning.
`--jobs 8` runs eight parts of the rounds side by side, each with a cache of its own; `--other
PYTHON=SOURCES` lets another Python (with its own PyTorch) compile on the same cache; `--kind NAME
--seed N --rounds 1` repeats one round.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import fcntl
import os
import pwd
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

import weft
from weft import folders
from weft.config import config
from weft.runtime import disk_cache, file_locks

LONGEST: Final = 120.0
LONGEST_START: Final = 400.0
"""Seconds after which a process counts as hung: one that is forked, one that starts anew."""
PROGRAMS: Final = 24
"""Different programs; rounds meet what earlier ones compiled."""

ELSEWHERE: Final = "elsewhere"
"""A further cache, which some processes read and write: they store compiled entries, too."""

OK, WRONG, WARNED = 0, 3, 4
"""How a process ends: results right; a result wrong, or an exception; more than one warning."""


class Limit(Exception):
    """What handlers of signals raise in the processes."""


def program(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function with a kernel of its own."""
    space: dict[str, Any] = {}
    steps = ("x.relu()", "x.sigmoid()", "x.abs()", "x.square()", "x.clamp(-1, 1)")
    factor = 1 + number / (1 << 20)
    text = f"{steps[number % 5]} * {factor!r} + {steps[number // 5 % 5]}"
    exec(f"def f(x):\n    return ({text}).sum(-1)", space)
    return space["f"]  # type: ignore[no-any-return]


def check(number: int, compiled: Any = None) -> None:
    """Compile a program and compare it with eager."""
    function, x = program(number), torch.linspace(-2, 2, 60).reshape(5, 12)
    found = (compiled or weft.compile(function))(x)
    if not torch.allclose(found, function(x), rtol=1e-4, atol=1e-4):
        raise AssertionError(f"program {number} is wrong")


# -- what processes do ----------------------------------------------------------------------------


def compile_some(dice: random.Random) -> None:
    for _ in range(dice.choice((1, 1, 2))):
        check(dice.randrange(PROGRAMS))


def compile_new(dice: random.Random) -> None:
    check(PROGRAMS + dice.randrange(1 << 20))


def compile_in_threads(dice: random.Random) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            check(number)
        except BaseException as error:  # noqa: BLE001  raised in the main thread
            failures.append(error)

    numbers = [dice.randrange(PROGRAMS) for _ in range(3)]
    threads = [threading.Thread(target=work, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def compile_under_signals(dice: random.Random) -> None:
    def handler(*_: Any) -> None:
        raise Limit

    signal.signal(signal.SIGALRM, handler)
    number = dice.randrange(PROGRAMS)
    compiled = weft.compile(program(number))
    for _ in range(4):
        with contextlib.suppress(Limit):
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.001, 0.3))
                check(number, compiled)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    check(number, compiled)


def with_small_files(dice: random.Random) -> None:
    """As on a full disk: also the compiler can write no more."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (dice.choice((0, 100, 3000, 9000)),) * 2)
    compile_some(dice)


def with_an_umask(dice: random.Random) -> None:
    os.umask(dice.choice((0, 0o77, 0o777)))
    compile_some(dice)


def without_waiting(dice: random.Random) -> None:
    file_locks.LONGEST = 0.2  # type: ignore[misc]
    compile_some(dice)


def clear_and_compile(dice: random.Random) -> None:
    for _ in range(3):
        disk_cache.clear()
        check(dice.randrange(PROGRAMS))


def with_files_replaced(dice: random.Random) -> None:
    """Each file is spoiled as soon as it was checked, before it is loaded."""
    checked = disk_cache.DiskCache.appeared

    def appeared(cache: disk_cache.DiskCache, key: str) -> bytes | None:
        content = checked(cache, key)
        if content is not None:
            spoil_file(cache.path(key), cache.path(key), dice)
        return content

    disk_cache.DiskCache.appeared = appeared  # type: ignore[method-assign]
    compile_some(dice)


def without_a_home(dice: random.Random) -> None:
    """No usable cache folder is named by the environment."""
    def no_entry(_: int) -> Any:
        raise KeyError

    pwd.getpwuid = no_entry
    place = tempfile.mkdtemp()
    os.chdir(place)
    os.environ["HOME"] = dice.choice(("/proc/nothing", "relative", place, "/dev/null"))
    os.environ["XDG_CACHE_HOME"] = dice.choice(("", "cache", "./cache", "~/cache", "/proc/none"))
    if os.environ["HOME"] == "/proc/nothing" and dice.random() < 0.5:
        del os.environ["HOME"]
    config.cache_dir = ""
    compile_some(dice)
    if {entry.name for entry in os.scandir(place)} - {".cache"}:
        raise AssertionError(f"files were made in the working directory: {os.listdir(place)}")


def with_a_wrong_clock(dice: random.Random) -> None:
    """The clock goes backwards, and files are of the future."""
    true_time = time.time
    time.time = lambda: true_time() + dice.choice((0.0, -1e4, -1e9, 1e7))
    for file in disk_cache.files():
        if dice.random() < 0.3:
            with contextlib.suppress(OSError):
                os.utime(file, (dice.choice((1.0, 4e9)),) * 2)
    compile_some(dice)


def run_process(work: Callable[[random.Random], None], seed: int, log: Path) -> int:
    """What a process does; returns how it ends."""
    faulthandler.dump_traceback_later(LONGEST - 10)  # where it hangs
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.set_num_threads(1)  # PyTorch's pool is made anew after a fork: by one thread
            config.store_entries = seed % 2 == 1
            if seed % 4 == 1 and config.cache_dir:
                config.cache_remote = f"file://{Path(config.cache_dir).parent / ELSEWHERE}"
            work(random.Random(seed))
    except BaseException:  # noqa: BLE001  whatever it is, the process has failed
        log.write_text(traceback.format_exc())
        return WRONG
    finally:
        faulthandler.cancel_dump_traceback_later()
    if len(seen) > 1:
        log.write_text("\n".join(str(w.message) for w in seen))
        return WARNED
    return OK


# -- disturbances ---------------------------------------------------------------------------------


@dataclass
class Round:
    """The processes of a round, by process id; those that we have killed, and those among them that
    did not end."""

    dice: random.Random
    root: Path
    processes: dict[int, Path] = field(default_factory=dict)
    killed: set[int] = field(default_factory=set)
    hung: set[int] = field(default_factory=set)


Disturb = Callable[[Round], None]
"""Called again and again while the processes run."""


def nothing(_: Round) -> None: ...


def kill_writers(now: Round) -> None:
    time.sleep(now.dice.uniform(0, 0.4))
    if now.processes and now.dice.random() < 0.5:
        victim = now.dice.choice(list(now.processes))
        now.killed.add(victim)
        os.kill(victim, signal.SIGKILL)


def kill_compilers(now: Round) -> None:
    for compiler in _below(set(now.processes)):
        if now.dice.random() < 0.05:
            with contextlib.suppress(OSError):
                os.kill(compiler, signal.SIGKILL)


def _below(parents: set[int]) -> list[int]:
    """The processes that these have started, and so on."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, new = [], list(parents)
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found += new
    return found


def spoil(now: Round) -> None:
    """Replace a file of the cache, or of the one elsewhere, by something else."""
    files = [f for f in (*disk_cache.files(), *(now.root / ELSEWHERE).glob("*/??/*"))
             if f.is_file() and not f.is_symlink()]
    for file in now.dice.sample(files, min(2, len(files))):
        spoil_file(file, now.dice.choice(files), now.dice)


def spoil_file(file: Path, other: Path, dice: random.Random) -> None:
    """Put something else in the place of a file, or into the file itself."""
    with contextlib.suppress(OSError, shutil.Error):
        if dice.random() < 0.3:
            _overwrite(file, dice)
            return
        data = file.read_bytes() or b"empty"
        file.unlink()
        dice.choice(_SPOILED)(file, data, other, dice)


def _overwrite(file: Path, dice: random.Random) -> None:
    """Change the file that other processes may have mapped."""
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.seek(dice.randrange(size + 1))
        if dice.random() < 0.5:
            stream.truncate()
        else:
            stream.write(os.urandom(64))


def spoil_meanwhile(now: Round) -> None:
    time.sleep(now.dice.uniform(0, 0.01))
    spoil(now)


def remove_some(now: Round) -> None:
    for path in now.dice.sample(paths := [*(now.root / "cache").rglob("*")], min(2, len(paths))):
        folders.remove(path)


def _flip(file: Path, data: bytes, _: Path, dice: random.Random) -> None:
    spoiled = bytearray(data)
    spoiled[dice.randrange(len(spoiled))] ^= 1 << dice.randrange(8)
    file.write_bytes(spoiled)


def _cut(file: Path, data: bytes, _: Path, dice: random.Random) -> None:
    file.write_bytes(data[:dice.randrange(len(data))])


def _cut_but_sealed(file: Path, data: bytes, _: Path, dice: random.Random) -> None:
    content = disk_cache.unsealed(data, file.name) or b"x"
    file.write_bytes(disk_cache.sealed(content[:dice.randrange(len(content))], [file.name]))


def _swap(file: Path, _: bytes, other: Path, __: random.Random) -> None:
    shutil.copy(other, file)


def _let_others_write(file: Path, data: bytes, _: Path, __: random.Random) -> None:
    file.write_bytes(data)
    file.chmod(0o666)


_SPOILED: Final[tuple[Callable[[Path, bytes, Path, random.Random], Any], ...]] = (
    _flip, _cut, _cut_but_sealed, _swap, _let_others_write,
    lambda file, *_: file.touch(), lambda file, *_: os.mkfifo(file), lambda file, *_: file.mkdir(),
    lambda file, *_: file.symlink_to("/etc/passwd"), lambda *_: None,
)


@contextlib.contextmanager
def ordinary(now: Round) -> Iterator[Path]:
    yield now.root / "cache"


@contextlib.contextmanager
def spoiled(now: Round) -> Iterator[Path]:
    """The cache, several of whose files are spoiled before the processes start."""
    for _ in range(4):
        spoil(now)
    yield now.root / "cache"


@contextlib.contextmanager
def littered(now: Round) -> Iterator[Path]:
    """Thousands of files that killed processes have left behind."""
    cache = now.root / "cache"
    for kind in ("cpp", "machine"):
        for number in range(64):
            folder = folders.private_folder(cache / kind / f"{number:02x}")
            for n in range(20):
                _stale(folder / f".tmp-{now.dice.randrange(1 << 30)}-{n}")
    for _ in range(30):
        folder = Path(tempfile.mkdtemp(prefix="weft-process-"))
        (folder / ".weft").touch()
        (folder / "cpp-left").mkdir()
        _stale(folder / "cpp-left" / "kernel.so", folder)
    (cache / ".trimmed").unlink(missing_ok=True)
    yield cache


def _stale(file: Path, *also: Path) -> None:
    file.write_bytes(b"left")
    for path in (file, *also):
        os.utime(path, (1, 1))


@contextlib.contextmanager
def read_only(now: Round) -> Iterator[Path]:
    """A file system that cannot be written, with or without what earlier rounds compiled."""
    cache, path = now.root / "cache", Path(tempfile.mkdtemp(dir=now.root))
    if cache.exists() and now.dice.random() < 0.7:
        with contextlib.suppress(shutil.Error, OSError):
            shutil.copytree(cache, path, dirs_exist_ok=True)
    with _mounted(path, "--bind", str(path)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(path)], capture_output=True,
                       check=False)
        yield path


@contextlib.contextmanager
def hostile(now: Round) -> Iterator[Path]:
    """A folder that cannot be used, or should not be."""
    path = Path(tempfile.mkdtemp(dir=now.root)) / "cache"
    match now.dice.randrange(7):
        case 0:
            path.write_text("")
        case 1:
            path.mkdir()
            path.chmod(0o777)
        case 2:
            path = Path("/dev/null/cache")
        case 3:
            path = path / ("x" * 300)
        case 4:
            os.mkfifo(path)
        case 5:
            (path / "cpp").parent.mkdir(mode=0o700)
            (path / "cpp").symlink_to("/etc")
        case 6:
            path.mkdir(mode=0o700)
            (path / "cpp").write_text("")
    yield path


@contextlib.contextmanager
def small_disk(now: Round) -> Iterator[Path]:
    """A file system with a few pages, if we may mount one."""
    path = Path(tempfile.mkdtemp(dir=now.root))
    size = now.dice.choice((4, 16, 40))
    with _mounted(path, "-t", "tmpfs", "-o", f"size={size}k,mode=0700", "tmpfs"):
        yield path


@contextlib.contextmanager
def _mounted(path: Path, *arguments: str) -> Iterator[None]:
    """Mount there, if we may."""
    done = subprocess.run(["mount", *arguments, str(path)], capture_output=True, check=False)
    try:
        yield
    finally:
        if not done.returncode:
            subprocess.run(["umount", "-l", str(path)], check=False)


@contextlib.contextmanager
def held_locks(now: Round) -> Iterator[Path]:
    """Another process holds every lock and never lets go."""
    locks = now.root / "cache" / "cpp" / "locks"
    folders.private_folder(locks)
    with contextlib.ExitStack() as stack:
        for number in range(256):
            handle = os.open(locks / f"{number:02x}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, handle)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _inherited.append(handle)
        yield now.root / "cache"
        _inherited.clear()


_inherited: Final[list[int]] = []
"""Handles that a forked process closes."""

Place = Callable[[Round], contextlib.AbstractContextManager[Path]]

KINDS: Final[dict[str, tuple[Place, Callable[[random.Random], None], Disturb]]] = {
    "concurrent processes": (ordinary, compile_some, nothing),
    "killed writers": (ordinary, compile_new, kill_writers),
    "killed compilers": (ordinary, compile_new, kill_compilers),
    "spoiled files": (spoiled, compile_some, nothing),
    "files removed meanwhile": (ordinary, compile_some, remove_some),
    "hostile folders": (hostile, compile_some, nothing),
    "small disk": (small_disk, compile_some, nothing),
    "limited files": (ordinary, with_small_files, nothing),
    "threads": (ordinary, compile_in_threads, nothing),
    "signals": (ordinary, compile_under_signals, nothing),
    "held locks": (held_locks, without_waiting, nothing),
    "cleared meanwhile": (ordinary, clear_and_compile, nothing),
    "umask": (ordinary, with_an_umask, nothing),
    "replaced after the check": (ordinary, with_files_replaced, nothing),
    "spoiled meanwhile": (ordinary, compile_some, spoil_meanwhile),
    "no home": (ordinary, without_a_home, nothing),
    "wrong clock": (ordinary, with_a_wrong_clock, nothing),
    "thousands of stale files": (littered, compile_new, nothing),
    "read-only": (read_only, compile_some, nothing),
    "other versions": (ordinary, compile_some, spoil_meanwhile),
}


# -- rounds ---------------------------------------------------------------------------------------

others: Final[list[tuple[str, str]]] = []
"""Other Pythons, and where the sources with their C extension are."""


def run_round(kind: str, seed: int, root: Path) -> Counter[str]:
    """One round; counts its processes and what went wrong."""
    place, work, disturb = KINDS[kind]
    now, counts = Round(random.Random(seed), root), Counter[str]()
    with config.patch(cache_dir=str(root / "cache")), place(now) as path:
        with config.patch(cache_dir=str(path)):
            for n in range(now.dice.choice((1, 2, 3))):
                log = root / f"log-{seed}-{n}"
                now.processes[_fork(work, seed * 10 + n, log)] = log
        if kind == "other versions":
            for n, other in enumerate(others):
                log = root / f"log-{seed}-other-{n}"
                now.processes[_start(other, seed * 10 + n, path, log)] = log
        end = time.monotonic() + (LONGEST_START if kind == "other versions" else LONGEST)
        while now.processes:
            disturb(now)
            time.sleep(0.002)
            if time.monotonic() > end and not now.hung:
                _end_all(now, f"{kind}, seed {seed}")
                counts["hung"] += len(now.hung)
            for process, log in list(now.processes.items()):
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    del now.processes[process]
                    counts += _verdict(process in now.killed, status, log, f"{kind}, seed {seed}")
    return counts


def _end_all(now: Round, name: str) -> None:
    """Kill the processes that did not end in time."""
    now.hung |= {*now.processes}
    now.killed |= now.hung
    for process in now.hung:
        print(f"hung: {name}, {Path(f'/proc/{process}/stat').read_text()}", file=sys.stderr)
        os.kill(process, signal.SIGKILL)


def _fork(work: Callable[[random.Random], None], seed: int, log: Path) -> int:
    process = os.fork()
    if process:
        return process
    for handle in _inherited:
        os.close(handle)
    how = WRONG
    try:
        how = run_process(work, seed, log)
        folders._remove_process_folder()
    finally:
        os._exit(how)


def _start(other: tuple[str, str], seed: int, cache: Path, log: Path) -> int:
    """A process of another Python, which compiles the same programs on the same cache."""
    python, sources = other
    command = [python, "-m", "tools.stress_cache", "--alone", str(log), "--seed", str(seed)]
    environment = {**os.environ, "WEFT_CACHE_DIR": str(cache), "WEFT_WARN_UNTESTED_TORCH": "0",
                   "PYTHONPATH": os.pathsep.join([sources, str(Path(__file__).parents[1])])}
    return os.posix_spawn(python, command, environment)


def _verdict(killed: bool, status: int, log: Path, name: str) -> Counter[str]:
    how, counts = os.waitstatus_to_exitcode(status), Counter(processes=1)
    if killed and how == -signal.SIGKILL:
        return counts + Counter(killed=1)
    problem = {OK: "", WRONG: "wrong", WARNED: "warned twice"}.get(how, f"crashed ({how})")
    if problem:
        text = log.read_text() if log.exists() else ""
        print(f"{problem}: {name}\n{text}", file=sys.stderr)
        counts[problem.partition(" (")[0]] += 1
    return counts


def stress(rounds: int, seed: int, kinds: Sequence[str], *, verbose: bool = False) -> Counter[str]:
    """So many rounds, each kind in turn; what happened."""
    counts = Counter[str]()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        root = Path(folder, "stress")
        root.mkdir(0o700)
        with config.patch(cache_dir=str(root / "first")):
            check(PROGRAMS)  # what a first compilation imports is there for all processes
        for number in range(rounds):
            kind, began = kinds[number % len(kinds)], time.monotonic()
            counts += run_round(kind, seed + number, root)
            if verbose:
                print(f"{number} {kind} {time.monotonic() - began:.1f} s", flush=True)
            counts["rounds"] += 1
            if number % len(KINDS) == len(KINDS) - 1:
                shutil.rmtree(root / "cache", ignore_errors=True)
        counts["left behind"] = _left_behind(root)
    tempfile.tempdir = None
    return counts


def _in_parts(options: argparse.Namespace) -> Counter[str]:
    """The rounds, divided among processes of their own; what happened."""
    counts, parts, begin = Counter[str](), [], 0
    for part in range(options.jobs):
        rounds = (options.rounds - begin) // (options.jobs - part)
        command = [sys.executable, "-m", "tools.stress_cache", "--rounds", str(rounds), "--seed",
                   str(options.seed + begin), *(["--verbose"] if options.verbose else []),
                   *(a for kind in options.kind for a in ("--kind", kind)),
                   *(a for python, sources in others for a in ("--other", f"{python}={sources}"))]
        parts.append((subprocess.Popen(command, stdout=subprocess.PIPE, text=True), rounds))
        begin += rounds
    for part, rounds in parts:
        *lines, last = part.communicate()[0].splitlines() or [""]
        print("".join(f"{line}\n" for line in lines), end="", flush=True)
        counts.update({name: int(n) for name, n in re.findall(r"([a-z][a-z ]*) (\d+)", last)
                       if name in SHOWN})
        counts["failed parts"] += not last.startswith(f"rounds {rounds}, ")
    return counts


def _left_behind(root: Path) -> int:
    """What is still there of killed processes after an hour and a look for it."""
    with config.patch(cache_dir=str(root / "cache")):
        for path in (*root.parent.glob("weft-process-*"), *root.rglob(".tmp-*")):
            os.utime(path, (1, 1))
        disk_cache.remove_left_behind()
    left = {*root.parent.glob("weft-process-*"), *root.rglob("cache/*/??/.tmp-*")}
    return len(left - {folders.process_folder()})


SHOWN: Final = ("rounds", "processes", "killed", "wrong", "crashed", "hung", "warned twice",
                "left behind", "failed parts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=len(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=[*KINDS], default=[])
    parser.add_argument("--other", action="append", default=[], metavar="PYTHON=SOURCES")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    # Python 3.12: PyTorch's threads are there, but have nothing to do while this process forks.
    warnings.filterwarnings("ignore", ".*use of fork.*", DeprecationWarning)
    torch.set_num_threads(1)
    if options.alone:
        sys.exit(run_process(compile_some, options.seed, options.alone))
    others.extend(tuple(other.split("=", 1)) for other in options.other)
    began = time.monotonic()
    kinds = options.kind or [*KINDS]
    counts = _in_parts(options) if options.jobs > 1 else stress(
        options.rounds, options.seed, kinds, verbose=options.verbose)
    print(", ".join(f"{name} {counts[name]}" for name in SHOWN)
          + f" ({time.monotonic() - began:.0f} s)")
    sys.exit(any(counts[name] for name in SHOWN[3:]))


if __name__ == "__main__":
    main()
