"""``weft cache info | clear``: the disk cache of compiled kernels.

Place in the pipeline: command line. Only files in the cache's own layout are counted or removed.
"""

from __future__ import annotations

import typer
from rich.console import Console

from weft.config import config
from weft.runtime import disk_cache

app = typer.Typer(no_args_is_help=True)


@app.command("info")
def info() -> None:
    """Where the cache is, how many files and how much it holds."""
    files = disk_cache.files()
    size = sum(f.stat().st_size for f in files)
    Console(soft_wrap=True, highlight=False).print(
        f"{config.cache_path()}: {len(files)} files, {size / 2**20:.1f} MiB "
        f"(at most {config.cache_size_mb} MiB: WEFT_CACHE_SIZE_MB)")


@app.command("clear")
def clear() -> None:
    """Remove every compiled kernel."""
    removed = disk_cache.clear()
    Console(soft_wrap=True, highlight=False).print(
        f"removed {removed} files from {config.cache_path()}")
