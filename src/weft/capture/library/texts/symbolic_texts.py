"""Strings that contain sizes and other symbolic numbers.

Place in the pipeline: beside constants. A message that is only stored, returned or never shown
fixes no size. Where the program looks at the text it becomes a constant, by guards on the numbers
in it::

    name = f"{x.shape[0]} rows"     # no guard; replacement: `c0_format(v[3], '') + ' rows'`
    table[name]                     # a guard: x.shape[0] == 8

The same holds for texts of tensors: they end the graph only where somebody reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import GraphBreak, Restart
from weft.capture.core.constant import ConstantValue, evaluate, python_object
from weft.capture.library.containers.sequences import SizeValue, TupleValue
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


class TextPart(Protocol):
    """A part of a text that differs from call to call."""

    def text(self, tx: Interpreter) -> str: ...

    def rebuild(self, emit: Emitter) -> str: ...


@final
@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A number, or a tuple with numbers, as `function` (str, repr, format) writes it."""

    function: Callable[..., str]
    value: SymbolicValue
    more: tuple[str, ...]
    """The format."""

    def text(self, tx: Interpreter) -> str:
        """The text in this call, fixed by guards."""
        written = python_object(tx, self.value)
        return evaluate(tx, lambda: self.function(written, *self.more))

    def rebuild(self, emit: Emitter) -> str:
        arguments = ", ".join([emit.value(self.value), *map(repr, self.more)])
        return f"{emit.constant(self.function)}({arguments})"


@final
@dataclass(frozen=True, slots=True)
class DataPart:
    """What a tensor's data decide: where the text is read, the graph ends before the step that
    wrote it. A message of a check that holds is never read."""

    step: int
    reason: GraphBreak
    copied: WrittenPart | None
    """The text of a copy of the tensor, if the replacement can write that."""

    def text(self, tx: Interpreter) -> str:
        raise Restart(self.step, self.reason)

    def rebuild(self, emit: Emitter) -> str:
        if self.copied is not None:
            return self.copied.rebuild(emit)
        emit.tx.early_ends.shown_texts.append(Restart(self.step, self.reason))
        return "''"


def text_of_data(tx: Interpreter, reason: GraphBreak, copied: WrittenPart | None) -> TextValue:
    """A text that the current instruction makes of a tensor's data; `reason`: why it is unknown."""
    reason.stack = tx.stack()
    return TextValue(tx, (DataPart(tx.breaking_step(), reason, copied),))


@final
class TextValue(SymbolicValue):
    """A string made of texts and written numbers; becomes a constant when it is read."""

    __slots__ = ("known", "parts", "tx")
    is_constant = True

    def __init__(self, tx: Interpreter, parts: tuple[str | TextPart, ...]) -> None:
        super().__init__()
        self.tx = tx
        self.parts = parts
        self.known: ConstantValue | None = None

    def python_type(self) -> type:
        return str

    def fixed(self) -> ConstantValue:
        """The text in this call."""
        if self.known is None:
            texts = [p if isinstance(p, str) else p.text(self.tx) for p in self.parts]
            self.known = ConstantValue("".join(texts))
        return self.known

    def constant(self) -> Any:
        return self.fixed().value

    def dict_key(self, tx: Interpreter) -> object:
        return self.constant()

    def length(self, tx: Interpreter) -> int:
        return self.fixed().length(tx)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        return self.fixed().getattr(tx, name)

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self.fixed().method(tx, name, args, kwargs)

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        return self.fixed().getitem(tx, key)

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        return self.fixed().contains(tx, item)

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return self.fixed().iter(tx)

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        pair = (other, self) if reflected else (self, other)
        if op in ("add", "iadd") and other.python_type() is str:
            return join_texts(tx, pair)
        left, right = (part.fixed() if isinstance(part, TextValue) else part for part in pair)
        return tx.binary(op, left, right)

    def proxy(self, tx: Interpreter) -> Any:
        return self.constant()

    def fake(self, tx: Interpreter) -> Any:
        return self.constant()

    def rebuild(self, emit: Emitter) -> str:
        if self.known is not None:
            return self.known.rebuild(emit)
        texts = [repr(p) if isinstance(p, str) else p.rebuild(emit) for p in self.parts]
        return emit.bind(self, " + ".join(texts))

    def __repr__(self) -> str:
        return "a text with sizes or data"


def format_symbolic(tx: Interpreter, function: Callable[..., str], value: SymbolicValue, *more: str
            ) -> TextValue | None:
    """`function(value, *more)`, for a value with symbolic numbers or a text with some.

    None for other values, and for formats that the value may not support.
    """
    if isinstance(value, TextValue) and function is not repr and not any(more):
        return value
    holds = _holds_numbers(tx, value) or (isinstance(value, TextValue) and function is format)
    if not holds or not all(fits(value.python_type(), format) for format in more):
        return None
    return TextValue(tx, (WrittenPart(function, value, more),))


_FORMAT: Final = re.compile(r"[<>=^]?[-+ ]?0?\d*[,_]?(\.\d+)?[bdeEfFgGoxX%]?")


def fits(kind: type, format_spec: str) -> bool:
    """Whether the format works for all values of that type."""
    if not format_spec:
        return True
    try:
        format(kind(1), format_spec)
    except (TypeError, ValueError):
        return False
    return _FORMAT.fullmatch(format_spec) is not None


def _holds_numbers(tx: Interpreter, value: SymbolicValue) -> bool:
    """Whether it is a symbolic number, or a tuple of those and of constants."""
    if isinstance(value, SymbolicNumberValue):
        return True
    if not isinstance(value, TupleValue) or type(value) not in (TupleValue, SizeValue):
        return False
    items = [tx.force(item) for item in value.items]
    return any(isinstance(item, SymbolicNumberValue) for item in items) and all(
        isinstance(item, SymbolicNumberValue | ConstantValue) for item in items)


def join_texts(tx: Interpreter, texts: Iterable[SymbolicValue]) -> SymbolicValue:
    """The concatenation of the texts."""
    return TextValue(tx, tuple(part for text in texts for part in _parts(text)))


def _parts(text: SymbolicValue) -> Iterator[str | TextPart]:
    if isinstance(text, TextValue) and text.known is None:
        yield from text.parts
    else:
        yield text.constant()
