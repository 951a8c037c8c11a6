"""Compiles Triton source text to GPU binaries, through the disk cache.

Place in the pipeline: `codegen/triton/target.py` hands over texts; `cuda_kernel.py` loads the
results. What the cache lacks is compiled in other processes (`triton_pool.py`), so that this one
never imports Triton.

    binary = build([request])[0]
    binary.image[:4]   # b'\\x7fELF'
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final, final

from weft.diagnostics import events
from weft.errors import MissingDependency
from weft.folders import process_folder
from weft.interrupts import wait_for
from weft.runtime.disk_cache import DiskCache
from weft.runtime.triton_pool import ServerGone, pool
from weft.runtime.triton_worker import compile_text
from weft.storable import storable

FORMAT: Final = 2
POINTER_ALIGNMENT: Final = 16


@storable
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
        )
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


def get_ready() -> None:
    """Start importing Triton in the background, unless the cache may suffice."""
    if triton_version() and not DiskCache("triton").directory.exists():
        with contextlib.suppress(OSError):
            pool()


def build(requests: Sequence[TritonRequest]) -> list[GpuBinary]:
    """Compile all requests, in parallel, each distinct one once; results in order."""
    disk = DiskCache("triton")
    distinct = {request.key(): request for request in requests}
    cached = {key: disk.get(key) for key in distinct}
    missing = [(key, distinct[key]) for key, data in cached.items() if data is None]
    binaries = {key: GpuBinary.unpack(data) for key, data in cached.items() if data is not None}
    if missing:
        if not triton_version():
            raise MissingDependency("triton", "generate GPU kernels", "pip install triton")
        with events.stage("triton_compile"):
            compiled = _compile_all([request for _, request in missing])
            for (key, _), binary in zip(missing, compiled, strict=True):
                disk.put(key, binary.pack())
                binaries[key] = binary
    return [binaries[request.key()] for request in requests]


def compile_here(request: TritonRequest) -> GpuBinary:
    """Compile one kernel in this process."""
    return GpuBinary(*compile_text(*_arguments(request)))


def _compile_all(requests: Sequence[TritonRequest]) -> Iterator[GpuBinary]:
    """Compile in parallel processes; in this one, if there are none or one has failed."""
    try:
        server = pool()
    except OSError:
        yield from map(compile_here, requests)
        return
    futures = [server.submit(_arguments(request)) for request in requests]
    for request, future in zip(requests, futures, strict=True):
        try:
            yield GpuBinary(*wait_for(future))
        except ServerGone:
            yield compile_here(request)


def _arguments(request: TritonRequest) -> tuple[Any, ...]:
    """The arguments of `compile_text` for a request."""
    multiples = list(request.multiples)
    if request.aligned:
        multiples += [(i, POINTER_ALIGNMENT) for i, kind in enumerate(request.signature)
                      if kind.startswith("*")]
    module_name = f"weft_triton_{request.key()[:16]}"
    return (request.text, module_name, request.name, request.signature, request.num_warps,
            request.arch, multiples, str(process_folder()))
