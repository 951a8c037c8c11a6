"""A guard tree that remembers answers as one that walks everything, whatever changes."""

import gc
import random
import weakref
from types import MethodType
from typing import Any

from tests.frame.extension import frame


class Box:
    """An object with attributes, like a module."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class OtherBox(Box):
    pass


CONSTANTS = [0, 1, True, None, "text", 1.5, 10**20, (1, "a"), b"x", -0.0]


def make_value(rng: random.Random, depth: int) -> Any:
    kind = rng.choice(["constant", "box", "dict", "list", "tuple"] if depth else ["constant"])
    if kind == "box":
        return Box(**{f"a{i}": make_value(rng, depth - 1) for i in range(rng.randint(1, 4))})
    if kind == "dict":
        return {f"k{i}": make_value(rng, depth - 1) for i in range(rng.randint(1, 4))}
    if kind == "list":
        return [make_value(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if kind == "tuple":
        return tuple(make_value(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    return rng.choice(CONSTANTS)


class Guards:
    """The nodes that guard a value as capture would, with slots and odd accessors thrown in."""

    def __init__(self, rng: random.Random, value: Any) -> None:
        self.rng = rng
        self.n_slots = 0
        self.nodes = (self.node(("local", 0), value),)

    def tree(self) -> Any:
        return frame.GuardTree(self.nodes, (), self.n_slots)

    def node(self, accessor: Any, value: Any) -> Any:
        slot = -1
        if self.rng.random() < 0.5:
            slot = self.n_slots
            self.n_slots += 1
        return (accessor, self.checks(value), slot, self.children(value))

    def checks(self, value: Any) -> Any:
        checks: list[Any] = []
        if isinstance(value, (Box, dict, list, tuple)) and self.rng.random() < 0.8:
            checks.append(("type_is", type(value), 0))
        if isinstance(value, dict):
            checks.append(self.rng.choice([("dict_keys", tuple(value), 1), ("missing_key", "z", 1),
                                           ("len", len(value), 1)]))
        elif isinstance(value, (list, tuple)):
            checks.append(("len", len(value), 1))
        elif isinstance(value, Box):
            if self.rng.random() < 0.2:
                checks.append(("no_attr", "z", 1))
        else:
            checks.append(self.rng.choice([("eq", value, 1), ("is", value, 1),
                                           ("py", lambda v, w=value: v is w or v == w, 1)]))
        return tuple(checks)

    def children(self, value: Any) -> Any:
        if isinstance(value, Box):
            if self.rng.random() < 0.2:
                return tuple(self.node(("attr", k), v) for k, v in vars(value).items())
            items = tuple(self.node(("dict_item", k), v) for k, v in vars(value).items())
            own_type = (("type",), (("is", type(value), 2),), -1, ())
            return ((("instance_dict",), (), -1, items), own_type)
        if isinstance(value, dict):
            return tuple(self.node(("dict_item", k), v) for k, v in value.items())
        if isinstance(value, list):
            return tuple(self.node(("list_item", i), v) for i, v in enumerate(value))
        if isinstance(value, tuple):
            return tuple(self.node(("tuple_item", i), v) for i, v in enumerate(value))
        return ()


def containers(value: Any) -> list[Any]:
    """Every mutable object in the value."""
    found = [value] if isinstance(value, (Box, dict, list)) else []
    inner = vars(value).values() if isinstance(value, Box) else value.values() \
        if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    for item in inner:
        found += containers(item)
    return found


def mutate(rng: random.Random, value: Any) -> Any:
    """Change one thing somewhere inside; gives a function that changes it back."""
    target = rng.choice(containers(value))
    new = make_value(rng, rng.randint(0, 2))
    if isinstance(target, Box):
        if rng.random() < 0.2:
            target.__class__ = OtherBox
            return lambda: setattr(target, "__class__", Box)
        if rng.random() < 0.2:
            old_dict = target.__dict__
            target.__dict__ = dict(old_dict) if rng.random() < 0.5 else {"a0": new}
            return lambda: setattr(target, "__dict__", old_dict)
        key = rng.choice([*vars(target), "z"])
        old = vars(target).get(key)
        setattr(target, key, new)
        return lambda: delattr(target, key) if key == "z" else setattr(target, key, old)
    if isinstance(target, dict):
        old_items = list(target.items())
        key = rng.choice([*target, "z"])
        if rng.random() < 0.3 and key in target:
            target[key] = target.pop(key)  # moves it to the end
        elif rng.random() < 0.3:
            target.clear()
        else:
            target[key] = new

        def restore() -> None:
            target.clear()
            target.update(old_items)

        return restore
    old_list = list(target)
    target[rng.randrange(len(target)):] = [new] if rng.random() < 0.7 else []
    return lambda: target.__setitem__(slice(None), old_list)


def same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


ROUNDS = 150


def test_as_without_memory_under_random_changes() -> None:
    rng = random.Random(1)
    held = failed = 0
    for _ in range(ROUNDS):
        value = Box(first=make_value(rng, 3), second=make_value(rng, 3))
        guards = Guards(rng, value)
        remembering = guards.tree()
        for _ in range(30):
            restore = mutate(rng, value) if rng.random() < 0.7 else None
            for _ in range(rng.randint(1, 3)):
                got = remembering.check([value], (), {})
                want = guards.tree().check([value], (), {})
                assert same(got, want)
                held += want is not None
                failed += want is None
            if restore is not None:
                restore()
                gc.collect(0)
    assert held > 6 * ROUNDS and failed > 6 * ROUNDS


def deep_box() -> Box:
    return Box(inner=Box(counter=0, table={"eps": 1.5}), scale=2)


def deep_tree(box: Box) -> Any:
    table = (("dict_item", "table"), (("type_is", dict, 1),), -1,
             ((("dict_item", "eps"), (("eq", 1.5, 2),), 0, ()),))
    inner_dict = (("instance_dict",), (), -1, (table,))
    inner = (("dict_item", "inner"), (("type_is", Box, 3),), 1, (inner_dict,))
    return frame.GuardTree(((("local", 0), (("type_is", Box, 4),), 2,
                             ((("instance_dict",), (), -1, (inner,)),)),), (), 3)


def test_unguarded_changes_do_not_matter() -> None:
    box = deep_box()
    tree = deep_tree(box)
    for i in range(50):
        assert tree.check([box], (), {}) == [1.5, box.inner, box]
        box.inner.counter += 1
        box.inner.table["other"] = i
    box.inner.table["eps"] = 2.5
    assert tree.explain([box], (), {}) == 2 and tree.check([box], (), {}) is None


def test_values_that_die_and_come_again_at_the_same_address() -> None:
    tree = deep_tree(deep_box())
    for i in range(2000):
        box = deep_box()
        if i % 3 == 0:
            box.inner.table["eps"] = float(i)
        want = [box.inner.table["eps"], box.inner, box] if i % 3 else None
        for _ in range(2):
            assert tree.check([box], (), {}) == want
        del box


def test_remembering_keeps_nothing_alive() -> None:
    box = deep_box()
    tree = deep_tree(box)
    assert tree.check([box], (), {}) is not None and tree.check([box], (), {}) is not None
    watch = weakref.ref(box.inner)
    box.inner = deep_box().inner
    assert watch() is None
    assert tree.check([box], (), {}) is not None
    watch = weakref.ref(box)
    del box
    assert watch() is None


def test_guards_that_change_what_was_seen() -> None:
    """Python code in a guard empties the structure while it is being checked."""
    for _ in range(20):
        box = deep_box()

        def empty(value: Any) -> bool:
            if calls:
                box.inner.table.clear()
                box.__dict__.clear()
                gc.collect(0)
            calls.append(value)
            return True

        calls: list[Any] = []
        late = (("dict_item", "scale"), (("py", empty, 0),), 0, ())
        after = (("dict_item", "inner"), (), 1,
                 ((("attr", "table"), (), 2, ((("dict_item", "eps"), (), 3, ()),)),))
        own = (("instance_dict",), (), -1, (late, after))
        tree = frame.GuardTree(((("local", 0), (), -1, (own,)),), (), 4)
        assert tree.check([box], (), {}) is not None
        tree.check([box], (), {})
        assert tree.check([box], (), {}) is None


def test_a_tree_used_inside_its_own_guard() -> None:
    box = deep_box()
    trees: list[Any] = []

    def inner(value: Any) -> bool:
        if len(depth) < 3:
            depth.append(1)
            assert trees[0].check([box], (), {}) is not None
            depth.pop()
        return True

    depth: list[int] = []
    scale = (("dict_item", "scale"), (("py", inner, 0),), 0, ())
    own = (("instance_dict",), (), -1, (scale,))
    trees.append(frame.GuardTree(((("local", 0), (), -1, (own,)),), (), 1))
    for _ in range(5):
        assert trees[0].check([box], (), {}) == [2]


def test_the_dictionary_of_a_class_is_watched_too() -> None:
    class Model:
        def forward(self) -> int:
            return 1

    original = Model.forward
    method = (("dict_item", "forward"), (("is", original, 1),), -1, ())
    node = (("local", 0), (("type_is", Model, 0),), -1,
            ((("type",), (), -1, ((("instance_dict",), (), -1, (method,)),)),))
    tree = frame.GuardTree((node,), (), 0)
    model = Model()
    for _ in range(3):
        assert tree.check([model], (), {}) == []
    Model.forward = lambda self: 2  # type: ignore[method-assign]
    assert tree.explain([model], (), {}) == 1 and tree.check([model], (), {}) is None
    Model.forward = original  # type: ignore[method-assign]
    assert tree.check([model], (), {}) == []
    del Model.forward
    assert tree.check([model], (), {}) is None


def test_what_a_closure_holds_is_remembered_and_watched() -> None:
    box = deep_box()
    cell = (lambda: box).__closure__[0]  # type: ignore[index]
    scale = (("dict_item", "scale"), (("eq", 2, 1),), 1, ())
    contents = (("attr", "cell_contents"), (("type_is", Box, 0),), 0,
                ((("instance_dict",), (), -1, (scale,)),))
    tree = frame.GuardTree(((("cell_object", 0), (), -1, (contents,)),), (), 2)
    for i in range(200):
        assert tree.check([], (cell,), {}) == [box, 2]
        if i % 10 == 0:
            cell.cell_contents = box = deep_box()
    box.scale = 3
    assert tree.explain([], (cell,), {}) == 1 and tree.check([], (cell,), {}) is None
    cell.cell_contents = 5
    assert tree.explain([], (cell,), {}) == 0 and tree.check([], (cell,), {}) is None
    del cell.cell_contents
    assert tree.check([], (cell,), {}) is None


def test_values_that_take_turns_are_each_remembered() -> None:
    boxes = [deep_box() for _ in range(200)]  # more than are remembered
    tree = deep_tree(boxes[0])
    for i in range(6):
        for box in boxes:
            box.inner.table["eps"] = 1.5 if i % 3 else 2.5
        for box in boxes[: 200 if i < 3 else 20]:
            for _ in range(3):
                assert tree.check([box], (), {}) == ([1.5, box.inner, box] if i % 3 else None)


def test_what_functions_and_methods_consist_of_is_remembered_and_watched() -> None:
    def make(scale: int) -> Any:
        def inner(x: int = 1, *, y: int = 2) -> int:
            return x + y + scale
        return inner

    def attr(name: str, checks: Any, slot: int, *children: Any) -> Any:
        return (("attr", name), checks, slot, children)

    first, other = make(5), make(6)
    contents = attr("cell_contents", (("eq", 5, 1),), 0)
    cell = (("tuple_item", 0), (), -1, (contents,))
    nodes = ((("local", 0), (), -1, (
        attr("__self__", (("is", 3, 2),), -1),
        attr("__func__", (), 1, attr("__closure__", (("len", 1, 3),), -1, cell),
             attr("__code__", (("is", first.__code__, 4),), -1),
             attr("__defaults__", (("len", 1, 5),), -1,
                  (("tuple_item", 0), (("eq", 1, 6),), 2, ())),
             attr("__kwdefaults__", (), -1, (("dict_item", "y"), (("eq", 2, 7),), 3, ()))),
    )),)
    # Below a list, so that there is a memo.
    nodes = ((("local", 0), (), -1, ((("list_item", 0), (), -1, nodes[0][3]),)),)
    tree, held = frame.GuardTree(nodes, (), 4), [MethodType(first, 3)]
    wanted = [5, first, 1, 2]
    contents_cell = first.__closure__[0]
    changes = [
        (lambda: setattr(first, "__defaults__", (4,)),
         lambda: setattr(first, "__defaults__", (1,))),
        (lambda: setattr(first, "__defaults__", None),
         lambda: setattr(first, "__defaults__", (1,))),
        (lambda: first.__kwdefaults__.update(y=3), lambda: first.__kwdefaults__.update(y=2)),
        (lambda: held.__setitem__(0, MethodType(other, 3)),
         lambda: held.__setitem__(0, MethodType(first, 3))),
        (lambda: held.__setitem__(0, MethodType(first, 4)),
         lambda: held.__setitem__(0, MethodType(first, 3))),
        (lambda: setattr(contents_cell, "cell_contents", 7),
         lambda: setattr(contents_cell, "cell_contents", 5)),
    ]
    for change, undo in changes:
        for _ in range(3):
            assert tree.check([held], (), {}) == wanted
        change()
        assert tree.check([held], (), {}) is None and tree.check([held], (), {}) is None
        undo()
        assert tree.check([held], (), {}) == wanted
