"""Compiles Triton texts; run as a script, it serves them from processes that share one Triton.

Place in the pipeline: `triton_pool.py` starts the script and talks to it. Triton's compiler holds
Python's lock for most of its work, so threads would wait for each other; processes do not. The
server imports Triton once, but neither torch nor weft, and forks its workers then.

    image, entry, shared, num_warps = compile_text(text, "weft_triton_0", "k", ("*fp32",), ...)
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

IDLE_SECONDS: Final = 60.0
"""A server ends after this many seconds without requests."""

MOST_WARPS: Final = 16
"""Where `with_enough_warps` gives up."""

PARENT_DEATH_SIGNAL: Final = 1  # of prctl(2)

T = TypeVar("T")
Compiled = tuple[bytes, str, int, int]
"""The cubin, its entry point, bytes of dynamic shared memory, warps of a program."""


def compile_text(
    text: str, module_name: str, name: str, signature: tuple[str, ...], num_warps: int, arch: int,
    multiples: Sequence[tuple[int, int]], folder: str,
) -> Compiled:
    """Compile the kernel `name` of the module `text` for compute capability `arch` (e.g. 90).

    multiples: positions of parameters, and the powers of two that divide them. folder: where the
    text is kept, as long as the process lives.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(_load(text, module_name, folder), name)
    attributes: dict[tuple[int, ...], Any] = {(i,): [["tt.divisibility", n]] for i, n in multiples}
    types = dict(zip(function.arg_names, signature, strict=True))
    source = ASTSource(fn=function, signature=types, constexprs={}, attrs=attributes)
    options = {"debug": "device_assert" in text, "sanitize_overflow": False}
    target = GPUTarget("cuda", arch, 32)
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.add_stages_inspection_hook = _mend_ptx
        compiled = with_enough_warps(num_warps, lambda warps: triton.compile(
            source, target=target, options={**options, "num_warps": warps}))
    meta = compiled.metadata
    return compiled.asm["cubin"], meta.name, meta.shared, meta.num_warps


def with_enough_warps(num_warps: int, compiled: Callable[[int], T]) -> T:
    """`compiled(num_warps)`, with more warps where one of Triton's passes fails.

    In 3.6 TritonGPURemoveLayoutConversions uses values before they are computed in some kernels
    with several reductions of a tile that fits into a warp or two.
    """
    try:
        return compiled(num_warps)
    except RuntimeError:
        if num_warps >= MOST_WARPS:
            raise
    return with_enough_warps(2 * num_warps, compiled)


def _load(text: str, name: str, folder: str) -> ModuleType:
    """Import the text as a module: Triton reads a function's source from its file."""
    known = sys.modules.get(name)
    if known is not None:
        return known
    path = Path(tempfile.mkdtemp(prefix="triton-", dir=folder)) / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# -- the assembler's defect ----------------------------------------------------------------------


def without_packed_sums(ptx: str) -> str:
    """The text with each sum of two packed 16-bit integers replaced by two sums.

    NVIDIA's assembler (ptxas 12.8, for Hopper and Blackwell) adds zero instead of a constant if one
    half of the packed result is not read; LLVM packs sums of small indices like that.
    """
    return _PACKED_SUM.sub(_TWO_SUMS, ptx)


_PACKED_SUM: Final = re.compile(r"\badd\.[su]16x2\s+(%\w+), (%\w+), (%\w+);")
_TWO_SUMS: Final = r"""{
\t.reg .b16 %low<2>, %high<2>;
\tmov.b32 {%low0, %high0}, \2;
\tmov.b32 {%low1, %high1}, \3;
\tadd.s16 %low0, %low0, %low1;
\tadd.s16 %high0, %high0, %high1;
\tmov.b32 \1, {%low0, %high0};
\t}"""


def _mend_ptx(
    _backend: object = None, stages: dict[str, Any] | None = None, *_: object
) -> tuple[str, str]:
    """Triton's hook on its stages; without arguments, what it adds to keys of Triton's cache."""
    if stages is not None:
        make_ptx = stages["ptx"]
        stages["ptx"] = lambda source, metadata: without_packed_sums(make_ptx(source, metadata))
    return "weft: no packed sums", ""


# -- the server ----------------------------------------------------------------------------------


def serve(connection: Connection) -> None:
    """Answer requests until the other side closes or is silent for a while.

    First comes the setup: Python's path, the number of processes, a folder. A request is a number
    and the arguments of `compile_text`; its answer is the number, the result, and the error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the program
    path, jobs, place = connection.recv()
    sys.path[:] = path
    _without_weft()
    sending = threading.Lock()
    with tempfile.TemporaryDirectory(
            prefix="triton-", dir=place, ignore_cleanup_errors=True) as folder:
        os.environ.update(TRITON_CACHE_DIR=f"{folder}/cache", TRITON_STORE_BINARY_ONLY="1")
        tempfile.tempdir = folder
        _import_triton()
        begin = partial(_begin_worker, connection.fileno())
        with ProcessPoolExecutor(jobs, get_context("fork"), initializer=begin) as pool:
            with contextlib.suppress(EOFError, OSError):
                while connection.poll(IDLE_SECONDS):
                    number, arguments = connection.recv()
                    answer = partial(_answer, connection, sending, number)
                    pool.submit(compile_text, *arguments).add_done_callback(answer)
            pool.shutdown(wait=False, cancel_futures=True)


def _begin_worker(connection: int) -> None:
    """Let a worker end with its server, and close its copy of the server's connection."""
    os.close(connection)
    with contextlib.suppress(AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _answer(connection: Connection, sending: threading.Lock, number: int, done: Future[Compiled],
            ) -> None:
    if done.cancelled():
        return
    error = done.exception()
    with sending, contextlib.suppress(OSError):  # the other side has ended
        connection.send((number, done.result() if error is None else None, repr(error)))


def _without_weft() -> None:
    """Let texts import only the prelude: stand-ins for its packages, which would need torch."""
    root = Path(__file__).parents[1]
    for name in ("weft", "weft.codegen", "weft.codegen.triton"):
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package


def _import_triton() -> None:
    """Import once what every worker would import, and replace Triton's key by a cheap one.

    Triton's key hashes its own libraries (half a second), for a cache that outlives the process;
    ours does not.
    """
    import triton.backends.nvidia.compiler
    import triton.compiler.compiler
    import triton.runtime.cache

    importlib.import_module("weft.codegen.triton.prelude")
    for module in (triton.compiler.compiler, triton.runtime.cache):
        if hasattr(module, "triton_key"):
            module.triton_key = lambda: triton.__version__


if __name__ == "__main__":
    # Workers find `compile_text` under the name that they were forked with.
    serve(Connection(int(sys.argv[1])))
