"""The C++ compiler: which one, its flags, and one run of it.

Place in the pipeline: `compile_pool.py` runs many of these in parallel; `codegen/cpp/` chooses
vector widths by `Toolchain.simd`.

Kernels include no system header and link no library but libm: OpenMP's functions are resolved when
the object is loaded (`shared_objects.py`), from the runtime that torch has loaded already, so both
share one pool of threads; those of SLEEF are torch's.

    shared_object = toolchain().compile(source_text)
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, final

from weft.config import config
from weft.errors import BadValue, CompilationFailed, CompilerNotFound
from weft.folders import process_folder
from weft.interrupts import PATIENCE, checkpoint
from weft.runtime.shared_objects import is_loadable

INCLUDE_DIRECTORY: Final = Path(__file__).parents[1] / "codegen" / "cpp" / "include"
_LAYOUT: Final = "functions named by key"
"""How objects are made of sources (`compile_pool.py`): part of their keys."""
_NAMES: Final = ("g++", "clang++")

_FLAGS: Final = (
    "-std=c++17", "-O2", "-shared", "-fPIC", "-fopenmp",
    # libm's errno and traps are no part of eager's behaviour; NaN, infinities and signed zeros are.
    "-fno-math-errno", "-fno-trapping-math",
    # a * b + c rounds twice, as eager does; integers wrap.
    "-ffp-contract=off", "-fwrapv",
    # g++ 12 writes the addresses of two steps through one buffer as 8 * q - 7 * p, reads that as an
    # access of no object, takes the kernel for one without effects, and drops its call.
    "-fno-delete-null-pointer-checks",
    "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables", "-fno-stack-protector",
    "-fvisibility=hidden", "-w", "-nostdlib",
)
_LIBRARIES: Final = ("-lm", "-lgcc")
_TORCH_LIBRARY: Final = "libtorch_cpu.so"
_SLEEF_FLAG: Final = "-DWEFT_SLEEF"
_SLEEF_HEADERS: Final = ('"library.h"', '"integer.h"')

_SIMD_FLAGS: Final = {
    "x86_64": {
        "avx512": "-march=x86-64-v4", "avx2": "-march=x86-64-v3", "portable": "-march=x86-64",
    },
}
_SIMD_NEEDS: Final = {
    "avx512": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
    "avx2": frozenset({"avx2", "fma", "f16c"}),
}


@cache
def machine_features() -> frozenset[str]:
    """The processor's features according to /proc/cpuinfo; empty if there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _best_simd() -> str:
    if platform.machine() != "x86_64":
        return "portable"
    features = machine_features()
    return next((simd for simd, needs in _SIMD_NEEDS.items() if needs <= features), "portable")


def _target_flags(simd: str) -> tuple[str, ...]:
    if simd == _best_simd():
        return ("-march=native",) if platform.machine() == "x86_64" else ("-mcpu=native",)
    try:
        return (_SIMD_FLAGS[platform.machine()][simd],)
    except KeyError:
        raise BadValue(
            f"simd={simd!r} is not available on {platform.machine()}", do="leave `simd` empty"
        ) from None


@final
@dataclass(frozen=True)
class Toolchain:
    """A compiler, its version, the instruction set it compiles for, and its full command line."""

    compiler: str
    version: str
    simd: str
    command: tuple[str, ...]

    def libraries(self, source: str) -> list[str]:
        """Arguments for the linker: the libraries that the object of `source` needs when it is
        loaded."""
        sleef = _SLEEF_FLAG in self.command and any(h in source for h in _SLEEF_HEADERS)
        if not sleef:
            return [*_LIBRARIES]
        place = _stand_in(self.compiler, process_folder())
        return [*_LIBRARIES, "-Wl,--no-as-needed", f"-L{place}", f"-l:{_TORCH_LIBRARY}"]

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector register."""
        return {"avx512": 64, "avx2": 32}.get(self.simd, 16)

    def key(self, source: str) -> str:
        """Content hash: source, headers, compiler, flags and processor; not the folder of weft."""
        command = [word for word in self.command if word != str(INCLUDE_DIRECTORY)]
        parts = (_LAYOUT, source, _headers_digest(), self.version, command, _machine_digest())
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def compile(self, source: str, is_cancelled: Callable[[], bool] = bool) -> bytes:
        """The shared object of `source`; raises CompilationFailed with the compiler's message."""
        with tempfile.TemporaryDirectory(
                prefix="cpp-", dir=process_folder(), ignore_cleanup_errors=True) as directory:
            output = Path(directory, "kernel.so")
            command = [*self.command, "-x", "c++", "-", "-o", str(output), *self.libraries(source)]
            done = _run(command, source.encode(), is_cancelled, temporary=directory)
            content = output.read_bytes() if output.is_file() else b""
        if done.returncode or not is_loadable(content):
            message = done.stderr.decode(errors="replace")[:4000]
            raise CompilationFailed(f"{self.compiler} refused a kernel:\n{message}")
        return content


@cache
def _headers_digest() -> str:
    digest = hashlib.sha256()
    for header in sorted(INCLUDE_DIRECTORY.glob("*.h")):
        digest.update(header.read_bytes())
    return digest.hexdigest()


@cache
def _machine_digest() -> str:
    """With -march=native the object depends on the processor."""
    return " ".join(sorted(machine_features()))


def toolchain() -> Toolchain:
    """The toolchain that the settings select; raises CompilerNotFound if there is none."""
    return _toolchain(named_compiler(), config.simd, config.cpp_flags)


def named_compiler() -> str:
    """The compiler that the user names; empty if weft looks for one."""
    return config.cpp_compiler or os.environ.get("CXX", "")


def find_compiler(named: str) -> str | None:
    """The compiler to use, with the arguments that its name brings along; None if there is none."""
    names = (named,) if named else _NAMES
    return next((name for name in names if shutil.which(shlex.split(name)[0])), None)


@cache
def _toolchain(named: str, simd: str, extra: str) -> Toolchain:
    command = find_compiler(named)
    if command is None:
        raise CompilerNotFound((named,) if named else _NAMES)
    chosen = simd or _best_simd()
    flags = [*_FLAGS, *_target_flags(chosen), "-I", str(INCLUDE_DIRECTORY), *shlex.split(extra)]
    flags += [_SLEEF_FLAG] * (chosen in _SIMD_NEEDS and torch_has_sleef())
    compiler = shlex.split(command)
    return Toolchain(command, _version(compiler), chosen, (*compiler, *flags))


@cache
def torch_has_sleef() -> bool:
    """Whether torch's library of CPU kernels exports SLEEF's vector functions."""
    try:
        library = ctypes.CDLL(_TORCH_LIBRARY, mode=os.RTLD_NOLOAD)
    except OSError:  # another name, or part of another library
        return False
    return all(hasattr(library, f"Sleef_{name}_u10") for name in ("expd8", "powf16", "atan2d4"))


@cache
def _stand_in(compiler: str, process: Path) -> str:
    """The folder of an empty library with the name of torch's: objects linked with it load torch's,
    but the linker need not read half a gigabyte.

    process: where it is made, and lies as long as the process lives.
    """
    folder = tempfile.mkdtemp(prefix="link-", dir=process)  # threads that ask at once make one each
    command = [*shlex.split(compiler), "-shared", "-fPIC", "-nostdlib", "-x", "c", os.devnull,
               f"-Wl,-soname,{_TORCH_LIBRARY}", "-o", str(Path(folder, _TORCH_LIBRARY))]
    done = _run(command)
    if done.returncode:
        message = done.stderr.decode(errors="replace")[:4000]
        raise CompilationFailed(f"{compiler} made no library:\n{message}")
    return folder


def _version(compiler: list[str]) -> str:
    return _run([*compiler, "--version"]).stdout.decode(errors="replace").partition("\n")[0]


class Cancelled(Exception):
    """The compiler was ended, because nobody waits for it any more."""


def _run(
    command: Sequence[str], text: bytes = b"", is_cancelled: Callable[[], bool] = bool,
    temporary: str = "",
) -> subprocess.CompletedProcess[bytes]:
    """Run a compiler. A signal whose handler raises ends it, and so does `is_cancelled`.

    Its process group is its own: Ctrl-C is meant for the program, whose handler may go on, and the
    compiler's own children end with it. `temporary` is the folder of its own temporary files.
    """
    pipe = subprocess.PIPE
    environment = {**os.environ, "TMPDIR": temporary} if temporary else None
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment,
                          process_group=0) as process:
        remaining: bytes | None = text
        try:
            while True:
                try:
                    out, err = process.communicate(remaining, PATIENCE)
                    return subprocess.CompletedProcess(command, process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    remaining = None  # the process has it
                    checkpoint()
                    if is_cancelled():
                        raise Cancelled from None
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise


def is_available() -> bool:
    """Whether there is a C++ compiler."""
    try:
        toolchain()
    except CompilerNotFound:
        return False
    return True
