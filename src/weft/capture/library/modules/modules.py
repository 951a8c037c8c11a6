"""nn.Module instances and Python module objects.

Place in the pipeline: value families. Attributes of an nn.Module are looked up in its instance
dictionary, then in `_parameters`, `_buffers`, `_modules`. While there are no hooks, a call goes
straight to `forward`.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch.nn.modules import module as torch_module

from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import evaluate
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.core.wrappers import has_wrapping_hooks
from weft.capture.library.classes.attributes import bind, class_value, type_lookup
from weft.capture.library.classes.classes import FRESH
from weft.capture.library.classes.instances import ObjectValue
from weft.capture.library.classes.unknown import unknown
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

_STORES: Final = ("_parameters", "_buffers", "_modules")
_HOOKS: Final = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
_GLOBAL_HOOKS: Final = ("_global_backward_hooks", "_global_backward_pre_hooks",
                        "_global_forward_hooks", "_global_forward_pre_hooks")


@final
class ModuleValue(ObjectValue):
    """An nn.Module."""

    __slots__ = ()

    def store(self, tx: Interpreter, name: str) -> DictValue | None:
        """One of the dictionaries of parameters, buffers and modules."""
        entries = self.attributes.lookup(tx, name)
        return entries if isinstance(entries, DictValue) else None

    def missing_attribute(self, tx: Interpreter, name: str, error: ObservedException
                          ) -> SymbolicValue:
        if type_lookup(self.cls, "__getattr__") is not torch.nn.Module.__getattr__:
            return super().missing_attribute(tx, name, error)
        for store_name in _STORES:
            store = self.store(tx, store_name)
            attribute = store.lookup(tx, name) if store is not None else None
            if attribute is not None:
                return attribute
        raise error

    def generic_getattr(self, tx: Interpreter, name: str, fallback: bool = True) -> SymbolicValue:
        self.attributes.guard_keys(tx)
        return super().generic_getattr(tx, name, fallback)

    def setattr(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        plain = type_lookup(self.cls, "__setattr__") is torch.nn.Module.__setattr__
        special = isinstance(value, (ModuleValue, TensorValue))
        if not plain or special or self._in_store(tx, name):
            super().setattr(tx, name, value)
        else:
            self.generic_setattr(tx, name, value)

    def _in_store(self, tx: Interpreter, name: str) -> bool:
        stores = [self.store(tx, store_name) for store_name in _STORES]
        return any(s is not None and s.lookup(tx, name) is not None for s in stores)

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        caller = type_lookup(self.cls, "__call__")
        if caller is not torch.nn.Module.__call__:
            return super().call(tx, args, kwargs)
        self.attributes.guard_keys(tx)
        if isinstance(self.original, torch.nn.Module) and has_wrapping_hooks(
                self.original):
            raise graph_break("distributed-wrapper", f"a call of {self.cls.__name__}")
        if self._has_hooks(tx) or self.attributes.lookup(tx, "_compiled_call_impl") is not None:
            return self._full_call(tx, args, kwargs)
        forward = self.getattr(tx, "forward")
        tx.frames_left_out = True
        return forward.call(tx, args, kwargs)

    def _has_hooks(self, tx: Interpreter) -> bool:
        library = tx.globals_of(vars(torch_module))
        hooks = (*(library.lookup(tx, name) for name in _GLOBAL_HOOKS),
                 *(self.attributes.lookup(tx, name) for name in _HOOKS))
        return any(isinstance(table, DictValue) and table.length(tx) for table in hooks)

    def _full_call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        tx.direct_call = False
        implementation = type_lookup(self.cls, "_call_impl")
        return tx.wrap_fixed(implementation, "_call_impl").call(tx, [self, *args], kwargs)


@wraps(torch.nn.Module, subclasses=True)
def _wrap_module(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    cls = type(obj)
    if source is None:
        source = tx.tree.object(obj, cls.__name__)
    if not source.is_fixed:
        tx.guards.add(source, "type_is", cls)
    return ModuleValue(cls, source, obj)


def _fresh_module(tx: object, cls: type) -> ObjectValue | None:
    return ModuleValue(cls) if issubclass(cls, torch.nn.Module) else None


FRESH.append(_fresh_module)


@final
class PythonModuleValue(SymbolicValue):
    """An imported module: its attributes are its globals."""

    __slots__ = ("module",)

    def __init__(self, module: types.ModuleType, source: Source | None = None) -> None:
        super().__init__(source)
        self.module = module

    def python_type(self) -> type:
        return type(self.module)

    def real(self) -> Any:
        return self.module

    def dict_key(self, tx: Interpreter) -> object:
        return self.module

    def __repr__(self) -> str:
        return f"module {self._name()}"

    def _name(self) -> str:
        return getattr(self.module, "__name__", "?")

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "__dict__":
            return tx.globals_of(self.module.__dict__)
        if type(self.module) is types.ModuleType and name not in _VOLATILE:
            namespace = tx.globals_of(self.module.__dict__)
            attribute = namespace.lookup(tx, name)
            if attribute is not None:
                return attribute
            if name in self.module.__dict__:
                raise graph_break("unknown-operation", f"reading {name} of {self!r}, deleted")
            if namespace.source is not None:
                tx.guards.add(namespace.source, "missing_key", name)
        described = self._own_descriptor(name, "__get__")
        if described is not None:
            return bind(tx, self, type(self.module), name, described[0])
        if name == "__annotations__" and name not in self.module.__dict__:
            raise graph_break("unknown-operation", f"reading {name} of {self!r}, which makes them")
        obj = evaluate(tx, lambda: getattr(self.module, name))
        return tx.wrap(obj, tx.tree.object(self.module, self._name()).attribute(name))

    def _own_descriptor(self, name: str, method: str) -> tuple[object, types.FunctionType] | None:
        """An attribute of the module's own class that is a descriptor with that method, and the
        method."""
        cls = type(self.module)
        attribute = MISSING if cls is types.ModuleType else type_lookup(cls, name)
        accessor = MISSING if attribute is MISSING else type_lookup(type(attribute), method)
        return (attribute, accessor) if isinstance(accessor, types.FunctionType) else None

    def setattr(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        described = self._own_descriptor(name, "__set__")
        if described is not None:
            attribute, setter = described
            descriptor = class_value(tx, type(self.module), name, attribute)
            tx.wrap_fixed(setter, name).call(tx, [descriptor, self, value], {})
            return
        if type(self.module) is not types.ModuleType or name in _VOLATILE:
            raise graph_break("unknown-operation", f"setting {name!r} of {self!r}")
        from_name = tx.wrap_new(name)
        tx.globals_of(self.module.__dict__).store(tx, name, from_name, value)

    def rebuild(self, emit: Emitter) -> str:
        return emit.constant(self.module)


_VOLATILE: Final = frozenset({"__class__", "__dict__"})


@wraps(types.ModuleType, subclasses=True)
def _wrap_python_module(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    tx.guards.identity(source, obj)
    if isinstance(type_lookup(type(obj), "__getattribute__"), types.FunctionType):
        return unknown(tx, obj, source)
    return PythonModuleValue(obj, source)
