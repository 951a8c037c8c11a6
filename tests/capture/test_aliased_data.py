"""Data of inputs that the graph has written by another name: a branch, or a number, reads the new.

Guards see the inputs before the graph runs, so what they tell holds only if the memory is apart."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable

import pytest
import torch

import weft

State = types.SimpleNamespace
Write = Callable[[State], object]
Read = Callable[[State], object]

WRITES: dict[str, Write] = {
    "tensor": lambda s: s.w.add_(2),
    "view": lambda s: s.view.add_(2),
    "data": lambda s: s.data.add_(2),
    "array": lambda s: s.array.__iadd__(2),
    "view of the array": lambda s: s.part.__iadd__(2),
    "item": lambda s: s.w.__setitem__(0, 5),
    "apart": lambda s: s.other.add_(2),
}
READS: dict[str, Read] = {
    "tensor": lambda s: bool(s.w[0] > 1),
    "view": lambda s: bool(s.view[0] > 1),
    "data": lambda s: bool(s.data.sum() > 4),
    "array": lambda s: bool(s.array[0] > 1),
    "view of the array": lambda s: bool((s.part > 1).any()),
    "number": lambda s: s.w[0].item() > 1,
    "list": lambda s: s.array.tolist()[0] > 1,
    "other": lambda s: bool(s.other[0] > 1),
    "size": lambda s: torch.ones(int(s.view[0]) + 1).numel() > 2,
}


def state(dtype: torch.dtype, *, aliases: bool) -> State:
    s = State()
    s.w, s.other = torch.arange(3).to(dtype), torch.arange(3).to(dtype)
    owner = s.w if aliases else s.w.clone()
    s.view, s.data, s.array = owner[:2], owner.data, owner.numpy()
    s.part = s.array[:2]
    return s


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("first", [True, False])
def test_what_follows_from_data_sees_earlier_writes(dtype, first):
    for (write_name, write), (read_name, read) in itertools.product(WRITES.items(), READS.items()):
        def program(x, s, write=write, read=read):
            write(s)
            return x + 1 if read(s) else x - 1

        def calls(f):  # the second and third with other aliases
            states = [state(dtype, aliases=aliases) for aliases in (first, not first, first)]
            results = [f(torch.zeros(1), s).item() for s in states]
            return results, [s.w.tolist() + s.array.tolist() for s in states]

        weft.reset()
        assert calls(weft.compile(program, backend="eager")) == calls(program), (
            f"write {write_name}, read {read_name}")


def test_writes_elsewhere_leave_branches_in_the_graph():
    def program(x, s):
        s.other.add_(2)
        return x + 1 if s.w[0] > 1 else x - 1

    weft.reset()
    s = state(torch.float32, aliases=False)
    compiled = weft.compile(program, backend="eager")
    assert [compiled(torch.zeros(1), s).item() for _ in range(3)] == [-1, -1, -1]
    assert weft.stats()["graphs"] == 1 and weft.stats()["graph_breaks"] == 0
