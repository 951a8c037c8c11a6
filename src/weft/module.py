"""`CompiledModule`: an `nn.Module` that runs another one compiled.

Place in the pipeline: made by `api`; below capture, which treats it as the original.

Everything except the call is passed on to the original: parameters, `state_dict` (keys prefixed
with ``_orig_mod.``, as with torch.compile), attributes read, set and deleted, what is registered.
Hooks belong to the object they are registered with; those of the wrapper run around the compiled
call, as plain Python::

    compiled = weft.compile(model)
    compiled.layer is model.layer            # attributes pass through
    compiled._orig_mod is model
    compiled.register_forward_hook(hook)     # called with `compiled` as its module
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import Any, Final, final

import torch

from weft._torch import has_global_module_hooks

Caller = Callable[..., Any]
Recompile = Callable[[torch.nn.Module], tuple[Caller, Caller]]

_OWN: Final = frozenset({"_orig_mod", "_compiled_forward", "_compiled_call", "_compile",
                         "_forwards"})


_OF_ORIGINAL: Final = frozenset({"_parameters", "_buffers", "_modules",
                                 "_non_persistent_buffers_set"})
"""What copies of the wrapper have from their copy of the original."""


def _forwards(module: torch.nn.Module) -> tuple[Any, Any, Any]:
    """The module and the sources of its `forward`: its own attribute, its class's."""
    return module, module.__dict__.get("forward"), getattr(type(module), "forward", None)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether the module has hooks of its own that act on its calls."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks
        or module._backward_hooks or module._backward_pre_hooks
    )


@final
class CompiledModule(torch.nn.Module):
    """`module`; `compile_parts(module) -> (forward, call)` decides how it runs.

    `forward` is the compiled method of that name, used while the module has no hooks; `call` is the
    compiled call of the whole module, hooks included.
    """

    _orig_mod: torch.nn.Module

    def __init__(self, module: torch.nn.Module, compile_parts: Recompile) -> None:
        own = self.__dict__
        own["_orig_mod"] = module  # before super().__init__, whose assignments read it
        super().__init__()
        del own["_orig_mod"]
        self._modules["_orig_mod"] = module
        own["_compile"] = compile_parts
        self._compile_now(module)

    def _compile_now(self, module: torch.nn.Module) -> None:
        """Compile the module's current `forward`."""
        own = self.__dict__
        own["_forwards"] = _forwards(module)
        own["_compiled_forward"], own["_compiled_call"] = own["_compile"](module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The original's call, compiled."""
        own = self.__dict__
        module = own["_modules"]["_orig_mod"]
        if own["_forwards"] != _forwards(module):  # the program replaced it
            self._compile_now(module)
        if (type(module).__call__ is not torch.nn.Module.__call__ or has_hooks(module)
                or (has_global_module_hooks() and not has_hooks(self))):
            return own["_compiled_call"](*args, **kwargs)
        return own["_compiled_forward"](*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `nn.Module.__call__`, which runs hooks for all modules too; without hooks of its own
        directly `forward`."""
        if has_hooks(self):
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)

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
        return module if name == "_orig_mod" else getattr(module, name)

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

    @property
    def _torchdynamo_orig_callable(self) -> torch.nn.Module:
        """What PyTorch's controls (`torch.compiler.disable`, ...) are applied to."""
        return self._orig_mod

    @property
    def _torchdynamo_wrapper_id(self) -> int:
        return id(self)

    def __len__(self) -> int:
        if isinstance(self._orig_mod, Sized):
            return len(self._orig_mod)
        raise TypeError(f"object of type {type(self._orig_mod).__name__!r} has no len()")

    def __iter__(self) -> Any:
        return iter(self._orig_mod)  # type: ignore[call-overload]

    def __getitem__(self, key: Any) -> Any:
        return self._orig_mod[key]  # type: ignore[index]

    def take_hooks(self, other: CompiledModule) -> None:
        """Run the hooks of another wrapper, whose place this one takes."""
        self.__setstate__(other._hooks())

    def _hooks(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items()
                if name not in _OWN and name not in _OF_ORIGINAL}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles compile again: compiled code stays in its process."""
        hooks = {name: value for name, value in self._hooks().items() if value}
        return type(self), (self._orig_mod, self.__dict__["_compile"]), hooks

    def __setstate__(self, hooks: dict[str, Any]) -> None:
        self.__dict__.update(hooks)
