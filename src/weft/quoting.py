"""Texts of the program inside texts of weft: names, paths and messages that may hold anything.

Place in the pipeline: the bottom; whatever writes Python, C++, Triton, reports or logs quotes with
these functions, so that nothing of a program's names is executed, ends a comment or a literal, or
moves a terminal's cursor::

    f"# {one_line(file)}:3"              # x.py\\x0aimport os
    attribute("c0", name)                # c0.eps, or getattr(c0, 'a b')
    f"f({keyword(name, 'v[0]')})"        # f(eps=v[0]), or f(**{'a b': v[0]})
"""

from __future__ import annotations

from keyword import iskeyword


def one_line(text: object) -> str:
    """The text on one line: backslashes, and all characters that are not printable, are escaped."""
    plain = text if type(text) is str else str.__str__(text) if isinstance(text, str) else str(text)
    if plain.isprintable() and "\\" not in plain:
        return plain
    return "".join(char if char.isprintable() and char != "\\" else _escaped(char)
                   for char in plain)


def printable(text: str) -> str:
    """A text of several lines without characters that move a terminal's cursor, say."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def as_comment(text: object, mark: str = "#") -> str:
    """The lines of the text as lines of comments."""
    return "\n".join(f"{mark} {one_line(line)}." if line.endswith("\\") else
                     f"{mark} {one_line(line)}".rstrip() for line in str(text).split("\n"))


def literal(text: str) -> str:
    """The text as a literal of Python, whatever its class's `__repr__` says."""
    return str.__repr__(text)


def is_name(text: str) -> bool:
    """Whether the text is a name that Python keeps as it is written. (It normalizes others: "ﬁ" is
    the name "fi".)"""
    plain = str.__str__(text)
    return plain.isascii() and plain.isidentifier() and not iskeyword(plain)


def attribute(owner: str, name: str) -> str:
    """An expression for the attribute of that name."""
    return f"{owner}.{str.__str__(name)}" if is_name(name) else f"getattr({owner}, {literal(name)})"


def assignment(owner: str, name: str, value: str) -> str:
    """A statement that sets the attribute of that name."""
    if is_name(name):
        return f"{owner}.{str.__str__(name)} = {value}"
    return f"setattr({owner}, {literal(name)}, {value})"


def keyword(name: str, value: str) -> str:
    """An argument with that name, for a call."""
    return f"{str.__str__(name)}={value}" if is_name(name) else f"**{{{literal(name)}: {value}}}"
