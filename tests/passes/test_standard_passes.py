"""weft's own passes in their order: what each changes in a program, as text, beside the list.

`pytest tests/passes --update` rewrites the files. The programs go through the whole pipeline, so
the graph before a pass is what the passes before it have left.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.aot.rewrites import image_layout
from weft.aot.standard_passes import STANDARD
from weft.diagnostics import events
from weft.passes import pad_rows
from weft.passes.framework import REGISTERED
from weft.runtime import image_speed

GOLDEN = Path(__file__).parent / "golden"
_LINE = re.compile(r"  \w+\.py:\d+")
"""Where a node comes from."""


def _inputs(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.ones(size) for size in sizes]


def _trained(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.ones(size).requires_grad_() for size in sizes]


def copy_of_a_queue(x, queue):
    return (x * queue.clone()).sum()


def index_in_vain(x, places):
    x[places]
    return x + 1


def view_and_values(x):  # the wrapper makes the view
    return x.view(-1), x + 1


def gated(x):
    return torch.nn.functional.glu(x)


def products(x):
    return x.cumprod(0).sum()


def turned(x, y):
    return torch.view_as_real(torch.view_as_complex(x) * torch.view_as_complex(y))


def written_in_a_loop(x):
    out = torch.zeros(2, 6)
    for k in range(6):
        out[:, k] = x[:, k] + k
    return out


def constants(x):
    return x + torch.full((2, 3), 3.0) * 2


def nothing_to_do(x):
    return (x * 1).t().t().exp()


def equal_values(x):
    return x.exp() + x.exp()


def gated_by_hand(x):
    return x * torch.sigmoid(x)


def image(x, w):
    return torch.nn.functional.conv2d(x, w).relu()


def overwritten(x, y):
    x.copy_(y)


def cache(x, row):
    x[3] = row


def narrow_rows(x, w):
    return (x + 1) @ w


CASES: list[tuple[str, Callable[..., Any], Callable[[], list[torch.Tensor]]]] = [
    ("keep_copies", copy_of_a_queue, lambda: [*_trained((3,)), *_inputs((3,))]),
    ("keep_errors", index_in_vain, lambda: [torch.ones(4), torch.tensor([1, 2])]),
    ("eliminate_dead_code", view_and_values, lambda: _inputs((2, 3))),
    ("expand", gated, lambda: _inputs((2, 4))),
    ("use_library_gradients", products, lambda: _trained((4,))),
    ("split_complex", turned, lambda: _inputs((3, 2), (3, 2))),
    ("join_written_pieces", written_in_a_loop, lambda: _inputs((2, 6))),
    ("eliminate_replaced_code", written_in_a_loop, lambda: _inputs((2, 6))),
    ("fold_constants", constants, lambda: _inputs((2, 3))),
    ("simplify", nothing_to_do, lambda: _inputs((2, 3))),
    ("merge_equal_nodes", equal_values, lambda: _inputs((2, 3))),
    ("replace_patterns", gated_by_hand, lambda: _inputs((2, 3))),
    ("eliminate_merged_code", constants, lambda: _inputs((2, 3))),
    ("use_channels_last", image, lambda: _trained((1, 2, 16, 16), (3, 2, 3, 3))),
    ("protect_outputs", overwritten, lambda: _inputs((2, 3), (2, 3))),
    ("write_parts", cache, lambda: _inputs((16, 3), (3,))),
    ("pad_rows", narrow_rows, lambda: _inputs((8, 51), (51, 16))),
]


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Passes that are for large graphs, or for GPUs, take these."""
    monkeypatch.setattr(pad_rows, "_is_large", lambda node: True)
    monkeypatch.setattr(image_layout, "MIN_PRODUCTS", 0)
    monkeypatch.setattr(image_layout, "nhwc_is_faster", lambda *_: True)
    monkeypatch.setattr(image_speed, "onednn_is_faster", lambda: False)
    weft.reset()
    with weft.config.patch(strict=True):
        yield


def test_each_pass_has_a_text() -> None:
    assert [name for name, _, _ in CASES] == [p.name for p in STANDARD if p.name != REGISTERED]
    assert all(p.why for p in STANDARD)


@pytest.mark.parametrize(("name", "program", "inputs"), CASES, ids=[name for name, _, _ in CASES])
def test_what_it_changes(
    name: str, program: Callable[..., Any], inputs: Callable[[], list[torch.Tensor]],
    request: pytest.FixtureRequest,
) -> None:
    stage = next(p.stage for p in STANDARD if p.name == name)
    backend = "inductor" if stage == "kernels" else "aot_eager_decomposed"  # which has no kernels
    with events.collect() as seen:
        weft.compile(program, backend=backend)(*inputs())
    changes = [e for e in seen if e.kind == "pass" and e.name == name]
    assert changes, [e.name for e in seen if e.kind == "pass"]
    before, after = (_LINE.sub("", text) for text in (changes[0].before, changes[0].after))
    text = f"# before\n{before}\n\n# after {name}\n{after}\n"
    path = GOLDEN / f"pipeline.{name}.txt"
    if request.config.getoption("--update"):
        path.write_text(text)
    assert path.read_text() == text
