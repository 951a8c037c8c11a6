"""Dimensions that the user describes: `Dim`, and `dynamic_shapes=` of `weft.compile`.

Place in the pipeline: below markers and capture. `Dim` and `DimRange` describe one dimension.
`DynamicShapes` is the argument ``dynamic_shapes``, checked against the function's signature; at a
capture it is matched with the call's arguments::

    batch = weft.Dim("batch", min=1, max=4096)
    weft.compile(f, dynamic_shapes={"x": {0: batch}, "y": {0: 2 * batch}, "rest": None})

The forms are those of ``torch.export``: a dict by parameter name or a tuple by position; for a
tensor a dict by dimension, or a sequence over all dimensions; lists, tuples and dicts nested like
the arguments. A dimension is a `Dim` (equal names: equal sizes), ``Dim.DYNAMIC`` (symbolic, an
error if the program fixes it), ``Dim.AUTO`` (symbolic as far as the program allows), ``Dim.STATIC``
or None (a compilation for each size), or an int (this size only). Numbers take ``Dim``, ``DYNAMIC``
and ``AUTO``. Whatever is omitted follows ``dynamic=``.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any, ClassVar, Final, final

import torch

from weft.errors import BadValue, DimensionError


@final
@dataclass(frozen=True, slots=True)
class DimHint:
    """``Dim.AUTO``, ``Dim.DYNAMIC``, ``Dim.STATIC``; called with ``min=`` and ``max=`` it has
    limits."""

    kind: str
    min: int = 0
    max: int | None = None

    def __call__(self, min: int = 0, max: int | None = None) -> DimHint:
        _check_limits(repr(self), min, max)
        return replace(self, min=min, max=max)

    def __repr__(self) -> str:
        return f"Dim.{self.kind}"


@final
class Dim:
    """A named size: all dimensions with one name have one size.

    ``2 * batch + 1`` is a dimension whose size is computed from another's.
    """

    AUTO: ClassVar = DimHint("AUTO")
    DYNAMIC: ClassVar = DimHint("DYNAMIC")
    STATIC: ClassVar = DimHint("STATIC")

    def __init__(self, name: str, *, min: int = 0, max: int | None = None) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise BadValue(f"a Dim's name is an identifier, got {name!r}")
        _check_limits(f"Dim {name!r}", min, max)
        self.root = name
        self.factor, self.offset = 1, 0
        self.root_min, self.root_max = min, max

    @property
    def min(self) -> int:
        """The smallest size."""
        return self.factor * self.root_min + self.offset

    @property
    def max(self) -> int | None:
        """The largest size; None: no limit."""
        return None if self.root_max is None else self.factor * self.root_max + self.offset

    def __mul__(self, other: int) -> Dim:
        if type(other) is not int or other < 1:
            raise BadValue(f"{self!r} * {other!r}", do="multiply a Dim by a positive int")
        return self._derive(self.factor * other, self.offset * other)

    __rmul__ = __mul__

    def __add__(self, other: int) -> Dim:
        if type(other) is not int:
            raise BadValue(f"{self!r} + {other!r}", do="add an int to a Dim")
        return self._derive(self.factor, self.offset + other)

    __radd__ = __add__

    def __sub__(self, other: int) -> Dim:
        return self + -other

    def _derive(self, factor: int, offset: int) -> Dim:
        derived = Dim(self.root, min=self.root_min, max=self.root_max)
        derived.factor, derived.offset = factor, offset
        return derived

    def root_size(self, size: int) -> int | None:
        """The size of the plain dimension if this one has ``size``; None if there is none."""
        value, rest = divmod(size - self.offset, self.factor)
        return None if rest or value < 0 else value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[object, ...]:
        return self.root, self.factor, self.offset, self.root_min, self.root_max

    def __repr__(self) -> str:
        times = f"{self.factor}*" if self.factor != 1 else ""
        plus = f"{self.offset:+d}" if self.offset else ""
        return f"Dim {times}{self.root}{plus}"


@final
@dataclass(frozen=True, slots=True)
class DimRange:
    """The description of one dynamic dimension: the sizes it may take (`max=None`: no upper end).

    `strict`: it is an error if the program fixes it. `dim`: the name it shares with others.
    `unbacked`: its size in the current call must not decide anything.
    """

    min: int = 0
    max: int | None = None
    strict: bool = True
    dim: Dim | None = None
    unbacked: bool = False

    def check(self, what: str, size: int) -> None:
        """Raise `DimensionError` for a size outside the limits."""
        if size < self.min or (self.max is not None and size > self.max):
            top = "" if self.max is None else f" to {self.max}"
            named = "declared" if self.dim is None else f"declared as {self.dim!r},"
            raise DimensionError(f"{what} is {size}, and was {named} {self.min}{top or ' or more'}",
                                 do="widen the limits, or pass a size within them")


Mark = DimRange | int | None
"""What is declared of one dimension: a range (dynamic), one size, or None (static)."""


def _check_limits(what: str, least: object, greatest: object) -> None:
    if type(least) is not int or least < 0 or not (greatest is None or type(greatest) is int):
        raise BadValue(f"{what}: min={least!r}, max={greatest!r} are no sizes")
    if greatest is not None and greatest < least:
        raise BadValue(f"{what}: max={greatest} is below min={least}", do="swap them")


def _mark(what: str, spec: object) -> Mark:
    """The meaning of a leaf of ``dynamic_shapes``; torch.export's own `Dim` objects are accepted
    too."""
    spec = _from_export(spec)
    if isinstance(spec, Dim):
        return DimRange(spec.min, spec.max, dim=spec)
    if isinstance(spec, DimHint):
        if spec.kind == "STATIC":
            return None
        return DimRange(spec.min, spec.max, strict=spec.kind == "DYNAMIC")
    if spec is None or type(spec) is int:
        return spec
    raise BadValue(f"dynamic_shapes: {what} is described by {spec!r}",
                   do="use a weft.Dim, Dim.DYNAMIC, Dim.AUTO, Dim.STATIC, None or an int")


def _from_export(spec: Any) -> object:
    """torch.export's Dim or hint as weft's, recognised by its attributes; other objects
    unchanged."""
    kind = str(getattr(getattr(spec, "type", None), "name", None))
    if kind in _HINTS and not isinstance(spec, DimHint):
        return _HINTS[kind](spec.min or 0, spec.max)
    if not hasattr(spec, "__name__") or not hasattr(spec, "min") or isinstance(spec, type):
        return spec
    root, derive = getattr(spec, "root", spec), getattr(spec, "fn", lambda n: n)
    greatest = root.max if type(root.max) is int else None
    dim = Dim(root.__name__, min=int(root.min), max=greatest)
    return dim * (derive(1) - derive(0)) + derive(0)


_HINTS: Final[Mapping[str, DimHint]] = {h.kind: h for h in (Dim.AUTO, Dim.DYNAMIC, Dim.STATIC)}


@final
class DynamicShapes:
    """``dynamic_shapes=`` by parameter name, for a function of known signature.

    ``bound``: the function has a first parameter (``self``) that the signature lacks.
    """

    def __init__(self, spec: Any, signature: inspect.Signature, *, bound: bool = False) -> None:
        self.signature = signature
        self.bound = bound
        self.by_name = _by_name(spec, signature)

    def leaves(self, code: CodeType, locals: Sequence[object]) -> Iterator[tuple[str, Any, Any]]:
        """(name in the code, tensor or number, its description) for one call's arguments.

        The code's parameters may differ from the signature's (``*args`` of a wrapper).
        """
        args, kwargs = _call_of(code, locals)
        try:
            call = self.signature.bind_partial(*args[self.bound:], **kwargs)
        except TypeError:
            return
        for name, spec in self.by_name.items():
            if name in call.arguments:
                yield from _of_parameter(call.arguments[name], spec)


Named = tuple[str, Any]
"""An argument with its name in the code."""


def _call_of(code: CodeType, locals: Sequence[Any]) -> tuple[list[Named], dict[str, Named]]:
    """The positional and keyword arguments that a frame's parameters hold."""
    names = code.co_varnames
    n_named = code.co_argcount + code.co_kwonlyargcount
    args = list(zip(names[:code.co_argcount], locals, strict=False))
    keywords = range(code.co_argcount, n_named)
    kwargs = {names[i]: (names[i], locals[i]) for i in keywords}
    rest = iter(range(n_named, len(locals)))
    if code.co_flags & inspect.CO_VARARGS:
        at = next(rest)
        args += [(f"{names[at]}[{i}]", value) for i, value in enumerate(locals[at])]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        at = next(rest)
        kwargs.update({k: (f"{names[at]}[{k!r}]", v) for k, v in locals[at].items()})
    return args, kwargs


def _of_parameter(argument: Any, spec: Any) -> Iterator[tuple[str, object, object]]:
    """`argument`: for ``*args`` a tuple, for ``**kwargs`` a dict."""
    if isinstance(argument, dict):
        pairs = [(argument[key], part) for key, part in (spec or {}).items() if key in argument]
    elif argument and isinstance(argument[0], tuple):
        pairs = list(zip(argument, spec or (), strict=False))
    else:
        pairs = [(argument, spec)] if argument else []
    for (name, value), part in pairs:
        yield from _leaves(name, value, part)


def _by_name(specs: object, signature: inspect.Signature) -> dict[str, object]:
    """The description of each parameter."""
    if isinstance(specs, tuple | list):
        return dict(_by_position(specs, signature))
    if not isinstance(specs, Mapping):
        raise BadValue(f"dynamic_shapes is a dict or a tuple, got {type(specs).__name__}")
    parameters = signature.parameters
    rest = next((n for n, p in parameters.items() if p.kind is p.VAR_KEYWORD), None)
    unknown = {name: spec for name, spec in specs.items() if name not in parameters}
    known = {name: spec for name, spec in specs.items() if name in parameters}
    if unknown and rest is None:
        raise BadValue(f"dynamic_shapes names {next(iter(unknown))!r}",
                       do=f"the parameters are {', '.join(parameters)}")
    if rest is not None and unknown:
        known[rest] = {**known.get(rest, {}), **unknown}
    return known


def _by_position(specs: Any, signature: inspect.Signature) -> Iterator[tuple[str, object]]:
    left = list(specs)
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield name, left
            return
        if not left or parameter.kind > parameter.VAR_POSITIONAL:
            break
        yield name, left.pop(0)
    if left:
        raise BadValue(f"dynamic_shapes has {len(specs)} entries",
                       do=f"the parameters are {', '.join(signature.parameters)}")


def _leaves(name: str, value: object, spec: object) -> Iterator[tuple[str, object, object]]:
    """Pairs of the parts of an argument and their descriptions."""
    if spec is None:
        return
    if isinstance(value, torch.Tensor) or type(value) in (int, float):
        yield name, value, spec
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key, part in spec.items():
            if key in value:
                yield from _leaves(f"{name}[{key!r}]", value[key], part)
    elif isinstance(value, list | tuple) and isinstance(spec, list | tuple):
        if len(spec) != len(value):
            raise _mismatch(name, value, spec)
        for index, (item, part) in enumerate(zip(value, spec, strict=True)):
            yield from _leaves(f"{name}[{index}]", item, part)
    elif value is not None:  # an optional argument that is not given
        raise _mismatch(name, value, spec)


def _mismatch(name: str, value: object, spec: object) -> BadValue:
    what = f"a {type(value).__name__}"
    if isinstance(value, list | tuple):
        what += f" of {len(value)}"
    return BadValue(f"dynamic_shapes describes {name} by {spec!r}, and it is {what}")


@final
class Declarations:
    """The descriptions of the tensors and numbers in the calls being captured.

    Tensors are recognised by identity, so continuations behind a graph break see them too.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, DimRange] = {}
        self._tensors: dict[int, tuple[Any, dict[int, Mark]]] = {}

    def read(self, shapes: DynamicShapes, code: CodeType, locals: Sequence[object]) -> None:
        """Record one call's arguments."""
        self._tensors = {k: e for k, e in self._tensors.items() if e[0]() is not None}
        for name, value, spec in shapes.leaves(code, locals):
            if isinstance(value, torch.Tensor):
                self._tensors[id(value)] = weakref.ref(value), _tensor_marks(name, value, spec)
            else:
                mark = _mark(name, spec)
                if isinstance(mark, DimRange):
                    self.numbers[name] = mark

    def marks(self, tensor: torch.Tensor) -> dict[int, Mark]:
        """The descriptions of a tensor's dimensions."""
        reference, marks = self._tensors.get(id(tensor), (None, {}))
        return marks if reference is not None and reference() is tensor else {}


def _tensor_marks(name: str, tensor: torch.Tensor, spec: object) -> dict[int, Mark]:
    marks: dict[int, Mark] = {}
    for d, part in _dimensions(name, tensor, spec):
        if not -tensor.ndim <= d < tensor.ndim:
            raise BadValue(
                f"dynamic_shapes describes dimension {d} of {name}, whose shape is "
                f"{tuple(tensor.shape)}",
                do=f"use dimensions from {-tensor.ndim} to {tensor.ndim - 1}" if tensor.ndim else
                f"leave {name} out: it has no dimensions")
        what = f"{name}.size({d})"
        mark = _mark(what, part)
        if type(mark) is int and tensor.size(d) != mark:
            raise DimensionError(f"{what} is {tensor.size(d)}, and was declared to be {mark}",
                                 do="use a weft.Dim where the size may differ")
        marks[d % tensor.ndim] = None if type(mark) is int else mark
    return marks


def _dimensions(name: str, tensor: torch.Tensor, spec: object) -> Iterator[tuple[int, object]]:
    if isinstance(spec, Mapping):
        yield from spec.items()
    elif isinstance(spec, tuple | list):
        if len(spec) != tensor.ndim:
            raise BadValue(f"dynamic_shapes: {name} has {tensor.ndim} dimensions, and "
                           f"{len(spec)} are described")
        yield from enumerate(spec)
    else:
        yield from ((d, spec) for d in range(tensor.ndim))
