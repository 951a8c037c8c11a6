"""The programs in the pages for users run as they are printed."""

import re
from pathlib import Path

import pytest

import weft
from tools.screens import SCREEN, with_screens

PAGES = Path(__file__).parents[2] / "docs" / "using"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = {
    f"{page.stem}-{number}": program for page in sorted(PAGES.glob("*.md"))
    for number, program in enumerate(BLOCK.findall(page.read_text()))
}

IMPORTED = re.compile(r"^(?:import|from) .*$", re.MULTILINE)
LIBRARIES = ("accelerate", "diffusers", "gpytorch", "lightning", "pyro", "torch_geometric",
             "transformers")
"""Those of the extra `integrations`: `make test-integrations` has them."""


def test_the_page_for_users_of_torch_compile_has_programs():
    assert "from-torch-compile-0" in PROGRAMS


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if "integrations" not in name])
def test_programs_of_pages_run(name):
    _run(name)


@pytest.mark.usefixtures("fresh")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in PROGRAMS if "integrations" in name])
def test_programs_with_libraries_run(name):
    imported = " ".join(IMPORTED.findall(PROGRAMS[name]))
    for library in LIBRARIES:
        if re.search(rf"\b{library}\b", imported):
            pytest.importorskip(library)
    pytest.importorskip("accelerate")  # the Trainer needs it
    _run(name)


def _run(name):
    try:
        exec(compile(PROGRAMS[name], name, "exec"), {"__name__": name})
    finally:
        weft.uninstall()


def test_pages_show_what_their_programs_print():
    marker = "<!-- printed, `python -m tools.screens` -->"
    programs = "```python\nfirst()\n```\n\n```python\nsecond()\n```"
    page = f"{programs}\n\n{marker}\n```text\nold\n```\nend"
    assert with_screens(page, lambda program: f"of {program}") == page.replace(
        "old\n", "of second()\n")
    for file in PAGES.glob("*.md"):
        text = file.read_text()
        assert text.count(marker) == len(SCREEN.findall(text)), file.name
