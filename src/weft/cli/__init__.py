"""The command line: ``weft doctor | demo | explain | bench | cache | report``.

Place in the pipeline: above everything; one file per command that is more than a few lines::

    weft doctor                     # what works here, what is missing, what to do
    weft demo                       # compile real models and show what happened
    weft explain train.py -- --lr 1 # run a program and tell what weft did in it
    weft bench train.py             # run it, then measure what it compiled against eager
    weft report last                # the latest failure that ended in an eager run
"""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from weft.cli import bench, cache, demo, doctor, program, report
from weft.errors import WeftError
from weft.version import __version__

app = typer.Typer(
    name="weft", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="weft compiles PyTorch programs just in time.")
app.add_typer(cache.app, name="cache", help="The disk cache of compiled kernels.")


PIPE_WIDTH = 110
"""Columns of tables that do not go to a terminal."""


def console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for the tables in a pipe."""
    terminal = Console()
    return terminal if terminal.is_terminal else Console(width=PIPE_WIDTH)


def _print_version(wanted: bool) -> None:
    if wanted:
        torch_version = importlib.metadata.version("torch")
        Console(soft_wrap=True, highlight=False).print(
            f"weft {__version__} (PyTorch {torch_version}, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Print the versions.")] = False,
) -> None:
    """weft compiles PyTorch programs just in time."""


@app.command("doctor")
def doctor_command() -> None:
    """Say what works on this machine, what is missing, and what to do about it."""
    raise typer.Exit(0 if doctor.examine(console()) else 1)


@app.command("demo")
def demo_command(
    only: Annotated[list[str] | None, typer.Argument(help="Models: " + ", ".join(demo.MODELS))]
    = None,
    quick: Annotated[bool, typer.Option(help="Fewer rounds of measurement.")] = False,
) -> None:
    """Compile real models; show graphs, kernels, times, speed against eager, and the error."""
    raise typer.Exit(0 if demo.run(console(), only or list(demo.MODELS), quick=quick) else 1)


@app.command("explain", context_settings={"allow_extra_args": True,
                                          "ignore_unknown_options": True})
def explain_command(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A Python program.")],
) -> None:
    """Run a program that uses weft.compile and tell what was captured and compiled."""
    raise typer.Exit(program.explain(console(), file, context.args))


@app.command("report")
def report_command(
    name: Annotated[str | None, typer.Argument(
        help="A report's name or how it begins, or `last`; without it they are listed.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all reports.")] = False,
) -> None:
    """List or print the reports of failures inside weft that ended in an eager run."""
    raise typer.Exit(0 if report.run(console(), name, clear=clear) else 1)


@app.command("bench", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench_command(
    context: typer.Context,
    against: Annotated[list[str] | None, typer.Option(
        help="Of a program: eager (the default), torch.compile.")] = None,
    rounds: Annotated[int, typer.Option(help="How often each is measured.")] = 20,
) -> None:
    """Measure each function that FILE.py compiles; without a file, run the repository's benchmarks,
    whose runner gets the arguments."""
    program_file = Path(context.args[0]) if context.args else None
    if program_file is not None and program_file.suffix == ".py":
        raise typer.Exit(bench.run(console(), program_file, context.args[1:], against or ["eager"],
                                   rounds))
    root = Path(__file__).resolve().parents[3]
    if not (root / "benchmarks" / "__main__.py").exists():
        Console(stderr=True).print(
            "the benchmarks are part of weft's repository, not of the installed package: "
            "clone it and run `make bench`; `weft bench FILE.py` measures a program")
        raise typer.Exit(2)
    command = [sys.executable, "-m", "benchmarks", *context.args, "--rounds", str(rounds)]
    raise typer.Exit(subprocess.run(command, cwd=root, check=False).returncode)


def main() -> None:
    """The console script: weft's own errors as text, without a traceback."""
    try:
        app()
    except WeftError as error:
        text = Text.assemble((type(error).__name__, "bold red"), ": ", str(error))
        Console(stderr=True, highlight=False, soft_wrap=True).print(text)
        sys.exit(2)
