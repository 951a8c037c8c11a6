"""From scheduled kernels to callables: the C++ target's entry point.

Place in the pipeline: the last step of `codegen` on CPUs; `runtime/` compiles and loads::

    add_relu, softmax = compile_kernels([kernel_a, kernel_b])
    add_relu(x, y, out)            # buffers in the kernel's order, then its sizes
"""

from __future__ import annotations

from collections.abc import Sequence

from weft._cpu import Kernel as CompiledKernel
from weft.codegen.cpp.emit import emit
from weft.codegen.ir.kernel_form import Form, form
from weft.codegen.ir.loop_ir import Kernel
from weft.diagnostics import events
from weft.runtime.compile_pool import submit
from weft.runtime.cpp_build import toolchain
from weft.runtime.launcher import kernel_of


def compile_kernels(
    kernels: Sequence[Kernel], _device: object = None, _hints: object = None
) -> list[CompiledKernel]:
    """Compile all kernels in parallel, equal ones once; results in order.

    Device and hints are for other targets; here one text is good for all. Raises CompilerNotFound
    without a C++ compiler.
    """
    sources = _sources(kernels)
    started = submit(sources)
    if events.watched():
        for kernel, source in zip(kernels, sources, strict=True):
            events.record("output_code", name=kernel.name, source=_listing(kernel, source))
    with events.stage("cpp_compile"):
        for compiling in started:
            compiling.wait()
    return [
        kernel_of(done, buffers=len(k.buffers), sizes=len(k.sizes), name=k.name)
        for done, k in zip(started, kernels, strict=True)
    ]


def _listing(kernel: Kernel, source: str) -> str:
    """The text for a reader: what each buffer is, and which lines it computes."""
    names = ", ".join(f"b{i}: {b.name}" for i, b in enumerate(kernel.buffers))
    origins = "".join(f"// {origin}\n" for origin in kernel.origins)
    return f"// {kernel.name}({names})\n{origins}{source}"


def _sources(kernels: Sequence[Kernel]) -> list[str]:
    """The texts of all kernels; one of each form is written."""
    forms = [form(kernel) for kernel in kernels]
    texts: dict[Form, str] = {}
    for key, kernel in zip(forms, kernels, strict=True):
        if key not in texts:
            texts[key] = source_of(kernel)
    return [texts[key] for key in forms]


def source_of(kernel: Kernel) -> str:
    """The C++ text of a kernel."""
    return emit(kernel, toolchain().vector_bytes)
