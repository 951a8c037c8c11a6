"""`CompiledModule`: an `nn.Module` that runs another one compiled; and modules compiled in place.

Place in the pipeline: made by `api`; below capture, which treats it as the original.

Everything except the call is passed on to the original: parameters, `state_dict` (keys are the
original's), attributes read, set and deleted, what is registered. Hooks belong to the object they
are registered with; those of the wrapper run around the compiled call, as plain Python::

    compiled = weft.compile(model)
    compiled.layer is model.layer            # attributes pass through
    compiled._orig_mod is model
    compiled.register_forward_hook(hook)     # called with `compiled` as its module
    compiled.generate(ids)                   # the original's method; its calls of itself: compiled

Libraries that know torch.compile find what they expect: see "for libraries" below.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from types import MethodType
from typing import Any, Final, Protocol, final

import torch

from weft._torch import has_global_module_hooks, module_call
from weft.markers import is_compiling
from weft.torch_marks import optimized_module

Caller = Callable[..., Any]


class Compilation(Protocol):
    """How modules and functions are compiled: the settings of one `weft.compile` call."""

    def __call__(self, module: torch.nn.Module) -> tuple[Caller, Caller]:
        """The module's compiled `forward`, and its compiled call, hooks included."""

    def own_call(self, module: torch.nn.Module) -> Caller:
        """The call for the module itself to use, hooks included, compiled."""

    def function(self, function: Caller) -> Caller:
        """A function or method, compiled likewise."""

    def arguments(self) -> dict[str, Any]:
        """The settings as arguments of torch.compile."""


_OWN: Final = frozenset({"_orig_mod", "_compiled_forward", "_compiled_call", "_compile",
                         "_forwards", "_own_call", "_kwargs", "_mixed"})

_OF_ORIGINAL: Final = frozenset({"_parameters", "_buffers", "_modules",
                                 "_non_persistent_buffers_set", "__doc__"})
"""What copies of the wrapper have from their copy of the original."""

_CALL: Final = "_compiled_call_impl"
"""Attribute by which nn.Module finds the compiled form of its call."""

_PREFIX: Final = "_orig_mod."
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _forwards(module: torch.nn.Module) -> tuple[object, object, object]:
    """The module and the sources of its `forward`: its own attribute, its class's."""
    return module, module.__dict__.get("forward"), getattr(type(module), "forward", None)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether the module has hooks of its own that act on its calls."""
    state = vars(module)  # (nothing is there yet while the module is made)
    return any(map(state.get, _HOOKS))


@final
class _Forward:
    """The attribute `forward` of a compiled module: the original's call, compiled, with the name,
    signature and docstring of the original's `forward`."""

    def __get__(self, compiled: CompiledModule | None, owner: type) -> Any:
        if compiled is None:
            return self
        run = compiled._run

        def forward(*args: object, **kwargs: object) -> Any:
            return run(*args, **kwargs)

        return functools.update_wrapper(forward, compiled._orig_mod.forward)


@final
class _Mixed:
    """A class that a library made of classes of its own and of the class of a compiled module."""

    def __init__(self, cls: type, base: type) -> None:
        self._cls, self._base = cls, base
        self._variants = {base: cls}

    def class_over(self, base: type) -> type:
        """The same with another class in the place of the compiled module's."""
        if base not in self._variants:
            bases = tuple(base if b is self._base else b for b in self._cls.__bases__)
            own = {name: value for name, value in vars(self._cls).items()
                   if name not in ("__dict__", "__weakref__")}
            self._variants[base] = type(self._cls.__name__, bases, own)
        return self._variants[base]


class CompiledModule(torch.nn.Module):
    """`module`; `compilation(module) -> (forward, call)` decides how it runs.

    `forward` is the compiled method of that name, used while the module has no hooks; `call` is the
    compiled call of the whole module, hooks included.
    """

    _orig_mod: torch.nn.Module
    forward: Any = _Forward()

    def __init__(self, module: torch.nn.Module, compilation: Compilation) -> None:
        own = self.__dict__
        own["_orig_mod"] = module  # before super().__init__, whose assignments read it
        super().__init__()
        del own["_orig_mod"]
        self._modules["_orig_mod"] = module
        own["_compile"] = compilation
        own["__doc__"] = module.__doc__
        self._compile_now(module)

    def _compile_now(self, module: torch.nn.Module) -> None:
        """Compile the module's current `forward`."""
        own = self.__dict__
        own["_forwards"], own["_own_call"] = _forwards(module), None
        own["_compiled_forward"], own["_compiled_call"] = own["_compile"](module)

    def _run(self, *args: object, **kwargs: object) -> object:
        """The original's call, compiled."""
        own = self.__dict__
        module = own["_modules"]["_orig_mod"]
        if own["_forwards"] != _forwards(module):  # the program replaced it
            self._compile_now(module)
        if (type(module).__call__ is not torch.nn.Module.__call__ or has_hooks(module)
                or (has_global_module_hooks() and not has_hooks(self))):
            return own["_compiled_call"](*args, **kwargs)
        return own["_compiled_forward"](*args, **kwargs)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """As `nn.Module.__call__`, which runs hooks for all modules too; without hooks of its own
        directly `forward`."""
        if has_hooks(self):
            return super().__call__(*args, **kwargs)
        return self._run(*args, **kwargs)

    def register_buffer(self, name: str, tensor: torch.Tensor | None, persistent: bool = True
                        ) -> None:
        """A new buffer of the original."""
        self._orig_mod.register_buffer(name, tensor, persistent)

    def register_parameter(self, name: str, param: torch.nn.Parameter | None) -> None:
        """A new parameter of the original."""
        self._orig_mod.register_parameter(name, param)

    def add_module(self, name: str, module: torch.nn.Module | None) -> None:
        """A new submodule of the original."""
        self._orig_mod.add_module(name, module)

    register_module = add_module

    @property
    def training(self) -> bool:
        """The original's mode."""
        return self._orig_mod.training

    @training.setter
    def training(self, value: bool) -> None:
        if "_modules" in self.__dict__ and "_orig_mod" in self._modules:
            self._orig_mod.training = value

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__["_modules"]["_orig_mod"]
        if name == "_orig_mod":
            return module
        value = getattr(module, name)
        if isinstance(value, MethodType) and not is_compiling():
            return self._with_compiled_calls(value)
        return value

    def _with_compiled_calls(self, method: MethodType) -> MethodType:
        """A method of the original, which runs as plain Python: what it calls of the original's
        calls (``self(x)``) is compiled."""
        module, function = method.__self__, method.__func__
        if module is not self._orig_mod or function is vars(torch.nn.Module).get(method.__name__):
            return method

        @functools.wraps(function)
        def run(module: torch.nn.Module, *args: object, **kwargs: object) -> Any:
            with self._compiled_calls(module):
                return function(module, *args, **kwargs)

        return MethodType(run, module)

    @contextmanager
    def _compiled_calls(self, module: torch.nn.Module) -> Iterator[None]:
        """Compile the calls that the original makes of itself in this block."""
        own, attributes = self.__dict__, module.__dict__
        if attributes.get(_CALL) is not None:
            yield
            return
        if own.get("_own_call") is None:
            own["_own_call"] = self.compilation.own_call(module)
        attributes[_CALL] = own["_own_call"]
        try:
            yield
        finally:
            attributes.pop(_CALL, None)

    @property
    def compilation(self) -> Compilation:
        """How it is compiled."""
        compilation: Compilation = self.__dict__["_compile"]
        return compilation

    def _is_own(self, name: str) -> bool:
        """Whether an attribute that is set or deleted is the wrapper's: its hooks, its methods but
        for `forward`."""
        return name != "forward" and (
            name in _OWN or name in self.__dict__ or hasattr(type(self), name))

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_own(name):
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_own(name):
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(type(self)), *self.__dict__, *dir(self._orig_mod)})

    def __len__(self) -> int:
        if isinstance(self._orig_mod, Sized):
            return len(self._orig_mod)
        raise TypeError(f"object of type {type(self._orig_mod).__name__!r} has no len()")

    def __iter__(self) -> Any:
        return iter(self._orig_mod)  # type: ignore[call-overload]

    def __getitem__(self, key: object) -> Any:
        return self._orig_mod[key]  # type: ignore[index]

    # -- state ------------------------------------------------------------------------------------

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "",
                   keep_vars: bool = False) -> Any:
        """The original's, between the hooks of the wrapper.

        Checkpoints of torch.distributed expect torch.compile's prefix, and take it off themselves.
        """
        positional = dict(zip(("destination", "prefix", "keep_vars"), args, strict=False))
        asked = {"destination": destination, "prefix": prefix, "keep_vars": keep_vars, **positional}
        for before in self._state_dict_pre_hooks.values():
            before(self, asked["prefix"], asked["keep_vars"])
        if _is_asked_by_checkpoints():
            asked["prefix"] += _PREFIX
        state = self._orig_mod.state_dict(**asked)
        metadata = state._metadata.get(asked["prefix"][:-1], {})
        for after in self._state_dict_hooks.values():
            changed = after(self, state, asked["prefix"], metadata)
            if changed is not None and not hasattr(after, "_from_public_api"):
                state = changed
        return state

    def load_state_dict(self, state_dict: Mapping[str, object], strict: bool = True,
                        assign: bool = False) -> Any:
        """Load a state of the original, or one with torch.compile's prefix."""
        state = dict(state_dict)
        versions = getattr(state_dict, "_metadata", None)
        entries = _WithMetadata(state)
        if versions is not None:
            entries._metadata = {**versions, **{
                f"{_PREFIX}{name}".rstrip("."): version for name, version in versions.items()
                if not f"{name}.".startswith(_PREFIX)}}
        try:
            result = super().load_state_dict(entries, strict, assign)
        except RuntimeError as error:
            raise RuntimeError(str(error).replace(_PREFIX, "")) from None
        for keys in (result.missing_keys, result.unexpected_keys):
            keys[:] = [key.removeprefix(_PREFIX) for key in keys]
        return result

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: object) -> None:
        """nn.Module loads the child `_orig_mod` next: its keys get their prefix."""
        inner = prefix + _PREFIX
        if not hasattr(self._orig_mod, _PREFIX.rstrip(".")):
            for key in [k for k in state_dict if k.startswith(prefix)]:
                if not key.startswith(inner):
                    state_dict[inner + key.removeprefix(prefix)] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    # -- for libraries ----------------------------------------------------------------------------

    @property
    def __class__(self) -> type:
        """torch.compile's class of compiled modules, once something has imported it: `isinstance`
        asks here, and libraries unwrap, save and count modules by it."""
        base = optimized_module() or CompiledModule
        mixed: _Mixed | None = self.__dict__.get("_mixed")
        return base if mixed is None else mixed.class_over(base)

    @__class__.setter
    def __class__(self, cls: type) -> None:
        """Become an instance of a class that adds to the present one (`fully_shard`)."""
        present = self.__class__
        if "_mixed" in self.__dict__ or present not in cls.__bases__:
            raise TypeError(f"a compiled module cannot become a {cls.__name__}")
        mixed = self.__dict__["_mixed"] = _Mixed(cls, present)
        vars(object)["__class__"].__set__(self, mixed.class_over(CompiledModule))

    def _get_name(self) -> str:
        return CompiledModule.__name__

    @property
    def _torchdynamo_orig_callable(self) -> torch.nn.Module:
        """What PyTorch's controls (`torch.compiler.disable`, ...) are applied to."""
        return self._orig_mod

    @property
    def _torchdynamo_wrapper_id(self) -> int:
        return id(self)

    @property
    def dynamo_ctx(self) -> Caller:
        """Compiles functions as the module is; Lightning applies it to a module's steps."""
        return self.compilation.function

    @property
    def _compile_kwargs(self) -> dict[str, object]:
        """Lightning's Fabric compiles the module anew, with these arguments of torch.compile."""
        return self.__dict__.get("_kwargs") or self.compilation.arguments()

    @_compile_kwargs.setter
    def _compile_kwargs(self, arguments: Mapping[str, object]) -> None:
        self.__dict__["_kwargs"] = arguments

    @property
    def get_compiler_config(self) -> None:
        """torch.compile's settings of this module: there are none."""

    # -- copies -----------------------------------------------------------------------------------

    def take_hooks(self, other: CompiledModule) -> None:
        """Run the hooks of another wrapper, whose place this one takes."""
        self.__setstate__(other._hooks())

    def _hooks(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items()
                if name not in _OWN and name not in _OF_ORIGINAL}

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles compile again: compiled code stays in its process."""
        hooks = {name: value for name, value in self._hooks().items() if value}
        return type(self), (self._orig_mod, self.__dict__["_compile"]), hooks

    def __setstate__(self, hooks: Mapping[str, object]) -> None:
        self.__dict__.update(hooks)


def _is_asked_by_checkpoints() -> bool:
    """Whether it is torch.distributed.checkpoint that asks for a state, of a module or of one that
    it is a part of."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _ASKING_PARTS:
        frame = frame.f_back
    return frame.f_globals.get("__name__") == "torch.distributed.checkpoint.state_dict"


_ASKING_PARTS: Final = (__name__, "torch.nn.modules.module")


@final
class _WithMetadata(dict[str, Any]):
    """A state with the versions of its modules."""

    _metadata: dict[str, Any]


# -- modules compiled in place --------------------------------------------------------------------


@final
class InPlace:
    """An attribute of a module that is compiled in place: copies and pickles of the module take it
    along, and compile their own calls (nn.Module itself leaves those out)."""

    def __init__(self, module: torch.nn.Module, compilation: Compilation) -> None:
        self.module = module
        self.compilation = compilation

    def __reduce__(self) -> tuple[object, ...]:
        return compile_calls, (self.module, self.compilation)


_IN_PLACE: Final = "_weft_in_place"


def compile_calls(module: torch.nn.Module, compilation: Compilation) -> InPlace:
    """Compile a module's own calls; a copy of a module may have no attributes yet."""
    mark = InPlace(module, compilation)
    module.__dict__.update({_CALL: compilation.own_call(module), _IN_PLACE: mark})
    return mark


def is_call_of_module(function: object) -> bool:
    """Whether `nn.Module.compile` compiles this: a module's call with hooks."""
    return isinstance(function, MethodType) and function.__func__ is module_call


def leave_calls(module: torch.nn.Module) -> None:
    """Let a module's own calls run uncompiled again."""
    for name in (_CALL, _IN_PLACE):
        module.__dict__.pop(name, None)
