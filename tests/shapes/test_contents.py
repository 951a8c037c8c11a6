"""Contents of small tensors that captures rely on."""

from __future__ import annotations

import torch

from weft.shapes.contents import Contents


def test_what_modules_hold_under_one_name_is_learned_together() -> None:
    """An audio codec was interpreted once for each of its convolutions' buffers."""
    contents, stride = Contents(), torch.tensor(2)
    assert contents.known("model.layers[0].stride", stride) is None
    contents.learn("model.layers[0].stride", stride)
    assert contents.known("model.layers[1].stride", torch.tensor(3)) is not None
    assert contents.known("model.layers[1].count", torch.tensor(3)) is None


def test_contents_that_change_too_often_are_data() -> None:
    contents = Contents()
    contents.learn("model.steps", torch.tensor(0))
    seen = [contents.known("model.steps", torch.tensor(n)) is not None for n in range(5)]
    assert seen == [True, True, True, False, False]
