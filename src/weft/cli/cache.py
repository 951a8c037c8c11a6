"""``weft cache info | list | show KEY | save FILE | load FILE | verify | clear``.

Place in the pipeline: command line. The disk cache of kernels and compiled entries; only files in
the cache's own layout are counted, taken along or removed.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from weft import folders
from weft.capture.stored.selection import entry_files, files_of
from weft.config import config
from weft.diagnostics import failures, trace_files
from weft.quoting import one_line, printable
from weft.runtime import cache_archive, disk_cache
from weft.runtime.disk_cache import DiskCache
from weft.runtime.remote_cache import shown
from weft.runtime.sealing import SECRET, signs
from weft.store.identity import Data
from weft.store.packing import unpacked

app = typer.Typer(no_args_is_help=True)

_SHOWN = frozenset({"name", "guards", "text"})
"""Parts of an entry that are shown."""
_PACKED = frozenset({"entries", "backwards"})
"""Kinds of files that are data of the store."""


def _print(text: str) -> None:
    Console(soft_wrap=True, highlight=False, markup=False).print(text)


@app.command("info")
def info() -> None:
    """Where the cache is, how many files and how much it holds."""
    files = disk_cache.files()
    _print(f"{folders.cache_root()}: {len(files)} files, {disk_cache.total_size() / 2**20:.1f} MiB "
           f"(at most {config.cache_size_mb} MiB: WEFT_CACHE_SIZE_MB)")
    for kind, count in sorted(Counter(file.parent.parent.name for file in files).items()):
        _print(f"  {kind}: {count}")
    if config.cache_remote:
        _print(f"  further files at {one_line(shown(config.cache_remote))} "
               f"({'signed' if signs() else 'not signed'}: {SECRET})")


@app.command("list")
def list_entries() -> None:
    """The compiled entries: the first digits of the key, the function, how many guards it has."""
    for file in entry_files():
        entry = _entry(file)
        if entry is not None:
            _print(f"{file.name[:12]}  {file.stat().st_size:8d} bytes  "
                   f"{len(entry['guards']):4d} guards  {one_line(entry['name'])}")


@app.command("show")
def show(key: str) -> None:
    """One compiled entry, by the first digits of its key: guards and replacement."""
    for entry in filter(None, map(_entry, entry_files([key]))):
        _print(one_line(entry["name"]))
        _print("\n".join(f"  {one_line(guard)}" for guard in entry["guards"]))
        _print(printable(entry["text"]))
        return
    _print(f"there is no entry {one_line(key)}")
    raise typer.Exit(1)


def _entry(file: Path) -> Data:
    """What is in an entry's file; None if it is none."""
    entry = _unpacked("entries", file)
    return entry if type(entry) is dict and _SHOWN <= entry.keys() else None


def _unpacked(kind: str, file: Path) -> Data:
    content = DiskCache(kind).appeared(file.name)
    try:
        return None if content is None else unpacked(content)
    except ValueError:
        return None


@app.command("save")
def save(
    file: Annotated[Path, typer.Argument(help="The archive to write.", dir_okay=False)],
    keys: Annotated[list[str] | None, typer.Argument(
        metavar="[KEY]...", help="First digits of entries; without them, everything.")] = None,
) -> None:
    """Write one file with compiled entries and kernels, for another machine of the same kind."""
    chosen = files_of(keys) if keys else disk_cache.files()
    count = cache_archive.save(file, chosen)
    _print(f"{one_line(file)}: {count} files, {file.stat().st_size / 2**20:.1f} MiB"
           f"{', signed' if signs() else ''}")
    if count == 0:
        raise typer.Exit(1)


@app.command("load")
def load(
    file: Annotated[Path, typer.Argument(help="An archive of `save` that you trust.", exists=True)],
) -> None:
    """Take what is in an archive into the cache. Programs run code of it: load only what you
    trust, or set WEFT_CACHE_KEY where it is saved and loaded."""
    _print(f"{cache_archive.load(file)} files loaded into {folders.cache_root()}")


@app.command("verify")
def verify() -> None:
    """Compare every file with its checksum; what is damaged is named and removed."""
    files = disk_cache.files()
    bad = [(file, problem) for file in files if (problem := _problem_of(file))]
    for file, problem in bad:
        _print(f"{one_line(file)} {problem}: removed")
        folders.remove(file)
    _print(f"{len(files) - len(bad)} files are as they were written, {len(bad)} were not")
    if bad:
        raise typer.Exit(1)


def _problem_of(file: Path) -> str:
    problem = disk_cache.problem_of(file)
    kind = file.parent.parent.name
    if not problem and kind in _PACKED and _unpacked(kind, file) is None:
        return "is no entry"
    return problem


@app.command("clear")
def clear() -> None:
    """Remove every compiled kernel, report and trace, and what killed processes left behind."""
    removed = disk_cache.clear()
    reports = failures.clear_reports()
    written = trace_files.traces()
    folders.keep_newest(written, 0, 0)
    _print(f"removed {removed} files, {reports} reports and {len(written)} traces from "
           f"{folders.cache_root()}")
