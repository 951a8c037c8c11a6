"""The programs in the pages for users run as they are printed."""

import re
from pathlib import Path

import pytest

import weft

PAGES = Path(__file__).parents[2] / "docs" / "using"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAMS = {
    f"{page.stem}-{number}": program for page in sorted(PAGES.glob("*.md"))
    for number, program in enumerate(BLOCK.findall(page.read_text()))
}


def test_the_page_for_users_of_torch_compile_has_programs():
    assert "from-torch-compile-0" in PROGRAMS


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_pages_run(name):
    exec(compile(PROGRAMS[name], name, "exec"), {"__name__": name})
    weft.uninstall()
