"""The C extensions (the rest of the project is described in pyproject.toml).

    python setup.py build_ext --inplace      # src/weft/_frame*.so and its siblings
"""

from pathlib import Path

from setuptools import Extension, setup

WARNINGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"]


def extension(name: str, *sources: str) -> Extension:
    """An extension of the given C files; the headers of csrc/ are its dependencies."""
    return Extension(
        name,
        sources=list(sources),
        depends=[str(path) for path in sorted(Path("csrc").rglob("*.h"))],
        include_dirs=["csrc"],
        libraries=["dl"],
        extra_compile_args=WARNINGS,
    )


setup(
    ext_modules=[
        extension(
            "weft._frame",
            "csrc/module.c",
            "csrc/tensor_access.c",
            "csrc/storage_overlap.c",
            "csrc/global_state.c",
            "csrc/guard_checks.c",
            "csrc/shape_program.c",
            "csrc/tree_checks.c",
            "csrc/guards.c",
            "csrc/dict_versions.c",
            "csrc/guard_memo.c",
            "csrc/code_cache.c",
            "csrc/compiled_function.c",
            "csrc/tail_call.c",
            "csrc/frame_objects.c",
            "csrc/frame_hook.c",
        ),
        extension("weft._cuda", "csrc/cuda_driver.c"),
        extension("weft._cpu", "csrc/cpu_launcher.c"),
        extension("weft._calls", "csrc/tensor_calls.c"),
        extension("weft._mincut", "csrc/min_cut.c"),
    ]
)
