"""Puts what programs of docs/using print behind them, where a page asks for it.

    python -m tools.screens               # all pages
    python -m tools.screens --only debug  # pages whose names have "debug"

A page asks by a marker below a program, above the text that is replaced::

    <!-- printed, `python -m tools.screens` -->
    ```text
    ...
    ```

Each program runs as prog.py in a process of its own, with empty caches.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

PAGES: Final = Path(__file__).parent.parent / "docs" / "using"
SCREEN: Final = re.compile(
    r"(```python\n(?P<program>(?:(?!```).)*)```\n\n"
    r"<!-- printed, `python -m tools\.screens` -->\n```text\n)(?:(?!```).)*(```\n)", re.DOTALL)
_WIDTH: Final = 118


def printed(program: str) -> str:
    """What a program prints, without spaces at line ends, as wide as a page; raises
    CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "prog.py").write_text(program)
        environment = os.environ | {"WEFT_CACHE_DIR": f"{folder}/cache", "COLUMNS": str(_WIDTH)}
        done = subprocess.run([sys.executable, "prog.py"], cwd=folder, env=environment,
                              stdout=subprocess.PIPE, text=True, check=True)
    text = done.stdout.replace(f"{Path(folder).resolve()}/", "").strip("\n")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def with_screens(page: str, run: Callable[[str], str] = printed) -> str:
    """The page with the texts that its programs print now."""
    return SCREEN.sub(lambda m: f"{m[1]}{run(m['program'])}{m[3]}", page)


def main() -> None:
    """Write the pages that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tools.screens")
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    for file in sorted(PAGES.glob(f"*{only}*.md")):
        page = file.read_text()
        screens = with_screens(page)
        if screens != page:
            file.write_text(screens)
            print(f"{file.name}: written")


if __name__ == "__main__":
    main()
