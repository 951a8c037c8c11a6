import ast
import functools
import re

import pytest

from tools import size_budget, torch_boundary


def _complaints(code, path="codegen/x.py"):
    return [c.split(": ", 1)[1] for c in torch_boundary.complaints(path, ast.parse(code))]


def test_torch_compile_stack_is_refused_everywhere():
    for code in ("import torch._dynamo", "from torch._inductor import config",
                 "import torch\ntorch.compile(f)", "from torch import compile",
                 "from torch.fx.experimental.symbolic_shapes import ShapeEnv",
                 "import torch\ntorch.jit.script(f)"):
        assert any("torch.compile's own stack" in c for c in _complaints(code)), code
        assert _complaints(code, "_torch.py"), code


def test_private_torch_only_in_the_boundary_module():
    code = "from torch._subclasses.fake_tensor import FakeTensor"
    assert "not public" in _complaints(code)[0]
    assert _complaints(code, "_torch.py") == []
    assert _complaints("import torch\ntorch._C._nope()")
    assert _complaints("import torch\ntorch.ops.aten._softmax.default") == []
    assert _complaints("import torch\ntorch.Tensor.__add__") == []


def test_function_level_imports_only_of_optional_packages():
    assert _complaints("def f():\n    import json") == ["import of json inside a function"]
    assert _complaints("def f():\n    import triton.language as tl") == []


def test_size_budget_counts_functions_without_docstrings():
    body = "\n".join("    x = 1" for _ in range(101))
    assert list(size_budget.function_excess("a.py", ast.parse(f"def f():\n{body}")))
    text = '    """' + "\n" * 150 + '    """\n    return 1'
    assert not list(size_budget.function_excess("a.py", ast.parse(f"def f():\n{text}")))
    assert size_budget.file_excess("a.py", 801)
    assert not size_budget.file_excess("a.py", 800)


def test_cycles_are_found():
    assert size_budget.cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert size_budget.cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


_ROOT = size_budget.ROOT


@functools.cache
def _files():
    return [f"/{path.relative_to(_ROOT)}" for folder in ("src", "csrc", "tests", "tools")
            for path in (_ROOT / folder).rglob("*.*")]


def _named_files(text):
    """Files of weft that a text names, and those of them that do not exist."""
    named = set(re.findall(r"`([\w/]+\.(?:py|c|h))[`:]", text))
    return named, {name for name in named
                   if not any(path.endswith(f"/{name}") for path in _files())}


def test_files_that_docstrings_name_exist():
    for path in (_ROOT / "src" / "weft").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                _, missing = _named_files(ast.get_docstring(node) or "")
                assert not missing, (path, missing)


@pytest.mark.parametrize("page", list(size_budget.pages()), ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page):
    text = page.read_text()
    named, missing = _named_files(text)
    links = set(re.findall(r"\]\(([\w/.-]+)\)", text))
    missing |= {link for link in links if not (page.parent / link).exists()}
    assert named and not missing


def test_long_lines_and_paragraphs_of_pages_are_found():
    paragraph = "\n".join(["- one", *["  more"] * 5])
    assert list(size_budget.page_excess("a.md", paragraph))
    assert not list(size_budget.page_excess("a.md", paragraph.replace("more", "- item")))
    assert list(size_budget.page_excess("a.md", "x" * 121))
    assert not list(size_budget.page_excess("a.md", f"```\n{paragraph}\n```\n| {'x' * 140} |"))


@functools.cache
def _words_of_the_source():
    folders = (size_budget.ROOT / name for name in ("src", "csrc", "tools", "benchmarks"))
    files = [p for folder in folders for p in folder.rglob("*.*")
             if p.suffix in (".py", ".pyi", ".c", ".h")]
    return {word for p in files for word in (*re.findall(r"\w+", p.read_text()), p.stem)}


@pytest.mark.parametrize("page", list(size_budget.pages()), ids=lambda page: page.stem)
def test_names_that_a_page_uses_exist(page):
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    used = {word for code in re.findall(r"`([^`]*)`", prose) if "/" not in code
            for word in re.findall(r"\b_{0,2}[a-z]\w*_\w+|\b[A-Z]\w*[a-z][A-Z]\w*", code)}
    assert not used - _words_of_the_source() - {"TheType"}
