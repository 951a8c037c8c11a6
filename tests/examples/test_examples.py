"""Every file under examples/ runs, and so do the examples in the README."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LESS = {"amp_training": ["--steps=6"], "resnet_layout": ["--size=64", "--seconds=0.05"]}
"""Arguments with which an example takes less time and shows the same."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_example_runs(path, tmp_path):
    command = [sys.executable, str(path), *LESS.get(path.stem, ())]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, check=False,
        env={**os.environ, "WEFT_STRICT": "1", "WEFT_CACHE_DIR": str(tmp_path / "cache"),
             "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])})
    assert done.returncode == 0, done.stdout + done.stderr


def test_examples_of_the_readme_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    for block in blocks:
        exec(compile(block, str(ROOT / "README.md"), "exec"), {"__name__": "__main__"})
    assert "0 graph breaks." in capsys.readouterr().out


@pytest.mark.parametrize("page", ["debugging-and-profiling"])
def test_snippets_of_the_guides_run(page, tmp_path):
    text = (ROOT / "docs" / "using" / f"{page}.md").read_text()
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
        file = tmp_path / f"{page}-{number}.py"
        file.write_text(block)  # as a program has it: lines of source are shown
        exec(compile(block, str(file), "exec"), {"__name__": "__main__"})


def test_every_example_is_in_the_readme():
    text = (EXAMPLES[0].parent / "README.md").read_text()
    assert all(f"`{path.name}`" in text for path in EXAMPLES)
