"""Installs weft's packages, each into an environment of its own that has no weft, and tries them.

Place in the pipeline: run by `make test-package`, in continuous integration too::

    python -m tools.try_package dist/weft-0.1.0-cp311-cp311-linux_x86_64.whl dist/weft-0.1.0.tar.gz

PyTorch and the other dependencies are those of the environment that runs this (a link to its
packages, so that nothing is downloaded); weft itself is only the installed one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

_PROGRAM = """
import pathlib, sys, torch, weft
assert pathlib.Path(weft.__file__).is_relative_to(sys.prefix), weft.__file__
f = weft.compile(lambda x: x.relu() + x.sigmoid())
x = torch.randn(100)
torch.testing.assert_close(f(x), x.relu() + x.sigmoid())
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
compiled, optimizer = weft.compile(model), torch.optim.AdamW(model.parameters(), lr=0.1)
batch, losses = torch.randn(32, 4), []
for _ in range(5):
    loss = (compiled(batch) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
assert weft.stats()["graphs"] == 2 and weft.stats()["kernels"] > 1, weft.stats()
print("a compiled function, and 5 steps of training: loss", losses[0], "to", losses[-1])
"""


def try_package(package: Path, folder: Path) -> None:
    """Install the package below a folder and run it; raises CalledProcessError."""
    home = folder / package.name
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    own = sysconfig.get_paths(vars={"base": str(home), "platbase": str(home)})["purelib"]
    (Path(own) / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"WEFT_STRICT": "1", "WEFT_CACHE_DIR": str(home / "cache")}
    for command in (
        [python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"],  # for the linked one
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--ignore-installed", package.resolve()],
        [home / "bin" / "weft", "--version"],
        [home / "bin" / "weft", "doctor"],
        [python, "-c", _PROGRAM],
    ):
        subprocess.run(list(map(str, command)), cwd=folder, env=environment, check=True)


def main(packages: list[str]) -> None:
    """Try each package."""
    for package in packages:
        print(f"== {package} ==", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            try_package(Path(package), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
