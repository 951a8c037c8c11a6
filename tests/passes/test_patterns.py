"""Patterns: what they find and what not, as texts (`--update` rewrites them) and beside eager."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import weft
from tools import handwritten_forms
from weft.aot.rewrites.replace_patterns import pattern_text
from weft.codegen.lowering import LOWERINGS
from weft.diagnostics import events
from weft.errors import BadValue, PassError
from weft.passes.patterns import Pattern
from weft.passes.standard_patterns import STANDARD_PATTERNS

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    weft.reset()
    with weft.config.patch(strict=True), torch.no_grad():
        yield


def _heads(positions: int = 20, heads: int = 3, size: int = 16) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(2, positions, heads, size).transpose(1, 2) for _ in range(3)]


def replaced(program, *args) -> bool:
    """Whether the pass changed the program, whose results are eager's."""
    with events.collect() as seen:
        result = weft.compile(program)(*args)
    torch.testing.assert_close(result, program(*args), rtol=2e-5, atol=2e-6, equal_nan=True)
    return any(e.kind == "pass" and e.name == "replace_patterns" for e in seen)


# -- weft's own ------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", STANDARD_PATTERNS, ids=lambda p: p.name)
def test_text_of_pattern(pattern: Pattern, request: pytest.FixtureRequest) -> None:
    text = pattern_text(pattern, LOWERINGS.__contains__) + "\n"
    path = GOLDEN / f"pattern.{pattern.name.partition(':')[0].replace(' ', '_')}.txt"
    if request.config.getoption("--update"):
        path.write_text(text)
    assert path.read_text() == text


def test_operators_that_a_pattern_needs_are_in_it() -> None:
    for pattern in STANDARD_PATTERNS:
        text = pattern_text(pattern, LOWERINGS.__contains__).split("# replaces it by")[0]
        assert all(f"torch.ops.{operator}" in text for operator in pattern.needs), pattern.name


def test_attention_with_a_mask_that_hides_whole_rows() -> None:
    def attention(q, k, v, mask):
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(16) + mask, dim=-1)
        return (weights @ v).transpose(1, 2).reshape(2, 20, -1)

    mask = torch.zeros(2, 1, 20, 20)
    mask[0, :, :, 5:], mask[1, 0, 3] = -math.inf, -math.inf
    assert replaced(attention, *_heads(), mask)


def test_attention_whose_weights_are_returned_stays() -> None:
    def attention(q, k, v):
        weights = torch.softmax(q @ k.mT * 0.25, dim=-1)
        return weights, weights @ v

    assert not replaced(attention, *_heads())


def test_softmax_over_another_dimension_is_no_attention() -> None:
    assert not replaced(lambda q, k, v: torch.softmax(q @ k.mT, dim=-2) @ v, *_heads())


def test_keys_that_are_not_transposed_are_no_attention() -> None:
    q, k, v = (t.reshape(2, 3, 16, 16) for t in _heads(16))
    assert not replaced(lambda q, k, v: torch.softmax(q @ k, dim=-1) @ v, q, k, v)


def test_another_constant_is_no_gelu() -> None:
    x = torch.randn(4, 5, 6)
    assert replaced(lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), x)
    assert not replaced(lambda x: 0.5 * x * (1 + torch.erf(x / 1.41)), x)
    assert not replaced(lambda x, y: 0.5 * x * (1 + torch.erf(y / math.sqrt(2))), x, x + 1)


def test_pattern_in_training_stays() -> None:
    x = torch.randn(4, 5, requires_grad=True)
    with torch.enable_grad():
        assert not replaced(lambda x: x * torch.sigmoid(x), x)


def test_symbolic_sizes() -> None:
    def gelu(x):
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2.0)))

    compiled = weft.compile(gelu, dynamic=True)
    with events.collect() as seen:
        for n in (3, 5, 8):
            x = torch.randn(n, 4)
            torch.testing.assert_close(compiled(x), gelu(x))
    assert [e for e in seen if e.kind == "pass" and e.name == "replace_patterns"]


def test_page_of_handwritten_forms_says_what_is_found() -> None:
    page = (Path(__file__).parents[2] / "docs" / "handwritten-forms.md").read_text()
    forms = [form for group in handwritten_forms.FORMS.values() for form in group]
    assert len(forms) == 60
    for form in forms[::6]:
        name = handwritten_forms.pattern_of(form)
        assert f"| `{form.name}` | {form.models} | {name or f'no: {form.why_not}'} |" in page


# -- of users --------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Iterator[list[str]]:
    names: list[str] = []
    yield names
    for name in names:
        weft.unregister_pattern(name)


def _plus_sine(x, y, factor):
    return torch.sin(x) * factor + y


def _marked(x, y, factor):
    return torch.cos(x) * factor - y  # visibly another value


EXAMPLES = [torch.empty(3, 4), torch.empty(3, 4), 2.0]


def test_users_pattern_takes_any_number_and_either_order(registered: list[str]) -> None:
    weft.register_pattern(_plus_sine, _marked, EXAMPLES)
    registered.append("_plus_sine")
    x, y = torch.randn(5), torch.randn(5)
    compiled = weft.compile(lambda x, y: y + 3 * x.sin())
    torch.testing.assert_close(compiled(x, y), x.cos() * 3 - y)


def test_users_pattern_leaves_values_with_readers(registered: list[str]) -> None:
    weft.register_pattern(_plus_sine, _marked, EXAMPLES)
    registered.append("_plus_sine")
    x, y = torch.randn(5), torch.randn(5)

    def read_twice(x, y):
        s = x.sin()
        return s * 2.0 + y, s

    torch.testing.assert_close(weft.compile(read_twice)(x, y), read_twice(x, y))
    weft.register_pattern(_plus_sine, _marked, EXAMPLES, keeps_users=True)
    torch.testing.assert_close(weft.compile(lambda *a: read_twice(*a))(x, y),
                               (x.cos() * 2 - y, x.sin()))


def test_users_condition_is_asked(registered: list[str]) -> None:
    asked = []

    def only_large(match):
        asked.append((match.tensor("x").shape[0], match.numbers["factor"]))
        return match.tensor("x").shape[0] > 5

    weft.register_pattern(_plus_sine, _marked, EXAMPLES, when=only_large, name="mine")
    registered.append("mine")
    for n in (4, 8):
        x, y = torch.randn(n), torch.randn(n)
        program = weft.compile(lambda x, y: x.sin() * 7.0 + y, dynamic=False)
        expected = x.cos() * 7 - y if n > 5 else x.sin() * 7 + y
        torch.testing.assert_close(program(x, y), expected)
    assert asked == [(4, 7.0), (8, 7.0)]


def test_wrong_patterns_are_errors(registered: list[str]) -> None:
    with pytest.raises(BadValue, match="other arguments"):
        weft.register_pattern(_plus_sine, lambda x: x, EXAMPLES)
    with pytest.raises(BadValue, match="takes 3 arguments, an example has 1"):
        weft.register_pattern(_plus_sine, _marked, [torch.empty(2)])
    with pytest.raises(BadValue, match="pass tensors and numbers"):
        weft.register_pattern(_plus_sine, _marked, [torch.empty(2), "y", 1.0])
    registered.append("random")
    weft.register_pattern(lambda x: torch.rand_like(x) + x, lambda x: x, [torch.empty(2)],
                          name="random")
    with pytest.raises(PassError, match="draws random numbers"):
        weft.compile(lambda x: x + 1)(torch.ones(2))


def test_replacement_of_another_size_is_an_error(registered: list[str]) -> None:
    registered.append("smaller")
    weft.register_pattern(lambda x: x.sin() * 2, lambda x: x.sin()[:1], [torch.empty(3)],
                          name="smaller")
    with pytest.raises(PassError, match="the replacement of the pattern smaller"):
        weft.compile(lambda x: x.sin() * 2)(torch.ones(4))
