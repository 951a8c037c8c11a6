"""`SymbolicValue`: what the interpreter's stack and variables hold instead of Python objects.

Place in the pipeline: the root of the value families, of which `library/` has one file each, found
through `registry`. Every operation breaks the graph by default, so a family defines only the
operations that it supports::

    value.getattr(tx, "shape").getitem(tx, constant(0))

`tx` is the interpreter (type `Interpreter`, named `tx` in all of `library/`): it calls, raises,
guards and records side effects. `rebuild` returns the Python expression that makes the real object
in the replacement function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from weft.capture.core.breaks import GraphBreak, ObservedException, graph_break
from weft.capture.core.source import Source

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

Args = list["SymbolicValue"]
Kwargs = dict[str, "SymbolicValue"]


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()

_HEAP_TYPE: Final = 1 << 9
"""`Py_TPFLAGS_HEAPTYPE`"""


def is_same(left: object, right: object) -> bool:
    """Whether two readings of a place gave the same object, or numbers or texts of one type that
    nothing tells apart (0.0 and -0.0 differ)."""
    return left is right or (type(left) is type(right) and type(left) in _PLAIN
                             and repr(left) == repr(right))


_PLAIN: Final = (int, float, str, bool)


def is_heap_type(cls: type) -> bool:
    """Whether the class was made while the program ran, as by a `class` statement: its attributes
    can be set, and errors name it by its name alone."""
    return bool(cls.__flags__ & _HEAP_TYPE)


class SymbolicValue:
    """Stands for a Python object; its methods are the operations on the object."""

    __slots__ = ("source",)

    source: Source | None

    kind: type
    """The object's type, if the family or each value has its own."""

    original: Any = MISSING
    """The existing Python object behind the value, if its family keeps it so (see `real`)."""

    is_constant = False
    """Whether `constant()` returns the Python object."""

    has_parts = False
    """Whether `constant()` makes a new, equal object each time."""

    has_rules = False
    """Whether `method` also has rules for methods written in Python."""

    weakly_held: bool | None = None
    """Whether a weak reference to the object was made inside; None: the family does not say."""

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    # -- what it is -------------------------------------------------------------------------------

    def python_type(self) -> type:
        """The type of the object."""
        try:
            return self.kind
        except AttributeError:
            raise graph_break("unknown-value", f"the type of {self!r}") from None

    def constant(self) -> Any:
        """The Python object itself; only for values made of constants."""
        raise graph_break("unknown-value", f"{self!r} where a constant is needed")

    def real(self) -> Any:
        """The existing Python object behind the value, or `MISSING` if there is none."""
        return self.original

    def outside_object(self) -> object:
        """The object that was there before the frame, or `MISSING`; also of an unread one."""
        return self.real()

    def copied(self, tx: Interpreter) -> Any:
        """An equal Python object made anew from what is known of this one, or `MISSING`."""
        return MISSING

    def own_attributes(self) -> Namespace | None:
        """The object's `__dict__`, if the family keeps one."""
        return None

    def underlying(self) -> SymbolicValue:
        """What C functions see: the container, number or text of an instance of a subclass."""
        return self

    def dict_key(self, tx: Interpreter) -> object:
        """A hashable object that compares as the real one does, to look it up in dictionaries."""
        raise graph_break("unknown-operation", f"hash of {self!r}")

    # -- what can be done with it -----------------------------------------------------------------

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        """`self.name`."""
        raise graph_break("unknown-operation", f"attribute {name!r} of {self!r}")

    def slot_attribute(self, tx: Interpreter, name: str) -> SymbolicValue:
        """What a descriptor of a C type, a slot of the object, gives."""
        raise graph_break("unknown-operation", f"attribute {name!r} of {self!r}")

    def setattr(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        """`self.name = value`."""
        raise graph_break("unknown-operation", f"setting attribute {name!r} of {self!r}")

    def delattr(self, tx: Interpreter, name: str) -> None:
        """`del self.name`."""
        raise graph_break("unknown-operation", f"deleting attribute {name!r} of {self!r}")

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        """`self(*args, **kwargs)`."""
        raise self._no_rule(tx, f"a call of {self!r}", "object is not callable", "__call__")

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        """`self.name(*args, **kwargs)`."""
        return self.getattr(tx, name).call(tx, args, kwargs)

    def truth(self, tx: Interpreter) -> bool:
        """`bool(self)`."""
        return True

    def length(self, tx: Interpreter) -> int:
        """`len(self)`."""
        raise graph_break("unknown-operation", f"len of {self!r}")

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        """`self[key]`."""
        raise self._no_rule(tx, f"indexing {self!r}", "object is not subscriptable", "__getitem__")

    def setitem(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue) -> None:
        """`self[key] = value`."""
        raise self._no_rule(tx, f"item assignment to {self!r}",
                            "object does not support item assignment", "__setitem__")

    def delitem(self, tx: Interpreter, key: SymbolicValue) -> None:
        """`del self[key]`."""
        verb = "doesn't" if hasattr(self.python_type(), "__getitem__") else "does not"
        raise self._no_rule(tx, f"item deletion from {self!r}",
                            f"object {verb} support item deletion", "__delitem__")

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        """`item in self`."""
        return any(tx.equal(candidate, item) for candidate in self.iterate(tx))

    def iter(self, tx: Interpreter) -> SymbolicValue:
        """`iter(self)`."""
        raise self._no_rule(tx, f"iteration over {self!r}", "object is not iterable",
                            "__iter__", "__getitem__")

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        """`next(self)`, or None at the end."""
        raise graph_break("unknown-operation", f"next of {self!r}")

    def iterate(self, tx: Interpreter) -> Iterable[SymbolicValue]:
        """The items of `iter(self)`, one at a time."""
        yield from drain(tx, self.iter(tx))

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        """`self op other` (reflected: `other op self`), or None if the type does not define it."""
        return None

    def plain_number(self, tx: Interpreter) -> SymbolicValue:
        """The value itself, or the Python number in a NumPy scalar or tensor without dimensions."""
        return self

    def formatted_as(self, tx: Interpreter, spec: SymbolicValue) -> SymbolicValue:
        """The value that has the same text in this format, and whose text can be known."""
        return self

    def _no_rule(
        self, tx: Interpreter, operation: str, refusal: str, *methods: str
    ) -> GraphBreak | ObservedException:
        """What an operation without a rule raises: Python's error if the type has none of its
        methods."""
        kind = self.python_type()
        is_plain = type(kind) is type and (
            kind.__module__ == "builtins" or is_heap_type(kind)) and kind is not type
        if is_plain and not any(name in vars(base) for base in kind.__mro__ for name in methods):
            return tx.error(TypeError, f"'{kind.__name__}' {refusal}")
        return graph_break("unknown-operation", operation)

    # -- what becomes of it -----------------------------------------------------------------------

    def proxy(self, tx: Interpreter) -> Any:
        """What stands for the value in the arguments of a graph node."""
        raise graph_break("unknown-value", f"{self!r} as an argument of a tensor operation")

    def fake(self, tx: Interpreter) -> Any:
        """What torch functions are run on while capturing: a fake tensor, or the constant."""
        raise graph_break("unknown-value", f"{self!r} as an argument of a tensor operation")

    def rebuild(self, emit: Emitter) -> str:
        """A Python expression that makes the object; used for values without a source."""
        raise graph_break("unknown-value", f"{self!r} is alive at a graph break or escapes")

    def __repr__(self) -> str:
        return type(self).__name__.removesuffix("Value").lower()


class Namespace(SymbolicValue):
    """A dictionary of variables: the globals of a module, the `__dict__` of an object."""

    __slots__ = ()

    original: Any
    """The dictionary outside, or None."""

    owner_type: type
    """The type of the object whose `__dict__` it is; `dict` for any other dictionary."""

    def lookup(self, tx: Interpreter, key: object) -> SymbolicValue | None:
        """The value under a Python key, or None; either is guarded."""
        raise NotImplementedError

    def store(self, tx: Interpreter, key: object, key_value: SymbolicValue, value: SymbolicValue
              ) -> None:
        """Set a key."""
        raise NotImplementedError


def drain(tx: Interpreter, iterator: SymbolicValue) -> Iterator[SymbolicValue]:
    """The remaining items of an iterator."""
    while (item := iterator.next(tx)) is not None:
        tx.tick()
        yield item


class OutsideObject(SymbolicValue):
    """An object from outside that capture never changes."""

    __slots__ = ("object",)

    def __init__(self, object: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.object = object

    def python_type(self) -> type:
        return type(self.object)

    def real(self) -> Any:
        return self.object

    def rebuild(self, emit: Emitter) -> str:
        return emit.constant(self.object)


class LazyValue(SymbolicValue):
    """An argument of the frame, or an item of a container, that was not read yet: it has no
    guard."""

    __slots__ = ("object",)

    def __init__(self, source: Source, object: Any) -> None:
        super().__init__(source)
        self.object = object

    def outside_object(self) -> object:
        return self.object

    def __repr__(self) -> str:
        return f"unread {self.source}"


class NullValue(SymbolicValue):
    """The NULL that CPython keeps on the stack below callables."""

    __slots__ = ()


NULL = NullValue()


class HandledMarker(SymbolicValue):
    """What PUSH_EXC_INFO leaves below a handler's items, where CPython saves the exception that was
    being handled before. A continuation takes `exception` as an argument for it (stack kind
    "e")."""

    __slots__ = ("active", "exception")

    def __init__(self, exception: SymbolicValue) -> None:
        super().__init__()
        self.exception = exception
        self.active = True
        """False after POP_EXCEPT: a re-raise leaves it on the stack without a meaning."""


def stack_kinds(stack: list[SymbolicValue]) -> str:
    """The kinds of the stack items, one letter each, as `continuation.resume_function` takes
    them."""
    return "".join(map(_kind, stack))


def _kind(value: SymbolicValue) -> str:
    if isinstance(value, HandledMarker):
        return "e" if value.active else "v"
    return "n" if value.__class__ is NullValue else "v"


def stack_arguments(emit: Emitter, stack: list[SymbolicValue]) -> list[str]:
    """Expressions for the continuation's arguments that hold the stack items."""
    texts = []
    for value in stack:
        if isinstance(value, HandledMarker):
            texts.append(emit.value(value.exception) if value.active else "None")
        elif value.__class__ is not NullValue:
            texts.append(emit.value(value))
    return texts
