"""Compiles Triton source text to GPU binaries, through the disk cache.

Place in the pipeline: `codegen/triton/target.py` hands over texts; `cuda_kernel.py` loads the
results. Triton is imported only on a cache miss; a warm start reads the binary and never pays for
that import.

    binary = build([request])[0]
    binary.image[:4]   # b'\\x7fELF'
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Final, final

from weft.config import config
from weft.diagnostics import events
from weft.errors import MissingDependency
from weft.runtime.disk_cache import DiskCache

FORMAT: Final = 1
POINTER_ALIGNMENT: Final = 16


@final
@dataclass(frozen=True)
class TritonRequest:
    """One kernel to compile: text, entry point, parameter types, warps, target (e.g. 90),
    alignment.

    multiples: positions of integer parameters, and the powers of two that divide them.
    """

    text: str
    name: str
    signature: tuple[str, ...]
    num_warps: int
    arch: int
    aligned: bool = True
    multiples: tuple[tuple[int, int], ...] = ()

    def key(self) -> str:
        """Content hash: everything that the binary depends on."""
        parts = (
            FORMAT, triton_version(), prelude_text(), self.text, self.name, self.signature,
            self.num_warps, self.arch, self.aligned, self.multiples,
        )  # fmt: skip
        return hashlib.sha256(repr(parts).encode()).hexdigest()


@final
@dataclass(frozen=True)
class GpuBinary:
    """A compiled kernel: the cubin image, its entry point, dynamic shared memory (bytes), warps."""

    image: bytes
    entry: str
    shared: int
    num_warps: int

    def pack(self) -> bytes:
        """As one byte string for the disk cache: a JSON line, then the image."""
        head = {"entry": self.entry, "shared": self.shared, "num_warps": self.num_warps}
        return json.dumps(head).encode() + b"\n" + self.image

    @staticmethod
    def unpack(data: bytes) -> GpuBinary:
        """The inverse of `pack`."""
        head, _, image = data.partition(b"\n")
        return GpuBinary(image, **json.loads(head))


@cache
def triton_version() -> str:
    """The installed Triton's version; "" without Triton. Does not import it."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""


@cache
def prelude_text() -> str:
    """The device functions that every kernel imports (part of the cache key)."""
    path = Path(__file__).parents[1] / "codegen" / "triton" / "prelude.py"
    return path.read_text()


def build(requests: Sequence[TritonRequest]) -> list[GpuBinary]:
    """Compile all requests, in parallel, each distinct one once; results in order."""
    disk = DiskCache("triton")
    distinct = {request.key(): request for request in requests}
    found = {key: disk.get(key) for key in distinct}
    missing = [(key, distinct[key]) for key, data in found.items() if data is None]
    binaries = {key: GpuBinary.unpack(data) for key, data in found.items() if data is not None}
    if missing:
        if not triton_version():
            raise MissingDependency("triton", "generate GPU kernels", "pip install triton")
        with events.stage("triton_compile"), ThreadPoolExecutor(config.compile_jobs or 8) as pool:
            compiled = pool.map(lambda item: _compile(item[1]), missing)
            for (key, _), binary in zip(missing, compiled, strict=True):
                disk.put(key, binary.pack())
                binaries[key] = binary
    return [binaries[request.key()] for request in requests]


def _compile(request: TritonRequest) -> GpuBinary:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = _load(request.text, f"weft_triton_{request.key()[:16]}")
    multiples = list(request.multiples)
    if request.aligned:
        multiples += [(i, POINTER_ALIGNMENT) for i, kind in enumerate(request.signature)
                      if kind.startswith("*")]  # fmt: skip
    attributes: dict[tuple[int, ...], Any] = {(i,): [["tt.divisibility", n]] for i, n in multiples}
    function = getattr(module, request.name)
    signature = dict(zip(function.arg_names, request.signature, strict=True))
    source = ASTSource(fn=function, signature=signature, constexprs={}, attrs=attributes)
    options = {"num_warps": request.num_warps, "debug": "device_assert" in request.text,
               "sanitize_overflow": False}  # fmt: skip
    compiled = triton.compile(source, target=GPUTarget("cuda", request.arch, 32), options=options)
    meta = compiled.metadata
    return GpuBinary(compiled.asm["cubin"], meta.name, meta.shared, meta.num_warps)


def _load(text: str, name: str) -> ModuleType:
    """Import the text as a module: Triton reads a function's source from its file."""
    known = sys.modules.get(name)
    if known is not None:
        return known
    path = Path(tempfile.mkdtemp(prefix="weft-triton-")) / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
