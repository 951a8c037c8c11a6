"""`copy.copy` and `copy.deepcopy` of objects whose classes say how they are copied."""

from __future__ import annotations

import copy
from typing import Any

import torch

from tests.capture.harness import check

X = torch.ones(3)


class Reduced(list[Any]):
    def __init__(self, *items: Any, tag: int = 0) -> None:
        super().__init__(items)
        self.tag = tag

    def __reduce__(self) -> Any:
        return Reduced, tuple(self), {"tag": self.tag + 1}


class Encoding(dict[str, Any]):
    def __getstate__(self) -> Any:
        return {"seen": len(self)}

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a: Any) -> None:
        self.a = a

    def __getstate__(self) -> Any:
        return None, {"a": self.a, "b": 7}


class Named:
    def __reduce__(self) -> str:
        return "NAMED"


class Config:
    def __init__(self, **items: Any) -> None:
        self.__dict__.update(items)
        self.me = self

    def __getstate__(self) -> Any:
        return self.__dict__ | {"copied": True}


NAMED = Named()
OUTSIDE = Config(t=torch.zeros(3), named=NAMED, parts=[1])


def test_classes_that_say_how_their_objects_are_copied() -> None:
    def f(x):
        listed, table, slots = Reduced(x, 2, tag=3), Encoding(a=x, b=[1]), Slots(x)
        shallow = [copy.copy(one) for one in (listed, table)]
        deep = copy.deepcopy([listed, table, listed])
        assert deep[0] is deep[2] and shallow[1]["b"] is table["b"] is not deep[1]["b"]
        kept = [(one.tag if isinstance(one, Reduced) else one.state) for one in shallow + deep]
        return shallow, deep, kept, copy.copy(slots).b, copy.deepcopy(slots).a

    check(f, (X,), graphs=1)


def test_copies_of_objects_from_outside_are_other_objects() -> None:
    def f(x):
        new = copy.deepcopy(OUTSIDE)
        new.parts.append(2)
        assert new.me is new and new.named is NAMED and copy.copy(OUTSIDE).me is OUTSIDE
        return new.t + x, new.parts, OUTSIDE.parts, new.copied, hasattr(OUTSIDE, "copied")

    check(f, (X,), graphs=1)


def test_a_copied_tensor_has_the_same_memory() -> None:
    def f(x):
        y = copy.copy(x)
        y.mul_(2)
        return x, y, y is x

    check(f, (X,), graphs=1)
