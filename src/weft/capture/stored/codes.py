"""Byte code that an entry refers to, found again in another process.

Place in the pipeline: a part of `records.py`. Continuations go on in the root's code or in that of
an inlined function, and tracebacks show both. The root's code is at hand; another one is what a
function has whose name leads to it, or it is inside of that one::

    codes.reference(code)        # [function, or None for the root, and places among constants]
    code_at(reader, reference, root, namespace)   # the same code here, and its global variables
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, final

from weft.store import NotStorable, Reader, Writer
from weft.store.code_hash import code_hash
from weft.store.identity import Data
from weft.store.writer import outer_function


@final
class Codes:
    """The code objects that one entry may refer to: the root's, and what was interpreted."""

    def __init__(self, writer: Writer, root: types.CodeType,
                 interpreted: Mapping[int, tuple[types.CodeType, str]]) -> None:
        self.writer = writer
        self.root = root
        self._modules: dict[str, tuple[types.CodeType, str]] = {}
        for code, module in interpreted.values():
            self._modules.setdefault(code_hash(code), (code, module))

    def reference(self, code: types.CodeType) -> Data:
        """How another process finds an equal code; raises NotStorable."""
        wanted = code_hash(code)
        path = _path_to(wanted, self.root)
        if path is not None:
            return [None, path]
        known, module = self._modules.get(wanted, (code, ""))
        name, _, _ = known.co_qualname.partition(".<locals>.")
        outer = outer_function(module, name)
        path = None if outer is None else _path_to(wanted, outer.__code__)
        if path is None:
            raise NotStorable(f"it goes on in {known.co_qualname}, to which no name leads")
        return [self.writer.refer(outer), path]


def _path_to(wanted: str, code: types.CodeType) -> list[int] | None:
    """The places among constants that lead to a code with that hash."""
    if code_hash(code) == wanted:
        return []
    for at, part in enumerate(code.co_consts):
        if isinstance(part, types.CodeType):
            path = _path_to(wanted, part)
            if path is not None:
                return [at, *path]
    return None


def code_at(reader: Reader, reference: Data, root: types.CodeType, namespace: dict[str, Any]
            ) -> tuple[types.CodeType, dict[str, Any]]:
    """The code that a reference leads to, from `root` on if nothing else is named, and its global
    variables."""
    function, path = reference
    code = root
    if function is not None:
        outer = reader.value(function)
        code, namespace = outer.__code__, outer.__globals__
    for at in path:
        code = code.co_consts[at]
    return code, namespace
