"""Each accessor and each kind of check accepts, rejects, and names the guard that failed."""

import random
import weakref
from typing import Any

from tests.frame.extension import frame


def tree(*nodes: Any, checks: Any = (), slots: int = 0) -> Any:
    return frame.GuardTree(nodes, checks, slots)


def local(*checks: Any, children: Any = (), slot: int = -1) -> Any:
    return (("local", 0), checks, slot, children)


def verdict(guards: Any, value: Any) -> Any:
    """None when the guards hold for one local, else the failed guard's id; both ways must agree."""
    failed = guards.explain([value], (), {})
    assert (guards.check([value], (), {}) is not None) == (failed is None)
    return failed


def raises(kind: type[BaseException], call: Any, *args: Any) -> None:
    try:
        call(*args)
    except kind:
        return
    raise AssertionError(f"{kind.__name__} not raised")


class Plain:
    def __init__(self, **kwargs: Any) -> None:
        self.__dict__.update(kwargs)


class Inline:
    """Attributes set one by one: CPython may keep them without a dictionary."""

    def __init__(self) -> None:
        self.alpha = 1


class Hostile:
    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparing")

    def __len__(self) -> int:
        raise ValueError("no length")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attributes")

    __hash__ = None  # type: ignore[assignment]


EQUAL = [
    (1, [True, 1.0, 2, "1", None]),
    (True, [1, False]),
    (None, [0, False]),
    (0.0, [-0.0, 0, False]),
    (-0.0, [0.0]),
    (float("nan"), [0.0, None]),
    (complex(0.0, -0.0), [complex(0.0, 0.0), 0.0]),
    ("a", [b"a", "b"]),
    (b"a", ["a"]),
    ((1, (2.0, "x")), [(1, (2, "x")), [1, (2.0, "x")], (1,)]),
    (frozenset({1, 2}), [frozenset({True, 2}), frozenset({1}), {1, 2}]),
    (2**100, [2**100 + 1]),
    (..., [None]),
]


def test_eq_is_equality_of_the_same_exact_type() -> None:
    for constant, others in EQUAL:
        guards = tree(local(("eq", constant, "id")))
        assert verdict(guards, constant) is None, constant
        for other in [*others, Hostile()]:
            assert verdict(guards, other) == "id", (constant, other)


def test_eq_accepts_an_equal_object_made_elsewhere() -> None:
    guards = tree(local(("eq", ("ab" * 50, 10**20, float("nan")), 0)))
    assert verdict(guards, ("".join(["ab"] * 50), int("1" + "0" * 20), float("nan"))) is None


def test_eq_refuses_what_is_not_constant() -> None:
    for value in ([], {}, object(), (1, []), type):
        raises(TypeError, tree, local(("eq", value, 0)))


def test_type_is_is_exact() -> None:
    guards = tree(local(("type_is", int, 3)))
    assert verdict(guards, 5) is None
    assert verdict(guards, True) == 3


def test_is_and_is_not() -> None:
    one = object()
    assert verdict(tree(local(("is", one, 0))), one) is None
    assert verdict(tree(local(("is", one, 0))), object()) == 0
    assert verdict(tree(local(("is_not", one, 0))), object()) is None
    assert verdict(tree(local(("is_not", one, 0))), one) == 0


def test_len_of_anything_with_a_length() -> None:
    guards = tree(local(("len", 2, 0)))
    for value in ([1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}, "ab", range(2)):
        assert verdict(guards, value) is None
        assert verdict(guards, type(value)() if not isinstance(value, range) else range(3)) == 0
    assert verdict(guards, Hostile()) == 0
    assert verdict(guards, 3) == 0


def test_dict_keys_are_ordered() -> None:
    guards = tree(local(("dict_keys", ("a", 1, (2, 3)), 0)))
    assert verdict(guards, {"a": 0, 1: 0, (2, 3): 0}) is None
    assert verdict(guards, {1: 0, "a": 0, (2, 3): 0}) == 0
    assert verdict(guards, {"a": 0, 1: 0}) == 0
    assert verdict(guards, {"a": 0, True: 0, (2, 3): 0}) == 0
    assert verdict(guards, []) == 0


def test_missing_key() -> None:
    guards = tree(local(("missing_key", "k", 0)))
    assert verdict(guards, {}) is None
    assert verdict(guards, {"k": 1}) == 0


def test_no_attr() -> None:
    guards = tree(local(("no_attr", "k", 0)))
    assert verdict(guards, Plain()) is None
    assert verdict(guards, Plain(k=1)) == 0
    assert verdict(guards, Hostile()) == 0  # another exception than AttributeError


def test_py_check() -> None:
    assert verdict(tree(local(("py", lambda v: v > 1, 0))), 2) is None
    assert verdict(tree(local(("py", lambda v: v > 1, 0))), 1) == 0
    assert verdict(tree(local(("py", lambda v: 1 / 0, 0))), 1) == 0


def test_interrupts_in_a_check_are_not_swallowed() -> None:
    def interrupt(value: Any) -> bool:
        raise KeyboardInterrupt

    raises(KeyboardInterrupt, tree(local(("py", interrupt, 0))).check, [1], (), {})


def test_same_as_slot_and_distinct() -> None:
    shared = [1]
    pair = [(("local", 0), (), 0, ()), (("local", 1), (("same_as_slot", 0, 7),), 1, ())]
    guards = frame.GuardTree(tuple(pair), (), 2)
    assert guards.check([shared, shared], (), {}) == [shared, shared]
    assert guards.explain([shared, [1]], (), {}) == 7
    pair = [(("local", 0), (), 0, ()), (("local", 1), (), 1, ())]
    guards = frame.GuardTree(tuple(pair), (("distinct", (0, 1), 8),), 2)
    assert guards.check([shared, [1]], (), {}) is not None
    assert guards.explain([shared, shared], (), {}) == 8


def test_shape_callable_reads_the_collected_list() -> None:
    guards = tree(local(slot=0), checks=(("shape", lambda v: v[0] % 8 == 0, 4),), slots=1)
    assert verdict(guards, 16) is None
    assert verdict(guards, 17) == 4


OPERATORS: dict[str, Any] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "min": min, "max": max,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "and": lambda a, b: bool(a and b), "or": lambda a, b: bool(a or b),
}


def shape_holds(program: Any, values: list[Any]) -> bool:
    nodes = tuple((("local", i), (), i, ()) for i in range(len(values)))
    guards = frame.GuardTree(nodes, (("shape", program, 1),), len(values))
    return guards.check(values, (), {}) is not None


def random_program(rng: random.Random, values: list[int], depth: int) -> tuple[Any, int]:
    """A postfix program and what Python makes of it."""
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.5:
            i = rng.randrange(len(values))
            return (("slot", i),), values[i]
        number = rng.randint(-9, 9)
        return (("const", number),), number
    if rng.random() < 0.1:
        program, value = random_program(rng, values, depth - 1)
        return (*program, "neg"), -value
    if rng.random() < 0.1:
        program, value = random_program(rng, values, depth - 1)
        return (*program, "not"), not value
    left, a = random_program(rng, values, depth - 1)
    right, b = random_program(rng, values, depth - 1)
    name = rng.choice(list(OPERATORS))
    if b == 0 and name in ("//", "%"):
        name = "+"
    return (*left, *right, name), int(OPERATORS[name](a, b))


def test_shape_programs_compute_as_python_does() -> None:
    rng = random.Random(2)
    for _ in range(3000):
        values = [rng.randint(-20, 20) for _ in range(3)]
        program, value = random_program(rng, values, 4)
        if abs(value) < 2**62:
            assert shape_holds((*program, ("const", value), "=="), values), (program, values)
            assert not shape_holds((*program, ("const", value), "!="), values)


def test_shape_programs_fail_on_what_they_cannot_compute() -> None:
    slot = ("slot", 0)
    assert shape_holds((slot, slot, "=="), [2**62])
    for value in (2**63, -(2**63) - 1, "a", None, 1.5):
        assert not shape_holds((slot, slot, "=="), [value])
    for operator in ("//", "%"):
        assert not shape_holds((slot, ("const", 0), operator, slot, "<="), [5])
        assert not shape_holds((slot, ("const", 0), operator, slot, ">"), [5])
    assert not shape_holds((slot, slot, "*", ("const", 0), ">="), [2**40])
    deep = (*[slot] * 100, *["+"] * 99, ("const", 300), "==")
    assert shape_holds(deep, [3])


def test_bad_shape_programs_are_refused() -> None:
    slot = ("slot", 0)
    for program in [(), (slot, slot), ("+",), (slot, "+"), (slot, slot, "^"), (("slot", 1),),
                    (("what", 1),), (slot, 3), (("slot",),), (("const", 2**70),)]:
        raises((TypeError, ValueError, OverflowError), frame.GuardTree, (),  # type: ignore[arg-type]
               (("shape", program, 0),), 1)


def check_accessor(accessors: Any, good: Any, want: Any, bad: Any) -> None:
    """A chain of accessors below local 0 reads `want` from `good` and nothing from `bad`."""
    node: Any = None
    for i, accessor in reversed(list(enumerate(accessors))):
        last = i == len(accessors) - 1
        node = (accessor, (("is_not", MARK, "id"),) if last else (), 0 if last else -1,
                () if last else (node,))
    guards = tree(local(children=(node,)), slots=1)
    assert guards.check([good], (), {}) == [want]
    for value in bad:
        assert verdict(guards, value) == "id"


MARK = object()


def test_accessors_below_a_value() -> None:
    check_accessor([("attr", "real")], 3, 3, [Plain(), Hostile()])
    check_accessor([("instance_dict",), ("dict_item", "k")], Plain(k=5), 5, [Plain(), 3, Hostile()])
    check_accessor([("instance_dict",), ("dict_item", "alpha")], Inline(), 1, [Plain()])
    check_accessor([("dict_item", 2)], {2: "x"}, "x", [{}, {3: 1}, [1, 2, 3]])
    check_accessor([("list_item", 1)], [1, 2], 2, [[1], (1, 2), {}])
    check_accessor([("tuple_item", 1)], (1, 2), 2, [(1,), [1, 2]])
    check_accessor([("type",)], 3, int, [])
    check_accessor([("call", len)], [1, 2], 2, [3])


def test_frame_accessors() -> None:
    cell = (lambda x: (lambda: x))(5).__closure__[0]  # type: ignore[index]
    nodes = (
        (("global", "g"), (("eq", 1, 0),), 0, ()),
        (("builtin", "len"), (("is", len, 1),), 1, ()),
        (("cell", 0), (("eq", 5, 2),), 2, ()),
        (("cell_object", 0), (), 3, ()),
        (("object", MARK), (), 4, ()),
    )
    guards = frame.GuardTree(nodes, (), 5)
    assert guards.check([], (cell,), {"g": 1}) == [1, len, 5, cell, MARK]
    assert guards.check([], (cell,), {"g": 1, "__builtins__": __builtins__}) is not None
    assert guards.explain([], (cell,), {"g": 2}) == 0
    assert guards.explain([], (cell,), {}) == 0
    assert guards.explain([], (), {"g": 1}) == 2
    cell.cell_contents = 6
    assert guards.explain([], (cell,), {"g": 1}) == 2
    del cell.cell_contents
    assert guards.explain([], (cell,), {"g": 1}) == 2


def test_is_alive_refers_weakly() -> None:
    held = Plain()
    reference = weakref.ref(held)
    guards = tree(local(("is_alive", reference, 0)), (("alive", reference), (), 0, ()), slots=1)
    assert verdict(guards, held) is None
    assert guards.check([held], (), {}) == [held]
    assert verdict(guards, Plain()) == 0
    del held
    assert reference() is None
    assert verdict(guards, Plain()) == verdict(guards, None) == 0
    assert tree((("alive", reference), (), -1, ())).check([], (), {}) is None


def test_bad_trees_are_refused() -> None:
    bad = [
        local(("is_alive", Plain(), 0)), (("alive", Plain()), (), -1, ()),
        ("nonsense",), (("local", 0), (), 5, ()), (("local", -1), (), -1, ()),
        (("attr", "x"), (), -1, ()), (("what",), (), -1, ()), local(("what", 0)),
        local(("is", 0)), local(("same_as_slot", 3, 0)), local(children=(("local", 0),)),
        local(("dict_keys", [1], 0)),
    ]
    for node in bad:
        raises((TypeError, ValueError, IndexError), tree, node)  # type: ignore[arg-type]
    for check in [("what", 0), ("distinct", (0,), 1), ("global_state", 1, 2), (), ("shape", 1)]:
        raises((TypeError, ValueError, IndexError), frame.GuardTree, (), (check,), 0)  # type: ignore[arg-type]


def test_unfilled_slots_are_none() -> None:
    assert frame.GuardTree((), (), 3).check([], (), {}) == [None, None, None]
