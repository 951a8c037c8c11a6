"""Values keep their Python types wherever capture rebuilds, holds or compares a constant.

Each program is run with values that look alike (True, 1, 1.0, members of enumerations, NumPy's
numbers, instances of subclasses), one after the other in one compiled function; types and values
are compared with eager.
"""

from __future__ import annotations

import collections
import enum
import math
import operator
import warnings

import numpy
import pytest
import torch

import weft


class Phase(enum.IntEnum):
    A = 1


class Word(enum.StrEnum):
    A = "a"


class Rate(float, enum.Enum):
    A = 1.0


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


class Colour(enum.Flag):
    RED = 1
    BLUE = 2


class Number(int):
    def __repr__(self):
        return f"Number({int(self)})"


class Unequal(int):
    def __eq__(self, other):
        return type(other) is Unequal and int.__eq__(self, other)

    __hash__ = int.__hash__


class Point(tuple):
    __slots__ = ()


Pair = collections.namedtuple("Pair", "a b")

NUMBERS = [1, True, 1.0, Phase.A, Number(1), Unequal(1), Rate.A, Access.READ,
           Access.READ | Access.WRITE, numpy.int64(1), numpy.float64(1), numpy.bool_(True),
           complex(1, -0.0), 0.0, -0.0, False, 0]
OTHERS = ["a", Word.A, numpy.str_("a"), (1, True), Point((1, True)), Pair(1, True),
          torch.Size([1, 2]), Colour.RED, Colour.RED | Colour.BLUE, ((Phase.A, (True,)), 1.0)]
KINDS = (bool, int, float, str, tuple, complex, enum.Enum, numpy.generic, Number, torch.Size, Pair)


def shown(value):
    """A text that tells types apart, all the way down."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {value.tolist()}"
    if isinstance(value, (tuple, list, set, frozenset)):
        return f"{type(value).__name__}[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{type(value).__name__}[{', '.join(map(shown, value.items()))}]"
    return f"{type(value).__name__} {value!r}"


def code(value):
    """A number that differs for values that look alike."""
    kinds = sum(2.0**i for i, kind in enumerate(KINDS) if isinstance(value, kind))
    return kinds + len(repr(value)) * 2.0**12 + 0.5 * (type(value) is int)


class Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, value):
        ctx.factor = code(value)
        return x * ctx.factor

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, value):
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * code(ctx.value), None


class Setup(torch.autograd.Function):
    @staticmethod
    def forward(x, value):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.value = inputs[1]

    @staticmethod
    def backward(ctx, grad):
        return grad * code(ctx.value), None


class InContainers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, values, named):
        ctx.factor = code(values[0]) + code(named["k"])
        return x * ctx.factor

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None, None


class Returned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, value):
        return x * 2, value

    @staticmethod
    def backward(ctx, grad, _):
        return grad * 2, None


@torch.compiler.allow_in_graph
def allowed(x, value, named=None):
    return x * code(value), x * code(named)


def with_hook(x, value):
    y = x * 2
    y.register_hook(lambda grad: grad * code(value))
    return y


def as_keys(x, value):
    known = {value: 1}
    known[1] = 2
    known[True] = 3
    other = {1: 0}
    other[value] = 1
    return x + 1, known, other, {value, 1}, {1, value}, {1} | {value}, {value} & {1}


def across_a_break(x, value):
    kept = [value]
    weft.graph_break()
    return x * code(kept[0]), kept, value


BOUNDARIES = {
    "forward": Forward.apply, "backward": Backward.apply, "setup": Setup.apply,
    "returned": Returned.apply, "allowed": lambda x, v: allowed(x, v, named=v), "hook": with_hook,
    "containers": lambda x, v: InContainers.apply(x, [v], {"k": v}),
    "keys": as_keys, "break": across_a_break,
    "checkpoint": lambda x, v: torch.utils.checkpoint.checkpoint(
        lambda x, v: x * code(v), x, v, use_reentrant=False),
    "vmap": lambda x, v: torch.vmap(lambda r, k: r * code(k), in_dims=(0, None))(x, v),
    "comparisons": lambda x, v: (x + 1, v == 1, 1 == v, v != 1, v in (1, 2), v in [True],
                                 (v,) == (1,), x == v, v != x),
}


def run(function, value):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    try:
        result = function(x, value)
        first = result[0] if isinstance(result, tuple) else result
        first.sum().backward()
    except Exception as error:
        return type(error).__name__
    return shown(result), shown(x.grad)


@pytest.mark.parametrize("name", BOUNDARIES)
def test_values_that_look_alike_pass_a_boundary_with_their_types(name):
    function = BOUNDARIES[name]
    for values in _groups():
        compiled = weft.compile(lambda x, v: function(x, v), backend="eager")
        for value in values:
            assert run(compiled, value) == run(function, value), repr(value)


def _groups():
    every = NUMBERS + OTHERS
    return [every[i:i + 6] for i in range(0, len(every), 6)]


def test_which_of_two_equal_keys_an_outside_dictionary_holds():
    def ask(x, mapping):
        found = mapping.get(True), mapping.setdefault(3, []), mapping.pop(False, None)
        mapping[1.0] = "new"
        return x + 1, found, list(mapping)

    def state():
        return {1: "a", 0: "b", "k": 2}

    expected, actual = state(), state()
    wanted = ask(torch.ones(1), expected)
    assert shown(weft.compile(ask, backend="eager")(torch.ones(1), actual)) == shown(wanted)
    assert shown(actual) == shown(expected)


COMPLEX = [complex(0.0, -0.0), complex(-0.0, 0.0), complex(-0.0, -0.0), complex(0, -1),
           complex(math.inf, 1), complex(1, -math.inf), complex(math.nan, math.nan)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_complex_constants_keep_signs_and_special_parts(backend):
    def fill(x):
        return [torch.full((2,), number, dtype=torch.complex64) * x for number in COMPLEX]

    x = torch.ones((), dtype=torch.complex64).real.clone()
    assert str(weft.compile(fill, backend=backend)(x)) == str(fill(x))


OPERATORS = [operator.add, operator.sub, operator.truediv, operator.floordiv, operator.mod,
             operator.pow, operator.and_, operator.xor, operator.lshift, operator.eq, operator.lt,
             divmod, max, min]
OPERANDS = [True, 0, 2, -0.0, 2.5, Phase.A, Number(2), Unequal(2), numpy.int64(2),
            numpy.float64(2.5)]
SYMBOLIC = {
    "int": lambda x, n, d: n, "float": lambda x, n, d: d, "flag": lambda x, n, d: n > 2,
    "size": lambda x, n, d: x.shape[0] * 2 - 1, "flag of a float": lambda x, n, d: d > 2.0,
}


def attempt(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("kind", SYMBOLIC)
def test_operators_of_symbolic_numbers_and_lookalikes(kind):
    symbolic = SYMBOLIC[kind]

    def compute(x, n, d):
        left = symbolic(x, n, d)
        results = [x + 1, left.real]
        for function in OPERATORS:
            for other in (*OPERANDS, n, d, n > 1, d > 1.0):
                results.append((attempt(function, left, other), attempt(function, other, left)))
        return results

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of divisions by zero
        compiled = weft.compile(compute, backend="eager")
        for size, n, d in ((4, 4, 1.5), (3, 3, 2.5), (5, 7, 3.5)):
            args = torch.ones(size), n, d
            assert shown(compiled(*args)) == shown(compute(*args))


SIZES = {
    "sums": lambda s: (s + (1,), (1,) + s, Pair(1, 2) + s, Point((1,)) + s, () + s, s + s,
                       (True,) + s, sum([(1,), s], ())),
    "refused": lambda s: (attempt(lambda: ("a",) + s), attempt(lambda: s + (1.5,)),
                          attempt(lambda: [1] + s)),
    "products": lambda s: (s * 2, 2 * s, s * 0, s * True, s * s[0]),
    "slices": lambda s: (s[:1], s[::-1], s[:], s[0:0], tuple.__getitem__(s, slice(1))),
    "order": lambda s: (s < (5,), (5,) > s, (2, 3) == s, min(s, (9, 9)), max((0, 0), s)),
    "asked": lambda s: (s.numel(), (s + (2,)).numel(), s.index(s[1]), s.count(3), len(s)),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("dynamic", [None, True])
def test_what_is_computed_of_a_size_has_its_type(name, dynamic):
    def compute(x):
        return x + 1, SIZES[name](x.shape)

    compiled = weft.compile(compute, backend="eager", dynamic=dynamic)
    for shape in ((2, 3), (3, 3), (5, 2)):
        x = torch.ones(shape)
        assert shown(compiled(x)) == shown(compute(x))
