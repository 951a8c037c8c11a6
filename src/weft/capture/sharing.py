"""What equal `weft.compile` calls share: the code object whose entries all of them use.

Place in the pipeline: below `compiler`, which makes one `FrameCompiler` for each call. Entries are
kept by code object, so calls of one function (or of one lambda, closure or class, whichever the
instance) get the same copy of its code if their settings are equal; the guards decide which entry
fits::

    settings_of(options, backend).code(function, function.__code__)    # one copy for all calls

`Settings` is also the owner of entries of frames that compiled code calls, which keep the program's
own code object: other settings do not see them.
"""

from __future__ import annotations

import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, final

import torch

from weft import _frame
from weft.capture.bytecode import PerCode
from weft.config import CompileOptions, config
from weft.passes.framework import registered_passes
from weft.shapes.policy import DynamicPolicy

_MOST_KEPT: Final = 256
"""How many code objects keep their entries while no compiled function uses them."""

Subject = CodeType | type
"""What a callable runs: the program's code, or the class of an object without any."""


@final
class Settings:
    """The settings of equal `weft.compile` calls, or (not `shared`) of one call alone."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self.policies: PerCode[DynamicPolicy] = PerCode()
        """What was learned of the program's frames that compiled code calls."""
        self._codes: PerCode[PerCode[CodeType]] = PerCode()
        self._users: PerCode[weakref.WeakSet[_frame.CompiledFunction]] = PerCode()

    def code(self, function: FunctionType, subject: Subject) -> CodeType:
        """The copy of the function's code that equal calls for `subject` share."""
        code = function.__code__
        of_subject = self._codes.get(code)
        if of_subject is None:
            of_subject = self._codes[code] = PerCode()
        copy = of_subject.get(subject)
        if copy is None or _frame.is_settled(copy):  # what failed once may have been mended
            copy = of_subject[subject] = code.replace()
            weakref.finalize(subject, _let_go, weakref.ref(copy)).atexit = False
        if self._shared and _is_of_module(function):
            _keep(copy)
        return copy

    def note_user(self, copy: CodeType, compiled: _frame.CompiledFunction) -> None:
        """Record that a compiled function runs a shared copy of its code."""
        users = self._users.get(copy)
        if users is None:
            users = self._users[copy] = weakref.WeakSet()
        users.add(compiled)
        _compiled.add(compiled)

    def n_users(self, copy: CodeType) -> int:
        """How many compiled functions run a shared copy of their code."""
        users = self._users.get(copy)
        return 0 if users is None else len(users)


_compiled: weakref.WeakSet[_frame.CompiledFunction] = weakref.WeakSet()
_shared: weakref.WeakValueDictionary[Hashable, Settings] = weakref.WeakValueDictionary()
_kept: OrderedDict[int, tuple[CodeType, object]] = OrderedDict()
"""The latest shared code objects, with what keeps their entries: a function that is compiled anew
at each call (a lambda, say) finds those of the one before."""

_NO_MODULE: Final = ModuleType("")

_alone: list[None] = []


def settings_of(options: CompileOptions, backend: Callable[..., Any]) -> Settings:
    """The settings of one call, the same object for equal ones."""
    if is_alone() or options.dynamic_shapes is not None or _records_calls(options):
        return Settings(shared=False)
    overrides = tuple(sorted(options.overrides.items()))
    defaults = tuple(getattr(config, field.name) for field in fields(config))
    key = (options.fullgraph, options.dynamic, options.mode, overrides, defaults, backend,
           registered_passes())
    try:
        settings = _shared.get(key)
    except TypeError:  # a setting that has no hash
        return Settings(shared=False)
    if settings is None:
        settings = _shared[key] = Settings(shared=True)
    return settings


def _records_calls(options: CompileOptions) -> bool:
    """Whether compiled code becomes CUDA graphs, which read parameters at their addresses: those of
    one layer."""
    wanted = options.overrides.get("cudagraphs", config.cudagraphs)
    return bool(wanted) and torch.cuda.is_available()


def _is_of_module(function: FunctionType) -> bool:
    """Whether the function's globals, which its entries refer to, live on anyway."""
    names = function.__globals__
    return vars(sys.modules.get(str(names.get("__name__")), _NO_MODULE)) is names


def _keep(copy: CodeType) -> None:
    _kept[id(copy)] = copy, _frame.keep(copy)
    _kept.move_to_end(id(copy))
    if len(_kept) > _MOST_KEPT:
        _kept.popitem(last=False)


def _let_go(reference: weakref.ref[CodeType]) -> None:
    """Nothing can find this copy any more: what it was made for is gone."""
    copy = reference()
    if copy is not None:
        _kept.pop(id(copy), None)


def forget_shared() -> None:
    """Let later calls share nothing with those before."""
    _shared.clear()
    _kept.clear()


def forget_used() -> None:
    """Let all compiled functions go of the entries that they have used."""
    for compiled in list(_compiled):
        compiled.forget_entries()


@contextmanager
def alone() -> Iterator[None]:
    """Let `weft.compile` calls in this block share nothing, neither with others nor with earlier
    processes: somebody wants to see what they do."""
    _alone.append(None)
    try:
        yield
    finally:
        _alone.pop()


def is_alone() -> bool:
    """Whether the program is in such a block."""
    return bool(_alone)


def subject_of(target: object) -> Subject:
    """What a callable runs, behind functions of weft's and PyTorch's that many callables share."""
    if isinstance(target, FunctionType):
        return target.__code__
    if isinstance(target, torch.nn.Module):
        forward = target.__dict__.get("forward") or getattr(type(target), "forward", None)
        return type(target) if forward is None else subject_of(forward)
    if isinstance(target, MethodType):
        of_module = isinstance(target.__self__, torch.nn.Module)
        library = of_module and target.__func__ in vars(torch.nn.Module).values()
        return subject_of(target.__self__ if library else target.__func__)
    return type(target)
