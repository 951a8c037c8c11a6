"""Data that follows from constants or from guarded contents of small integer tensors."""

from __future__ import annotations

import pytest
import torch

import weft
from tests.capture.harness import check

T = torch.tensor


def test_numbers_of_constant_tensors_are_constants():
    def f(x):
        a, b = torch.tensor([2, 3]).expand(2).tolist()
        grid = torch.zeros(3, dtype=torch.int64)
        grid[1:] = torch.arange(2) + a
        return x.repeat(a, b), f"{grid[2]}", x * len(grid.nonzero())

    check(f, (torch.ones(2),), (torch.zeros(2),), graphs=1, breaks=0)


def test_loop_over_a_number_in_an_input_is_made_for_that_number():
    def f(x, n):
        for i in range(n.item()):
            x = x * 2 + i
        return x

    check(f, (torch.ones(2), T(3)), (torch.zeros(2), T(3)), graphs=1, breaks=0)
    check(f, *[(torch.ones(2), T(n)) for n in (3, 0, 1, 3, 4)], breaks=None)


def test_many_contents_are_served_by_one_general_variant():
    def f(x, sizes):
        return [part.sum() for part in torch.split(x, (sizes[1:] - sizes[:-1]).tolist())], (
            "long" if sizes[-1] > 4 else "short")

    sizes = ([0, 2, 5], [0, 1, 5], [0, 4, 5], [0, 5, 5], [0, 0, 5])
    check(f, *[(torch.arange(5.0), T(s)) for s in sizes], breaks=None)
    assert weft.stats()["recompiles"] <= 4


def test_a_few_contents_get_a_whole_graph_each():
    def f(x, grid):
        return [x + w * i for h, w in grid.tolist() for i in range(h)]

    grids = ([[2, 4]], [[3, 2]], [[4, 2], [2, 2]], [[2, 4]], [[3, 2]])
    check(f, *[(torch.ones(2), T(grid)) for grid in grids], graphs=3, breaks=0)


def test_fullgraph_makes_a_variant_for_each_content():
    def f(x, n):
        return x * 2 if n > 1 else x + 1

    compiled = weft.compile(f, backend="eager", fullgraph=True)
    for n in (0, 2, 3, 0):
        assert torch.equal(compiled(torch.ones(2), T(n)), f(torch.ones(2), T(n)))


def test_contents_written_before_they_are_read():
    def f(x, n):
        n = n.clone()
        view = n[1:]
        view.add_(2)
        if n.sum() > 4:
            return x
        return x * n[1]

    check(f, (torch.ones(2), T([1, 1])), (torch.ones(2), T([1, 1])), graphs=1)
    check(f, (torch.ones(2), T([1, 1])), (torch.ones(2), T([3, 3])), breaks=None)


def test_data_mixed_with_random_or_large_tensors_is_not_known():
    def drawn(x, n):
        return x if torch.randint(0, 3, (1,)) + n > 0 else x * 2

    def written(x, n):
        counts = torch.zeros(2, dtype=torch.int64)
        counts[0] = x.sum().long()
        return x if counts[0] > n else x * 2

    for f in (drawn, written):
        check(f, (torch.ones(20), T([5])), (-torch.ones(20), T([5])), breaks=1)


def test_a_branch_on_a_mask_is_compiled_once_for_each_way_and_not_for_each_content(fresh):
    def f(x, mask):
        return x * 2 if mask.all() else x * mask[..., None]

    full = torch.ones(20, 60, dtype=torch.bool)
    masks = [full, *[torch.arange(1200).view(20, 60) % n > 0 for n in (2, 3, 5, 7)], full]
    masks += [m[:, :50].contiguous() for m in masks]
    compiled = weft.compile(f, backend="eager", dynamic=True)
    for mask in masks:
        x = torch.randn(*mask.shape, 2)
        assert torch.equal(compiled(x, mask), f(x, mask))
    assert (weft.stats()["graphs"], weft.stats()["graph_breaks"]) == (2, 0)


def test_a_branch_on_a_flag_that_the_program_sets():
    def make():
        flag = torch.tensor([0.0])

        def f(x):
            if flag:
                return x + 1
            flag.fill_(True)
            return x * 2

        return f

    check(None, *[(torch.ones(2),)] * 3, make=make, graphs=2, breaks=0)


def test_a_loop_over_a_grid_of_times_that_the_program_keeps():
    """An ODE solver's, or a sampler's over its noise levels: each comparison ended the graph."""
    class Solver(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("times", torch.linspace(0, 1, 5))

        def forward(self, x):
            j = 1
            for start, end in zip(self.times[:-1], self.times[1:], strict=True):
                x = x + (end - start) * x.sin()
                while j < len(self.times) and end >= self.times[j]:
                    j += 2
            return x * j

    check(Solver(), (torch.ones(3),), (torch.ones(4),), graphs=2, breaks=0)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_branch_on_a_number_that_is_used_as_a_size_too(backend, fresh):
    def f(x, lengths):
        n = lengths.max().item()
        return x[:n] * 2 if n > 3 else x + n

    compiled = weft.compile(f, backend=backend)
    for lengths in ([4, 5], [3, 3], [9, 1], [6, 2], [1, 1]):
        x, n = torch.randn(20, 3), T(lengths)
        assert torch.equal(compiled(x, n), f(x, n))
    assert (weft.stats()["graphs"], weft.stats()["graph_breaks"]) == (2, 0)


def test_branches_that_go_many_ways_end_the_graph():
    def f(x, flags):
        for i in range(4):
            x = x + i if flags[i] else x * 2
        return x

    check(f, *[(torch.ones(2), T([i >> b & 1 for b in range(4)])) for i in range(16)], breaks=None)
    assert weft.stats()["recompiles"] < 24


def test_tensors_as_numbers_of_factories():
    def f(x, n):
        return torch.arange(n.sum()) + 1, x[n[0] :], torch.zeros(n[1], 2)

    check(f, (torch.ones(5), T([2, 3])), (torch.ones(5), T([0, 1])), graphs=1, breaks=0)


def test_asserted_numbers_and_divisors():
    def f(x, n):
        if n.max().item() > 4:
            raise ValueError("large")
        return x + n.sum().item() // n.min().item()

    calls = [[3, 2], [1, 4], [7, 1], [0, 1], [2, 2]]
    check(f, *[(torch.ones(2), T(n)) for n in calls], graphs=1, breaks=0)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_positions_on_a_grid(backend):
    """As vision models number the patches of their images."""

    def f(x, grid):
        places = []
        for t, h, w in grid.tolist():
            rows, columns = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            shape = (h // 2, 2, w // 2, 2)
            both = [p.reshape(shape).transpose(1, 2).flatten() for p in (rows, columns)]
            places.append(torch.stack(both, -1).repeat(t, 1))
        lengths = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0]).tolist()
        x = x * torch.cat(places).sum(1, keepdim=True)
        return torch.cat([part.softmax(0) for part in torch.split(x, lengths)])

    compiled = weft.compile(f, backend=backend)
    for grid in ([[1, 2, 4]], [[1, 2, 4]], [[2, 2, 2]], [[1, 4, 2]]):
        x = torch.randn(8, 3, requires_grad=True)
        found, wanted = compiled(x, T(grid)), f(x, T(grid))
        torch.testing.assert_close(found, wanted)
        grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (found, wanted)]
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_results_of_known_data_are_not_remembered_for_others(backend):
    """Results of operators are remembered by metadata, which does not tell these apart."""

    def f(x, n):
        size = n.repeat_interleave(n)
        if size.shape[0] > 3:
            x = x + 1
        return torch.nn.functional.interpolate(x, size=(n[0], n[1])), size * 2, n.nonzero()

    compiled = weft.compile(f, backend=backend, fullgraph=True)
    for numbers in ([2, 3], [3, 2], [1, 1], [4, 1]):
        for found, wanted in zip(compiled(torch.ones(1, 1, 4, 4), T(numbers)),
                                 f(torch.ones(1, 1, 4, 4), T(numbers)), strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("make", [
    lambda t: t, lambda t: t.t(), lambda t: t.to(torch.int16), lambda t: t > 2, lambda t: t[1:, 1:],
    lambda t: t[:0],
])
def test_contents_of_any_layout_and_type_are_compared(make):
    def f(x, grid):
        return x + sum(1 for row in grid.tolist() for n in row if n > 2)

    x, first = torch.ones(2), make(torch.arange(12).view(4, 3))
    second = make(torch.ones(4, 3).long())
    same = make(torch.arange(12).view(4, 3).clone())
    check(f, (x, first), (x, same), (x, second), (x, first), breaks=None)


# -- numbers in tensors that follow from sizes ----------------------------------------------------


def compare(f, *calls, dynamic):
    weft.reset()
    compiled = weft.compile(f, backend="eager", dynamic=dynamic, fullgraph=True)
    for args in calls:
        torch.testing.assert_close(compiled(*args), f(*args))


def frames(x, kernel, stride):
    """As codecs compute paddings, with numbers of buffers."""
    extra = torch.ceil((x.shape[-1] - kernel) / stride + 1).to(torch.int64) - 1
    return extra * stride + kernel - x.shape[-1]


@pytest.mark.parametrize("dynamic", [True, None])
def test_paddings_computed_in_tensors_stay_sizes(dynamic):
    kernel, stride = T(7), T(3)

    def f(x):
        right = frames(x, kernel, stride)
        if max(right, stride) >= x.shape[-1]:
            return x * 2
        padded = torch.nn.functional.pad(x, (stride, right), "reflect")
        return padded[..., : padded.shape[-1] - right] + right.item()

    lengths = (20, 21, 22, 33, 64)
    compare(f, *[(torch.arange(float(n))[None],) for n in lengths], dynamic=dynamic)
    assert weft.stats()["graphs"] <= 2


@pytest.mark.parametrize("f", [
    lambda x: x.new_zeros(torch.div(x.shape[0], 2, rounding_mode="trunc"), 4),
    lambda x: x[: int(torch.tensor(x.shape[0]) // 2)] + torch.tensor(len(x)).clamp(max=6).item(),
    lambda x: x * 2 if torch.tensor(x.shape[0]) > 2 else x,
    lambda x: x.repeat((torch.tensor(x.shape[0]) / 4).floor().int(), 1),
    lambda x: x[: torch.tensor(x.shape[0]).remainder(3).add_(1).item()],
    lambda x: x.as_strided(size=(torch.div(x.shape[0], 2, rounding_mode="trunc") - 1, 2),
                           stride=(2, 1)),
])
def test_numbers_of_tensors_made_of_sizes(f):
    compare(f, *[(torch.ones(n, 2),) for n in (4, 5, 6, 7, 9)], dynamic=True)


def test_fractions_beyond_the_precision_of_floats_are_left_to_the_kernels():
    def f(x, n):
        return x, torch.ceil(torch.tensor(n) / 3).to(torch.int64).item()

    calls = [(torch.ones(2), n) for n in (7, 8, 2**25 + 1, 2**25 + 2, 2**24 - 1)]
    check(f, *calls, breaks=0)
