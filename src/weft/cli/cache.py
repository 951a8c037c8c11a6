"""``weft cache info | clear``: the disk cache of compiled kernels.

Place in the pipeline: command line. Only files in the cache's own layout are counted or removed.
"""

from __future__ import annotations

import typer
from rich.console import Console

from weft import folders
from weft.config import config
from weft.diagnostics import failures, trace_files
from weft.runtime import disk_cache

app = typer.Typer(no_args_is_help=True)


@app.command("info")
def info() -> None:
    """Where the cache is, how many files and how much it holds."""
    files = disk_cache.files()
    size = sum(f.stat().st_size for f in files)
    Console(soft_wrap=True, highlight=False, markup=False).print(
        f"{folders.cache_root()}: {len(files)} files, {size / 2**20:.1f} MiB "
        f"(at most {config.cache_size_mb} MiB: WEFT_CACHE_SIZE_MB)")


@app.command("clear")
def clear() -> None:
    """Remove every compiled kernel, report and trace, and what killed processes left behind."""
    removed = disk_cache.clear()
    reports = failures.clear_reports()
    written = trace_files.traces()
    folders.keep_newest(written, 0, 0)
    Console(soft_wrap=True, highlight=False, markup=False).print(
        f"removed {removed} files, {reports} reports and {len(written)} traces from "
        f"{folders.cache_root()}")
