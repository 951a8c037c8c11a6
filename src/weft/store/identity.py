"""What an object of the program is: data that is equal for the same program in another process.

Place in the pipeline: how guards by identity cross processes. "This very function" is stored as
"a function with this byte code and these defaults"; when the entry is loaded, the object that is at
the same place is looked at once, and becomes the one that the guard requires::

    identity(f)        # ['function', 'model', 'f', '3f0a...', [['int', '4']], ...]

Only what cannot change in a process has to be looked at here, because everything else has guards of
its own: the data of a class or of an object are values at other places.
"""

from __future__ import annotations

import enum
import functools
import operator
import re
import sys
import types
from collections.abc import Callable
from typing import Any, Final, TypeAlias, final

import numpy
import torch
import torch.distributed as dist

from weft.store.code_hash import code_hash, nested_codes
from weft.store.errors import NotStorable
from weft.store.names import is_library, name_of

Data: TypeAlias = Any
"""None, bool, int, str, and lists of them."""

MRO: Final = type.__dict__["__mro__"].__get__
ATTRIBUTES: Final = type.__dict__["__dict__"].__get__

C_DESCRIPTORS: Final = (
    types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType)
_CONTAINERS: Final = (dict, list, set, types.CellType, types.MappingProxyType)
_HEAP: Final = 1 << 9
_PLAIN: Final = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis),
                 type(NotImplemented), torch.dtype, torch.layout, torch.memory_format,
                 torch.device, torch.Size, range)


def identity(obj: Any) -> Data:
    """What the object is; raises NotStorable if that cannot be said."""
    return Looking().at(obj)


@final
class Looking:
    """Looks at objects and at what they consist of, which may refer to themselves; for as long as
    nothing changes, because classes are looked at once."""

    def __init__(self) -> None:
        self._open: list[Any] = []
        self._classes: dict[int, Data] = {}
        self.codes: set[str] = set()
        """The hashes that were taken of the program's functions, and of those inside of them."""

    def at(self, obj: Any) -> Data:
        if isinstance(obj, _PLAIN) and type(obj) in _PLAIN:
            return [type(obj).__name__, repr(obj)]
        for number, outer in enumerate(self._open):
            if outer is obj:
                return ["again", number]
        self._open.append(obj)
        try:
            return self._of(obj)
        finally:
            self._open.pop()

    def _of(self, obj: Any) -> Data:
        rule = _RULES.get(type(obj))
        if rule is not None:
            return rule(self, obj)
        if isinstance(obj, type):
            return _header(obj) if len(self._open) > 1 else self.of_class(obj)
        if isinstance(obj, types.ModuleType):
            return ["module", obj.__name__, version_of(obj.__name__)]
        if isinstance(obj, enum.Enum):
            return ["member", _header(type(obj)), obj._name_, *self.of_member(obj)]
        if type(obj).__flags__ & _HEAP and _is_of_python(type(obj)):
            return ["instance", _header(type(obj))]
        named = name_of(obj)
        if named is not None and is_library(named[0]):
            return ["named", *named]
        if isinstance(obj, numpy.ufunc):
            name = str(obj.__name__)
            named = ("numpy", name) if vars(numpy).get(name) is obj else None
        if named is not None and callable(obj) and named[0].partition(".")[0] == "numpy":
            return ["named", *named]  # its version is in the key
        raise NotStorable(f"it depends on a {type(obj).__module__}.{type(obj).__qualname__}")

    def of_function(self, function: types.FunctionType) -> Data:
        module = str(function.__globals__.get("__name__"))
        code = function.__code__
        if is_library(module):
            return ["function", module, code.co_qualname, code.co_firstlineno, len(code.co_code)]
        return ["function", module, code.co_qualname, self.of_code(code),
                [self.part(value) for value in function.__defaults__ or ()],
                [[name, self.part(value)] for name, value in sorted(
                    (function.__kwdefaults__ or {}).items())]]

    def of_code(self, code: types.CodeType) -> Data:
        self.codes.update(map(code_hash, nested_codes(code)))
        return ["code", code_hash(code)]

    def part(self, obj: Any) -> Data:
        """What a default is: its type, if there is no more to say (what is read has a guard)."""
        try:
            return self.at(obj)
        except NotStorable:
            return ["some", type(obj).__module__, type(obj).__qualname__]

    def of_class(self, cls: type) -> Data:
        """The class and its bases, with all their code."""
        header = _header(cls)
        if not cls.__flags__ & _HEAP or is_library(header[1]):
            return header
        return [*header, _header(type(cls)), cls.__dictoffset__, cls.__flags__ & _FLAGS,
                [self.own(base) for base in MRO(cls)]]

    def own(self, cls: type) -> Data:
        """What the class itself defines."""
        header = _header(cls)
        if not cls.__flags__ & _HEAP or is_library(header[1]):
            return header
        if id(cls) not in self._classes:
            members = cls.__dict__["_member_map_"].values() if (
                isinstance(cls, enum.EnumMeta) and "_member_map_" in cls.__dict__) else ()
            self._classes[id(cls)] = [*header, *map(self.of_member, members), *(
                [str(name), self.member(value)] for name, value in sorted(
                    ATTRIBUTES(cls).items(), key=lambda item: str(item[0]))
                if name not in _UNSEEN)]
        return self._classes[id(cls)]

    def of_member(self, member: enum.Enum) -> list[Data]:
        """What a member of an enumeration holds: capture takes it for a constant."""
        return [[name, self.at(value)] for name, value in sorted(vars(member).items())
                if name not in ("_name_", "__objclass__", "_sort_order_")]

    def member(self, value: Any) -> Data:
        """What a class has under a name: its code, if it is any; data have guards of their own."""
        if isinstance(value, (types.FunctionType, property, classmethod, staticmethod)):
            return self.part(value)
        return [type(value).__module__, type(value).__qualname__]


def _header(cls: type) -> Data:
    module = str(ATTRIBUTES(cls).get("__module__", cls.__module__))
    return ["class", module, cls.__qualname__, version_of(module)]


_FLAGS: Final = 1 << 20 | 1 << 10 | 1 << 8
"""Abstract, may be a base, immutable."""

_UNSEEN: Final = frozenset({"__doc__", "__dict__", "__weakref__", "__firstlineno__",
                            "__static_attributes__", "_abc_impl", "__annotations_cache__"})


def _is_of_python(cls: type) -> bool:
    """Whether the class and its bases are classes of Python, or C's containers: then everything
    that its instances hold is read through guards."""
    return all(base is object or issubclass(base, torch.Tensor) or base in _CONTAINERS
               or _was_made_by_python(base) for base in MRO(cls)) or issubclass(cls, torch.Tensor)


def _was_made_by_python(cls: type) -> bool:
    """Whether a class statement made it: those of C have methods of C."""
    return "__module__" in ATTRIBUTES(cls) and not any(
        isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType))
        for value in ATTRIBUTES(cls).values())


def version_of(module: str) -> str:
    """The version that the package of a module says it has, if it is neither PyTorch's nor
    Python's."""
    if is_library(module):
        return ""
    package = sys.modules.get(module.partition(".")[0])
    version = vars(package).get("__version__") if package is not None else None
    return version if type(version) is str else ""


def _descriptor(look: Looking, obj: Any) -> Data:
    return ["descriptor", type(obj).__name__, look.at(obj.__objclass__), obj.__name__]


def _builtin(look: Looking, obj: Any) -> Data:
    owner = obj.__self__
    if owner is None or isinstance(owner, types.ModuleType):
        module = str(obj.__module__)
        return ["builtin", module, obj.__qualname__, version_of(module)]
    return ["builtin of", obj.__qualname__, look.at(owner)]


def _group(look: Looking, group: Any) -> Data:
    """What graphs know of a process group; who asks for its rank guards that, too."""
    return ["group", group.group_name, group.group_desc, group.name(), group.size()]


_RULES: Final[dict[type, Callable[[Looking, Any], Data]]] = {
    types.FunctionType: Looking.of_function,
    types.BuiltinFunctionType: _builtin,
    types.MethodType: lambda look, m: ["method", look.at(m.__func__), look.at(m.__self__)],
    types.CodeType: Looking.of_code,
    property: lambda look, p: ["property", *(look.at(f) for f in (p.fget, p.fset, p.fdel))],
    classmethod: lambda look, m: ["classmethod", look.at(m.__func__)],
    staticmethod: lambda look, m: ["staticmethod", look.at(m.__func__)],
    functools._lru_cache_wrapper: lambda look, f: [
        "lru", look.at(f.__wrapped__), repr(f.cache_parameters())],
    functools.cached_property: lambda look, p: ["cached", look.at(p.func)],
    functools.partial: lambda look, p: [
        "partial", look.at(p.func), [look.at(a) for a in p.args],
        [[n, look.at(a)] for n, a in p.keywords.items()]],
    tuple: lambda look, items: ["tuple", *map(look.at, items)],
    slice: lambda look, s: ["slice", look.at(s.start), look.at(s.stop), look.at(s.step)],
    re.Pattern: lambda look, p: ["pattern", look.at(p.pattern), p.flags],
    operator.attrgetter: lambda look, g: ["getter", repr(g)],
    **dict.fromkeys(C_DESCRIPTORS, _descriptor),
    **{kind: lambda look, obj: ["container", type(obj).__name__] for kind in _CONTAINERS},
    dict: lambda look, obj: ["namespace", str(obj.get("__name__"))] if (
        "__builtins__" in obj) else ["container", "dict"],
}
if dist.is_available():
    _RULES[dist.ProcessGroup] = _group
