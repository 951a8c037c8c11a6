"""Every file under examples/ runs, and so do the examples in the README."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

import weft
from weft import cli
from weft.errors import CacheWarning
from weft.runtime import remote_cache
from weft.runtime.sealing import SECRET

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


class _Shell:
    """Runs the commands of the page on caches in this process: starting Python takes seconds."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        monkeypatch.chdir(folder)

    def run(self, script, capsys):
        """What each line prints."""
        program, rest = re.fullmatch(r"cat > program.py <<'END'\n(.*?)END\n(.*)", script,
                                     re.DOTALL).groups()
        (self.folder / "program.py").write_text(program)
        for line in filter(None, rest.splitlines()):
            command, _, comment = line.partition(" #")
            words = command.replace("$PWD", str(self.folder)).split()
            with self.monkeypatch.context() as scope:
                while words and "=" in words[0]:
                    self.set(scope, words.pop(0))
                if words[:1] == ["export"]:
                    for word in words[1:]:
                        self.set(self.monkeypatch, word)
                else:
                    {"weft": self.weft, "python": self.python}[words[0]](words[1:])
            yield comment, capsys.readouterr().out

    def set(self, patch, assignment):
        name, _, value = assignment.partition("=")
        setting = name.removeprefix("WEFT_").lower()
        if name == SECRET:
            patch.setenv(name, value)
        else:
            patch.setattr(weft.config, setting, value == "1" if value == "1" else value)

    def weft(self, arguments):
        result = CliRunner().invoke(cli.app, arguments)
        assert result.exit_code == 0, result.output

    def python(self, arguments):
        weft.reset()
        file = self.folder / arguments[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)  # what is not signed yet
            exec(compile(file.read_text(), str(file), "exec"), {"__name__": "__main__"})
        assert remote_cache.flush()


def test_the_page_on_caches_prints_what_it_says(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "using" / "caches.md").read_text()
    script = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    ran = 0
    for comment, printed in _Shell(tmp_path, monkeypatch).run(script, capsys):
        if "{" in comment:
            assert printed.strip() == comment.strip()
            ran += 1
    assert ran == 7
    weft.reset()


def test_every_example_is_in_the_readme():
    text = (EXAMPLES[0].parent / "README.md").read_text()
    assert all(f"`{path.name}`" in text for path in EXAMPLES)
