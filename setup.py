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
            "csrc/frame/module.c",
            "csrc/guards/tensor_access.c",
            "csrc/guards/storage_overlap.c",
            "csrc/guards/global_state.c",
            "csrc/guards/class_checks.c",
            "csrc/guards/guard_checks.c",
            "csrc/guards/shape_program.c",
            "csrc/guards/tree_checks.c",
            "csrc/guards/guards.c",
            "csrc/guards/dict_versions.c",
            "csrc/guards/guard_memo.c",
            "csrc/frame/code_cache.c",
            "csrc/frame/on_miss.c",
            "csrc/frame/compiled_function.c",
            "csrc/frame/tail_call.c",
            "csrc/frame/frame_objects.c",
            "csrc/frame/torch_stance.c",
            "csrc/frame/frame_hook.c",
        ),
        extension("weft._cuda", "csrc/cuda_driver.c"),
        extension("weft._cpu", "csrc/cpu_launcher.c"),
        extension("weft._calls", "csrc/tensor_calls.c"),
        extension("weft._held", "csrc/held_tensors.c"),
        extension("weft._mincut", "csrc/min_cut.c"),
        extension("weft._watched", "csrc/watched_storages.c"),
    ]
)
