"""The compiler driver and the launcher."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from tests.codegen_cpp.checking import builder, flat
from weft.codegen.cpp import compile_kernels
from weft.codegen.ir.loop_ir import Kernel
from weft.config import config
from weft.errors import CompilationFailed, CompilerNotFound
from weft.folders import process_folder
from weft.runtime import compile_pool, cpp_build, disk_cache


def double_kernel(name: str = "double", buffer: str = "x") -> Kernel:
    b = builder([40])
    x = b.load(buffer, "f32", flat(b.outer))
    b.store("o", "f32", flat(b.outer), b.op("add", x, x))
    return b.build(name)


def test_missing_compiler_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    cpp_build._toolchain.cache_clear()
    try:
        with pytest.raises(CompilerNotFound, match=r"install g\+\+"):
            cpp_build.toolchain()
        assert not cpp_build.is_available()
    finally:
        cpp_build._toolchain.cache_clear()


def test_refused_source_shows_the_compilers_message() -> None:
    with pytest.raises(CompilationFailed, match="expected"):
        compile_pool.submit(["int f( {"])[0].wait()


def test_a_kernel_file_corrupted_on_disk_is_recompiled(tmp_path: Path) -> None:
    source = 'extern "C" __attribute__((visibility("default"))) int f() { return 9; }\n'
    with config.patch(cache_dir=str(tmp_path)):
        compile_pool.submit([source])[0].wait()
        (file,) = disk_cache.files()
        file.write_bytes(b"garbage")
        compile_pool._running.clear()
        assert compile_pool.submit([source])[0].wait().library().f() == 9
        assert file.read_bytes() != b"garbage"


def test_equal_kernels_are_compiled_once() -> None:
    first, second = double_kernel("layer0", "x"), double_kernel("layer1", "h")
    from weft.codegen.cpp import source_of

    assert source_of(first) == source_of(second)
    one, other = compile_pool.submit([source_of(first), source_of(second)])
    assert one == other


EXPORTED = 'extern "C" __attribute__((visibility("default")))'


def test_sources_of_one_translation_unit_are_cached_each(tmp_path: Path) -> None:
    texts = [
        f'#include "core.h"\nstatic int number() {{ return {i}; }}\n'
        f"{EXPORTED} int weft_kernel() {{ return number(); }}\n" for i in range(5)
    ]
    with config.patch(cache_dir=str(tmp_path), compile_jobs=1):
        started = compile_pool.submit(texts)
        libraries = {one.library()._handle for one in started}
        files = disk_cache.files()
        assert (len(files), len({f.stat().st_ino for f in files}), len(libraries)) == (5, 1, 1)
        compile_pool.DiskCache("cpp").path(started[3].key).unlink()
        compile_pool._running.clear()
        again = compile_pool.submit(texts)
        assert [getattr(one.library(), one.symbol)() for one in again] == [*range(5)]


def test_the_first_compiles_of_a_process_at_once_find_torchs_library(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread made a folder for the linker, and one was removed while the linker ran."""
    started, make = Barrier(2), cpp_build.tempfile.mkdtemp

    def folder(**options: Any) -> str:
        made = make(**options)
        started.wait(60)  # both threads have found nothing in the cache
        return made

    place = process_folder()
    monkeypatch.setattr(cpp_build.tempfile, "mkdtemp", folder)
    cpp_build._stand_in.cache_clear()
    with ThreadPoolExecutor(2) as threads:
        folders = list(threads.map(
            cpp_build._stand_in, [cpp_build.toolchain().compiler] * 2, [place] * 2))
    assert all(Path(name, "libtorch_cpu.so").exists() for name in folders)


def test_launcher_reads_views_and_refuses_wrong_counts() -> None:
    run = compile_kernels([double_kernel()])[0]
    storage, o = torch.arange(100.0), torch.zeros(60)
    run(storage[10:50], o[7:47])
    assert torch.equal(o[7:47], 2 * storage[10:50])
    assert not o[:7].any()
    assert not o[47:].any()
    with pytest.raises(TypeError, match="double takes 2 arguments, got 1"):
        run(storage)


def test_kernels_share_torchs_threads() -> None:
    source = (
        '#include "core.h"\nextern "C" __attribute__((visibility("default"))) int f() '
        "{ return weft::omp_get_max_threads(); }\n"
    )
    library = compile_pool.submit([source])[0].wait().library()
    before = torch.get_num_threads()
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            assert library.f() == n
    finally:
        torch.set_num_threads(before)


FORK = """
import os, signal
from weft.runtime.compile_pool import submit
text = 'extern "C" __attribute__((visibility("default"))) int f() { return %d; }'
submit([text % 1])[0].wait()
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(submit([text % 2])[0].wait().library().f() - 2)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_compiles_too(tmp_path: Path) -> None:
    """It has no pool threads of its parent's: submitting to that pool waited for ever."""
    environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", FORK], env=environment, check=True)


def test_the_key_of_a_kernel_does_not_have_the_folder_of_weft(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that came from another checkout had none of the kernels."""
    known = cpp_build.toolchain().key("text")
    copy = tmp_path / "include"
    shutil.copytree(cpp_build.INCLUDE_DIRECTORY, copy)
    monkeypatch.setattr(cpp_build, "INCLUDE_DIRECTORY", copy)
    monkeypatch.setattr(cpp_build, "_toolchain", cpp_build._toolchain.__wrapped__)
    moved = cpp_build.toolchain()
    assert str(copy) in moved.command
    assert moved.key("text") == known != moved.key("other text")
