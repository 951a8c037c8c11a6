"""Python versions of C functions whose library has no Python version that could be interpreted.

Place in the pipeline: see `polyfill_rules.py`.
"""

from __future__ import annotations

import json.encoder
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch


def print_to(*values: object, sep: str | None = None, end: str | None = None, file: Any,
             flush: Any = False) -> None:
    """print"""
    for index, value in enumerate(values):
        if index:
            file.write(" " if sep is None else sep)
        file.write(str(value))
    file.write("\n" if end is None else end)
    if flush:
        file.flush()


def make_encoder(markers: object, default: object, encoder: object, indent: object,
                 key_separator: str,
                 item_separator: str, sort_keys: bool, skipkeys: bool, allow_nan: bool) -> object:
    """json.encoder.c_make_encoder"""

    def number_text(number: float) -> str:
        if number - number == 0:
            return float.__repr__(number)
        if not allow_nan:
            raise ValueError(f"Out of range float values are not JSON compliant: {number!r}")
        return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"

    return json.encoder._make_iterencode(  # type: ignore[attr-defined]
        markers, default, encoder, indent, number_text, key_separator, item_separator, sort_keys,
        skipkeys, False)


class Comparable:
    """What the function that `functools.cmp_to_key` makes returns for one object."""

    def __init__(self, compare: Callable[[Any, Any], int], obj: Any) -> None:
        self.compare = compare
        self.obj = obj

    def __lt__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) > 0

    def __le__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) >= 0

    def __eq__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) == 0

    __hash__ = None  # type: ignore[assignment]


def cmp_to_key(mycmp: Callable[[Any, Any], int]) -> Callable[[Any], object]:
    """functools.cmp_to_key"""
    return partial(Comparable, mycmp)


def count_elements(mapping: Any, iterable: Iterable[object]) -> None:
    """The function that collections.Counter counts with."""
    mapping_get = mapping.get
    for element in iterable:
        mapping[element] = mapping_get(element, 0) + 1


def from_keys(cls: Any, iterable: Iterable[object], value: object = None) -> object:
    """dict.fromkeys"""
    result = cls()
    for key in iterable:
        result[key] = value
    return result


def pattern_sub(self: Any, repl: Callable[[Any], Any], string: Any, count: int = 0) -> object:
    """re.Pattern.sub with a function"""
    return self.subn(repl, string, count)[0]


def pattern_subn(self: Any, repl: Callable[[Any], object], string: Any, count: int = 0) -> object:
    """re.Pattern.subn with a function"""
    pieces, end, n = [], 0, 0
    for match in self.finditer(string):
        if count and n >= count:
            break
        pieces.append(string[end:match.start()])
        replaced = repl(match)
        if replaced is not None:
            pieces.append(replaced)
        end = match.end()
        n += 1
    pieces.append(string[end:])
    return string[:0].join(pieces), n


def dict_copy(self: Any) -> dict[Any, Any]:
    """dict.copy of a subclass that overrides its items"""
    return {key: self[key] for key in self.keys()}


def default_copy(self: Any) -> object:
    """defaultdict.copy of a subclass"""
    return type(self)(self.default_factory, self)


def deque_copy(self: Any) -> Any:
    """deque.copy of a subclass"""
    return type(self)(self) if self.maxlen is None else type(self)(self, self.maxlen)


def deque_add(self: object, other: object) -> Any:
    """deque.__add__ of a subclass"""
    if not isinstance(other, deque):
        kind = type(other).__name__
        raise TypeError(f'can only concatenate deque (not "{kind}") to deque')
    result = deque_copy(self)
    deque.extend(result, other)
    return result


def deque_multiplied(self: object, times: Any) -> Any:
    """deque.__mul__ of a subclass"""
    result = deque_copy(self)
    return deque.__imul__(result, times)


def ordered_copy(self: Any) -> object:
    """OrderedDict.copy of a subclass"""
    copy = type(self)()
    for key in OrderedDict.keys(self):
        copy[key] = self[key]
    return copy


def ordered_update(self: Any, /, *others: Any, **named: Any) -> None:
    """OrderedDict.update of a subclass, and its initialiser"""
    if len(others) > 1:
        raise TypeError(f"update() takes at most 1 positional argument ({len(others)} given)")
    for other in others:
        if hasattr(other, "keys"):
            for key in other.keys():  # noqa: SIM118  of a mapping of any kind
                self[key] = other[key]
        else:
            for key, value in other:
                self[key] = value
    for key, value in named.items():
        self[key] = value


def ordered_setdefault(self: Any, key: Any, default: Any = None) -> object:
    """OrderedDict.setdefault of a subclass"""
    if key in self:
        return self[key]
    self[key] = default
    return default


def circular_pad(input: torch.Tensor, pad: Any) -> torch.Tensor:
    """Circular `torch.nn.functional.pad`, which C++ writes part by part into empty memory."""
    for number in range(len(pad) // 2):
        before, after, dim = pad[2 * number], pad[2 * number + 1], -1 - number
        last = [input.narrow(dim, input.shape[dim] - before, before)] if before else []
        first = [input.narrow(dim, 0, after)] if after else []
        if last or first:
            input = torch.cat([*last, input, *first], dim)
    return input


def warning_filters() -> object:
    """The program's current list of filters."""
    return warnings.filters


def warning_sink() -> object:
    """What is called with the warnings that are shown."""
    return vars(warnings)["_showwarnmsg_impl"]


def show_warning(text: str, category: type[Warning], file: str, line: int) -> None:
    """What C code does with a warning that is shown."""
    shown = warnings.WarningMessage(category(text), category, file, line)
    vars(warnings)["_showwarnmsg"](shown)


def warning_action(text: str, category: type[Warning], module: str, line: int) -> str:
    """What warnings.warn should do according to the filters."""
    entries: Any = warnings.filters
    for action, message, kind, pattern, where in entries:
        if (issubclass(category, kind) and (message is None or message.match(text))
                and (pattern is None or pattern.match(module)) and where in (0, line)):
            return str(action)
    return "default"
