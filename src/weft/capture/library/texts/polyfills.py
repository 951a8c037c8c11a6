"""`str.format` and `%` in Python: the calls in it are interpreted, so numbers stay symbolic.

Place in the pipeline: see `text_formats.py`. Capture itself runs `fields_of` and
`directives_of`, which parse the format.
"""

from __future__ import annotations

import re
from _string import formatter_field_name_split, formatter_parser  # type: ignore[import-not-found]
from typing import Any


def format_text(self: str, /, *args: object, **kwargs: object) -> str:
    """str.format"""
    return _filled(fields_of(self), args, kwargs)


def _filled(pieces: Any, args: object, kwargs: object) -> str:
    text = ""
    for literal, field in pieces:
        text += literal
        if field is not None:
            text += _field(field, args, kwargs)
    return text


def _field(field: Any, args: Any, kwargs: Any) -> str:
    first, steps, conversion, spec = field
    if isinstance(first, str):
        value = kwargs[first]
    elif first < len(args):
        value = args[first]
    else:
        raise IndexError(f"Replacement index {first} out of range for positional args tuple")
    for is_attribute, name in steps:
        value = getattr(value, name) if is_attribute else value[name]
    return format(_converted(conversion, value), _filled(spec, args, kwargs))


def _converted(conversion: str | None, value: object) -> object:
    if conversion == "s":
        return str(value)
    if conversion == "r":
        return repr(value)
    return ascii(value) if conversion == "a" else value


def fields_of(text: str) -> tuple[object, ...]:
    """Pairs of the text before a field and the field: (argument, steps from there, conversion,
    pieces of the format). ValueError if arguments are both counted and numbered."""
    return _fields(text, [])


def _fields(text: str, counted: list[int | None]) -> tuple[Any, ...]:
    return tuple(
        (literal, None if name is None else _parsed_field(name, conversion, spec, counted))
        for literal, name, spec, conversion in formatter_parser(text))


def _parsed_field(name: str, conversion: str | None, spec: str,
                  counted: list[int | None]) -> object:
    """The field; `counted` has an item for each field without a name: whether its position was
    counted."""
    first, steps = formatter_field_name_split(name)
    if not isinstance(first, str) or first == "":
        place = len(counted) if first == "" else None
        if counted and (counted[0] is None) is not (place is None):
            raise ValueError("arguments are counted and numbered")
        counted.append(place)
        first = first if place is None else place
    return first, tuple(steps), conversion, _fields(spec, counted)


def percent_format(self: str, values: Any) -> str:
    """str % values"""
    directives = directives_of(self)
    named = any(isinstance(key, str) for _, key, _, _ in directives)
    if named and (isinstance(values, (str, tuple)) or not hasattr(type(values), "__getitem__")):
        raise TypeError("format requires a mapping")
    if not named and not isinstance(values, tuple):
        values = (values,)
    wanted = sum(key is not None for _, key, _, _ in directives)
    if not named and len(values) != wanted:
        raise TypeError("not enough arguments for format string" if len(values) < wanted else
                        "not all arguments converted during string formatting")
    text = ""
    for literal, key, kind, directive in directives:
        text += literal
        if key is not None:
            text += written_by(_argument(values[key], kind), directive)
    return text


def _argument(value: Any, kind: str) -> object:
    if kind in "eEfFgG" and not isinstance(value, (int, float)):
        return float(value)
    return _converted(kind, value)


def join(self: str, texts: Any) -> str:
    """str.join"""
    return self.join(texts)


def written_by(value: object, directive: str) -> str:
    """One number or text, formatted by its directive."""
    return directive % (value,)


_DIRECTIVE = re.compile(r"([^%]*)%(?:\((\w+)\))?([-+ #0]*\d*(?:\.\d+)?)([diouxXeEfFgGrsa%])")


def directives_of(text: str) -> tuple[tuple[str, int | str | None, str, str], ...]:
    """For each directive: the text before it, its argument (None: none), its letter, and the format
    of the converted argument.

    ValueError for what is not supported: `*`, `%c`, names mixed with positions.
    """
    directives: list[tuple[str, int | str | None, str, str]] = []
    end, counted, named = 0, 0, False
    while (match := _DIRECTIVE.match(text, end)) is not None:
        literal, name, options, kind = match.groups()
        end = match.end()
        if kind == "%":
            directives.append((literal + "%", None, "", ""))
            continue
        named = named or name is not None
        how = "s" if kind in "sra" else kind
        directives.append((literal, counted if name is None else name, kind, f"%{options}{how}"))
        counted += name is None
    if "%" in text[end:] or (named and counted):
        raise ValueError("an unusual format")
    return (*directives, (text[end:], None, "", ""))
