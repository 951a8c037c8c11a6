"""Buffers: reuse, in place of dead ones, outputs that never share memory."""

from __future__ import annotations

import torch

from tests.codegen.compiling import check, compiled


def test_a_dead_buffer_is_reused() -> None:
    def chain(x, w):
        y = (x @ w).flip(0) + x  # not in place: other points are read
        y = (y @ w).flip(0) + x
        return (y @ w).flip(0) + x

    artifact = check(chain, torch.randn(16, 16), torch.randn(16, 16))
    assert "# reuse" in artifact.source


def test_a_result_that_nobody_reads_does_not_live_on() -> None:
    def largest(x):
        return x.topk(3).values.relu() * 2

    artifact = check(largest, torch.randn(12, 12))
    lines = [line.strip() for line in artifact.source.splitlines()]
    [call] = [i for i, line in enumerate(lines) if "topk" in line]
    assert "unread1 = " in lines[call] and lines[call + 1] == "del unread1"


def test_inputs_are_never_overwritten() -> None:
    x, w = torch.randn(8, 8), torch.randn(8, 8)
    before = x.clone(), w.clone()
    check(lambda x, w: ((x.relu() @ w).exp() @ w).tanh(), x, w)
    assert torch.equal(x, before[0]) and torch.equal(w, before[1])


def test_outputs_do_not_share_memory() -> None:
    def function(x):
        y = x.relu()
        return y, y.view(-1), y.clone()

    with torch.no_grad():
        call, _ = compiled(function, torch.randn(4, 4))
        a, _, c = call([torch.randn(4, 4)])
    assert a.data_ptr() != c.data_ptr()


def test_the_list_of_inputs_is_cleared() -> None:
    with torch.no_grad():
        _, artifact = compiled(lambda x: x + 1, torch.randn(4))
        inputs = [torch.randn(4)]
        artifact(inputs)
    assert inputs == []


def test_a_view_at_an_offset_of_an_input_with_an_offset() -> None:
    base = torch.randn(10, 8)
    check(lambda x: x[1:4] @ x[4:].t(), base[2:, :])
    check(lambda x, w: x[1:4] @ w, base[2:, :], torch.randn(8, 8))


def test_non_dense_inputs() -> None:
    base = torch.randn(10, 8)
    check(lambda x: x.exp() + 1, base[:, ::2])
    check(lambda x: x.exp() + 1, torch.randn(5, 1).expand(5, 4))
    check(lambda x: x.sum(0), base.t()[::2])


def test_a_kernel_overwrites_what_only_it_reads() -> None:
    artifact = check(lambda x, w: (x @ w).relu(), torch.randn(16, 16), torch.randn(16, 16))
    assert "# in place" in artifact.source
    softmax = check(lambda x, w: (x @ w).softmax(-1), torch.randn(16, 33), torch.randn(33, 70))
    assert "# in place" in softmax.source


def test_no_overwriting_where_a_later_reduction_reads_again() -> None:
    def function(x, w):
        y = x @ w
        z = y + 1
        return z, (y - y.amax(1, keepdim=True)).exp().sum(1)

    check(function, torch.randn(16, 33), torch.randn(33, 70))


def test_no_overwriting_where_other_points_are_read() -> None:
    artifact = check(lambda x, w: (x @ w).t() + (x @ w), torch.randn(16, 16), torch.randn(16, 16))
    assert artifact.source.count("# in place") <= 1
    check(lambda x, w: (x @ w).flip(0) * 2, torch.randn(16, 16), torch.randn(16, 16))


def test_new_values_of_mutated_inputs_are_written_in_place() -> None:
    def adam(p, g, m, v):
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        p.addcdiv_(m, v.sqrt().add_(1e-8), value=-0.01)
        return p * 2

    def inputs():
        return [torch.ones(4, 5), torch.full((4, 5), 0.5), torch.zeros(4, 5), torch.zeros(4, 5)]

    with torch.no_grad():
        call, artifact = compiled(adam, *inputs(), written=((0, 0), (1, 2), (2, 3)))
        ours, theirs = inputs(), inputs()
        addresses = [t.data_ptr() for t in ours]
        results = call(list(ours)), adam(*theirs)
    torch.testing.assert_close(*results)
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, wanted)
    assert [t.data_ptr() for t in ours] == addresses
    assert artifact.source.count("# in place") == 3


def test_a_mutated_input_that_is_read_later_is_not_overwritten() -> None:
    def function(p, w):
        before = p @ w
        p.add_(1)
        return before, (p - 1) @ w

    with torch.no_grad():
        p, w = torch.randn(8, 8), torch.randn(8, 8)
        call, _ = compiled(function, p.clone(), w, written=((0, 0),))
        mine, theirs = p.clone(), p.clone()
        results, wanted = call([mine, w]), function(theirs, w)
    torch.testing.assert_close(mine, theirs)
    for result, expected in zip(results, wanted, strict=True):
        torch.testing.assert_close(result, expected)


def test_a_mutated_input_lives_until_its_new_value_is_made() -> None:
    """in1's last read came before its new value was computed: the name was dropped too early."""

    def function(x, state):
        y = torch.sort(x + state)[0]  # the last read of `state`
        state.copy_(y * 2)
        return y

    with torch.no_grad():
        call, _ = compiled(function, torch.randn(5), torch.zeros(5), written=((0, 1),))
        x, state = torch.randn(5), torch.ones(5)
        expected = torch.sort(x + 1)[0]
        torch.testing.assert_close(call([x, state]), expected)
    torch.testing.assert_close(state, expected * 2)
