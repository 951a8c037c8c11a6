"""``weft cache info | list | show KEY | clear``: the disk cache of kernels and compiled entries.

Place in the pipeline: command line. Only files in the cache's own layout are counted or removed.
"""

from __future__ import annotations

import typer
from rich.console import Console

from weft import folders
from weft.capture.stored.lookup import disk, unpacked
from weft.config import config
from weft.diagnostics import failures, trace_files
from weft.quoting import one_line, printable
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


@app.command("list")
def list_entries() -> None:
    """The compiled entries: the first digits of the key, the function, how many guards it has."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for file in sorted(f for f in disk_cache.files() if f.parent.parent.name == "entries"):
        content = disk().appeared(file.name)
        if content is not None:
            entry = unpacked(content)
            console.print(f"{file.name[:12]}  {len(content):8d} bytes  "
                          f"{len(entry['guards']):4d} guards  {one_line(entry['name'])}")


@app.command("show")
def show(key: str) -> None:
    """One compiled entry, by the first digits of its key: guards and replacement."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for file in disk_cache.files():
        content = disk().appeared(file.name) if file.parent.parent.name == "entries" and (
            file.name.startswith(key)) else None
        if content is not None:
            entry = unpacked(content)
            console.print(one_line(entry["name"]))
            console.print("\n".join(f"  {one_line(guard)}" for guard in entry["guards"]))
            console.print(printable(entry["text"]))
            return
    console.print(f"there is no entry {one_line(key)}")
    raise typer.Exit(1)


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
