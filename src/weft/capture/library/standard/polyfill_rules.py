"""Which polyfill is interpreted in place of a C function of the standard library or of torch.

Place in the pipeline: see `weft.capture.library`; the polyfills are beside it and in other
subjects::

    polyfill(functools.cmp_to_key, library.cmp_to_key)
"""

from __future__ import annotations

import bisect
import collections
import functools
import heapq
import json.encoder
import json.scanner
import operator
import re
from types import ModuleType
from typing import TYPE_CHECKING, Final

import torch

from weft._torch import infer_size
from weft.capture.core.base import SymbolicValue
from weft.capture.core.constant import METHOD_POLYFILLS
from weft.capture.library.classes import descriptor_polyfills
from weft.capture.library.classes.classes import python_constructor
from weft.capture.library.functions.builtins import SUBCLASS_METHODS, method_rule
from weft.capture.library.functions.functions import polyfill, python_rule, rule
from weft.capture.library.standard import library_polyfills
from weft.capture.library.standard.twin_polyfills import twin

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_TWINS: Final[dict[ModuleType, tuple[str, ...]]] = {
    heapq: ("heappush", "heappop", "heapify", "heappushpop", "heapreplace", "_heappop_max",
            "_heapify_max", "_heapreplace_max"),
    bisect: ("bisect_left", "bisect_right", "insort_left", "insort_right"),
    operator: ("countOf", "indexOf", "length_hint", "concat", "iconcat", "delitem", "call"),
}


def _register(module: ModuleType, name: str) -> None:
    original = getattr(module, name)

    @rule(original)
    def interpret(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
                  ) -> SymbolicValue:
        return tx.call_python(twin(module, name), [*args], kwargs)


for _module, _names in _TWINS.items():
    for _name in _names:
        if hasattr(_module, _name):
            _register(_module, _name)


python_constructor(
    vars(json.encoder)["c_make_encoder"], library_polyfills.make_encoder)
python_constructor(
    vars(json.scanner)["c_make_scanner"], vars(json.scanner)["py_make_scanner"])
polyfill(infer_size, torch.broadcast_shapes)
polyfill(functools.cmp_to_key, library_polyfills.cmp_to_key)
polyfill(vars(collections)["_count_elements"], library_polyfills.count_elements)


method_rule((dict, "fromkeys"), (collections.OrderedDict, "fromkeys"))(
    python_rule(library_polyfills.from_keys))

for _method, _function in descriptor_polyfills.METHODS.items():
    method_rule(_method)(python_rule(_function))

METHOD_POLYFILLS[re.Pattern, "sub"] = library_polyfills.pattern_sub
METHOD_POLYFILLS[re.Pattern, "subn"] = library_polyfills.pattern_subn

_STORE = ("__setitem__",)
SUBCLASS_METHODS[dict, "copy"] = (library_polyfills.dict_copy, ("__iter__",))
SUBCLASS_METHODS[collections.defaultdict, "copy"] = (library_polyfills.default_copy, ())
SUBCLASS_METHODS[collections.deque, "copy"] = (library_polyfills.deque_copy, ())
SUBCLASS_METHODS[collections.deque, "__copy__"] = (library_polyfills.deque_copy, ())
SUBCLASS_METHODS[collections.deque, "__add__"] = (library_polyfills.deque_add, ())
SUBCLASS_METHODS[collections.deque, "__mul__"] = (library_polyfills.deque_multiplied, ())
SUBCLASS_METHODS[collections.deque, "__rmul__"] = (library_polyfills.deque_multiplied, ())
SUBCLASS_METHODS[collections.OrderedDict, "copy"] = (library_polyfills.ordered_copy, ())
SUBCLASS_METHODS[collections.OrderedDict, "__init__"] = (library_polyfills.ordered_update, _STORE)
SUBCLASS_METHODS[collections.OrderedDict, "update"] = (library_polyfills.ordered_update, _STORE)
SUBCLASS_METHODS[collections.OrderedDict, "setdefault"] = (
    library_polyfills.ordered_setdefault, ("__contains__", "__getitem__", "__setitem__"))
