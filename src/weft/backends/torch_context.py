"""Lets backends that use PyTorch's tracing see symbolic sizes.

Place in the pipeline: around the backends that users bring. One that traces its graph again with
PyTorch's tools (AOTAutograd: `aot_module_simplified`) is given real tensors, and would take
their sizes for constants. PyTorch asks its *tracing context* for the fakes that stand for them::

    with symbolic_examples(gm, example_inputs) as inputs:
        backend(gm, inputs)            # AOTAutograd traces with (s0, 3) instead of (8, 3)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule

from weft._torch import FakeTensor, TracingContext, tracing


@contextmanager
def symbolic_examples(gm: GraphModule, example_inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """The examples with symbols for numbers that are symbolic, while PyTorch knows which fakes
    stand for the tensors; sizes that the backend fixes become guards."""
    inputs = list(example_inputs)
    fakes = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
    modes = [fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)]
    if not modes or not any(map(_is_symbolic, fakes)):
        yield inputs
        return
    for place, fake in enumerate(fakes):
        if isinstance(fake, FakeTensor):
            fake.fake_mode.fake_tensor_converter.set_tensor_memo(inputs[place], fake)
        elif isinstance(fake, torch.SymInt):
            inputs[place] = fake
    with tracing(TracingContext(modes[0])):
        yield inputs


def _is_symbolic(fake: object) -> bool:
    if isinstance(fake, FakeTensor):
        return any(isinstance(size, torch.SymInt) for size in (*fake.shape, *fake.stride()))
    return isinstance(fake, torch.SymInt)
