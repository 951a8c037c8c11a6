"""`CompiledModule`: an `nn.Module` that runs another one compiled.

Place in the pipeline: made by `api`; below capture, which treats it as the original.

Everything except the call is passed on to the original: parameters, `state_dict` (keys prefixed
with ``_orig_mod.``, as with torch.compile), attributes read, set and deleted::

    compiled = weft.compile(model)
    compiled.layer is model.layer            # attributes pass through
    compiled._orig_mod is model
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


def _forwards(module: torch.nn.Module) -> tuple[Any, Any]:
    """The sources of the module's `forward`: its own attribute, its class's."""
    return module.__dict__.get("forward"), getattr(type(module), "forward", None)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether calling the module does more than calling its `forward`."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks
        or module._backward_hooks or module._backward_pre_hooks
        or has_global_module_hooks()
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
        if type(module).__call__ is not torch.nn.Module.__call__ or has_hooks(module):
            return own["_compiled_call"](*args, **kwargs)
        if own["_forwards"] != _forwards(module):  # the program replaced it
            self._compile_now(module)
        return own["_compiled_forward"](*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `nn.Module.__call__`; without hooks of its own directly `forward`."""
        own = self.__dict__
        if (own["_forward_hooks"] or own["_forward_pre_hooks"]
                or own["_backward_hooks"] or own["_backward_pre_hooks"]):
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)

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

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN or hasattr(type(self), name):
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

    def __getitem__(self, key: Any) -> Any:
        return self._orig_mod[key]  # type: ignore[index]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles compile again: compiled code stays in its process."""
        return type(self), (self._orig_mod, self.__dict__["_compile"])
