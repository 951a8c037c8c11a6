"""When steps run that depend on nothing but saved values."""

from weft.codegen.scheduling.step_order import StepOrder

KB = 1 << 10


def order_of(steps: dict[int, tuple[set[str], set[str]]], size: dict[str, int]) -> list[int]:
    """The steps, `number: (reads, writes)`, in the order in which they run."""
    producer = {name: n for n, (_, writes) in steps.items() for name in writes}
    order = StepOrder(
        before={n: {producer[r] for r in reads & producer.keys()}
                for n, (reads, _) in steps.items()},
        reads={n: reads for n, (reads, _) in steps.items()},
        writes={n: writes for n, (_, writes) in steps.items()},
        size=size,
        outputs={"g0"},
    )
    return order.improved(list(steps))


def test_activations_are_computed_again_right_before_their_use() -> None:
    """All of them used to be computed at the start of the backward, and alive together."""
    steps = {
        0: ({"s2"}, {"r2"}), 1: ({"s1"}, {"r1"}), 2: ({"r1"}, {"r1b"}),
        3: ({"t", "r2"}, {"g2"}), 4: ({"g2"}, {"g1"}), 5: ({"g1", "r1b", "s1", "s2"}, {"g0"}),
    }
    assert order_of(steps, dict.fromkeys(("r1", "r1b", "r2"), 100 * KB)) == [0, 3, 4, 1, 2, 5]


def test_what_frees_more_than_it_makes_does_not_wait() -> None:
    steps = {0: ({"s"}, {"small"}), 1: ({"t"}, {"g1"}), 2: ({"g1", "small"}, {"g0"})}
    assert order_of(steps, {"s": 400 * KB, "small": 100 * KB}) == [0, 1, 2]
    assert order_of(steps, {"s": 100 * KB, "small": 100 * KB}) == [1, 0, 2]
    assert order_of(steps, {"s": 0, "small": 1 * KB}) == [0, 1, 2], "not worth a launch"


def test_a_gradient_that_is_returned_waited_for_its_update_beside_what_it_is_made_of() -> None:
    """The logits' gradient lived until the last parameter was updated."""
    steps = {
        0: ({"d", "h"}, {"g0"}), 1: ({"d"}, {"g1"}), 2: ({"g1"}, {"new1"}), 3: ({"g0"}, {"new0"}),
    }
    assert order_of(steps, {"d": 400 * KB, "g0": 800 * KB}) == [1, 0, 2, 3]


def test_what_needs_much_for_itself_lets_others_free_theirs_first() -> None:
    """The gradients of attention were made before that of a weight, which frees more than it makes:
    both free, but attention needs three results at once."""
    steps = {
        0: ({"t", "w"}, {"g"}), 1: ({"t", "h"}, {"g0"}), 2: ({"g", "qkv"}, {"dq", "dk", "dv"}),
        3: ({"dq", "dk", "dv"}, {"out"}),
    }
    size = dict.fromkeys(("t", "g", "dq", "dk", "dv"), 256 * KB) | {"qkv": 768 * KB, "g0": 64 * KB}
    assert order_of(steps, size) == [1, 0, 2, 3]
    assert order_of(steps, size | {"t": 64 * KB, "g0": 512 * KB}) == [0, 2, 3, 1]
