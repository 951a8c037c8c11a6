"""The hash of a code object: equal for equal byte code, in any process and any folder.

Place in the pipeline: the key of stored entries, and what says that a function is still the one
that was inlined. The file's name is left out; lines count, because replacements, warnings and
tracebacks show them::

    code_hash(f.__code__)          # '3f0a...': of constants, names, nested functions, lines

Python's `marshal` would not do: its bytes depend on reference counts.
"""

from __future__ import annotations

import hashlib
import weakref
from types import CodeType
from typing import Any, Final

_SIZE: Final = 20
"""Bytes of a hash: two byte codes with the same one do not happen by chance."""

_known: dict[int, tuple[weakref.ref[CodeType], str]] = {}
"""Hashes by the code's id, as long as the code lives."""


def code_hash(code: CodeType) -> str:
    """The hash of the byte code, in hex."""
    entry = _known.get(id(code))
    if entry is not None and entry[0]() is code:
        return entry[1]
    text = hashlib.blake2b(repr(_fields(code)).encode("utf-8", "surrogatepass"),
                           digest_size=_SIZE).hexdigest()
    key = id(code)
    _known[key] = weakref.ref(code, lambda _: _known.pop(key, None)), text
    return text


def _fields(code: CodeType) -> tuple[object, ...]:
    return (
        code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
        code.co_name, code.co_qualname, code.co_flags, code.co_argcount, code.co_posonlyargcount,
        code.co_kwonlyargcount, code.co_nlocals, code.co_stacksize, code.co_exceptiontable,
        code.co_firstlineno, code.co_linetable, tuple(map(_constant, code.co_consts)),
    )


def _constant(value: Any) -> object:
    """A constant with its types: `1`, `True` and `1.0` are equal, `0.0` and `-0.0` too."""
    if isinstance(value, CodeType):
        return "code", code_hash(value)
    if type(value) is tuple:
        return "tuple", tuple(map(_constant, value))
    if type(value) is frozenset:  # its order differs between processes
        return "frozenset", tuple(sorted(repr(_constant(item)) for item in value))
    return type(value).__name__, repr(value)


def nested_codes(code: CodeType) -> list[CodeType]:
    """The code object and all functions, classes and comprehensions in it."""
    return [code, *(inner for part in code.co_consts if isinstance(part, CodeType)
                    for inner in nested_codes(part))]
