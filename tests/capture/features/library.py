"""Programs of test_features.py: the standard library, exceptions, generators, builtins."""

from __future__ import annotations

import abc
import decimal
import fractions
import functools
import inspect
import json
import math
import statistics
import types
import typing
import weakref

import torch
from torch import Tensor

from tests.capture.features import program
from tests.capture.features.containers import FT, Weak
from tests.capture.features.objects import Cfg, Color, Ordered


@program
def weakkeys(x, n):
    w = Weak(x)
    d = weakref.WeakKeyDictionary()
    d[w] = n
    return x * d[w], len(d)


class Meta(type):
    def __call__(cls, *a, **k):
        o = super().__call__(*a, **k)
        o.made = True
        return o

    @property
    def tag(cls):
        return cls.__name__.lower()

    def __getitem__(cls, k):
        return k


class WithMeta(metaclass=Meta):
    registry = {}

    def __init_subclass__(cls, **k):
        super().__init_subclass__(**k)

    def __class_getitem__(cls, k):
        return k


class New:
    def __new__(cls, v):
        o = super().__new__(cls)
        o.v = v
        return o


class Abstract(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
    @property
    def p(self):
        return self.f()


class Concrete(Abstract):
    def f(self):
        return 4


class Single:
    _one = None

    def __new__(cls):
        if cls._one is None:
            cls._one = super().__new__(cls)
        return cls._one


@program
def metaclasses(x, n):
    w = WithMeta()
    return (
        x * New(n).v,
        w.made,
        WithMeta.tag,
        WithMeta[3],
        Concrete().p,
        isinstance(Concrete(), Abstract),
    )


@program
def abstract_error(x, n):
    try:
        Abstract()
    except TypeError as e:
        m = str(e)
    return x + 1, m


@program
def class_attributes(x, n):
    FT.calls += 1
    return x * FT.calls


@program
def generators_(x, n):
    def g():
        got = yield x
        while got is not None:
            got = yield x * got
        return 5

    def outer():
        r = yield from g()
        yield r

    it = outer()
    a = next(it)
    b = it.send(n)
    c = next(it)

    def cl():
        try:
            yield 1
        finally:
            log.append("closed")

    log = []
    q = cl()
    next(q)
    q.close()

    def th():
        try:
            yield 1
        except ValueError:
            yield 2

    z = th()
    next(z)
    return (
        a + b,
        c,
        log,
        z.throw(ValueError()),
        [v for v in (i * i for i in range(3))],
        list(zip(range(2), (x * i for i in range(5))))[1][1],
    )


class MyErr(Exception):
    def __init__(self, code, t):
        super().__init__(code)
        self.code, self.t = code, t


@program
def exceptions_(x, n):
    log = []
    try:
        try:
            if n > 1:
                raise MyErr(n, x)
            log.append("ok")
        except (KeyError, MyErr) as e:
            log.append((e.code, e.args))
            raise RuntimeError("again") from e
        else:
            log.append("else")
        finally:
            log.append("fin")
    except RuntimeError as e:
        log.append((str(e), type(e.__cause__).__name__, e.__cause__.t.shape))
        x = e.__cause__.t * 2
    return x, log


@program
def exception_groups(x, n):
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError as e:
        y = x * len(e.exceptions)
    except* TypeError:
        y2 = 1
    return y


@program
def escaping_error(x, n):
    y = x + 1
    if n > 2:
        raise MyErr(n, y)
    return y


@program
def asserts(x, n):
    assert n < 3, f"bad {n}"
    return x * n


@program
def comprehensions(x, n):
    d = {k: v * x for k, v in zip("ab", range(2))}
    s = {i % 2 for i in range(5)}
    m = [[i * j for j in range(2)] for i in range(n)]
    w = [y for i in range(4) if (y := i * 2) > 2]
    return (
        d["b"],
        s,
        m,
        w,
        y,
        sum(i for i in s),
        any(i > 1 for i in s),
        all(v is not None for v in d.values()),
    )


@program
def unpacking(x, n):
    a, *b, c = [x, 1, 2, x * n]
    (p, q), [r] = (1, 2), [3]
    d = {**{"a": 1}, "b": n}
    l = [*b, *(4, 5)]

    def f(*args, k=0, **kw):
        return len(args), k, sorted(kw)

    return a + c, b, p, q, r, d, l, f(*l, **d), f(1, *b, k=2, **{"z": 1})


@program
def builtin_functions(x, n):
    return (
        x * max(1, n, key=lambda v: -v),
        sorted("bca", reverse=True),
        list(map(lambda a, b: a + b, [1], [2])),
        list(filter(None, [0, 1])),
        divmod(7, 2),
        pow(2, 5, 3),
        round(2.567, 2),
        abs(-n),
        sum([[1], [2]], []),
        list(enumerate("ab", 1)),
        min([3, 1]),
        hex(255),
        bin(5),
        oct(8),
        int("12", 3),
        float("1.5"),
        complex(1, 2),
        bool([]),
        bytes(3),
        bytearray(b"ab"),
        tuple("ab"),
        frozenset([1]),
        callable(len),
        isinstance(1, (int, str)),
        type(n).__name__,
        id(x) == id(x),
        hash("a") == hash("a"),
        slice(1, 5, 2).indices(4),
        list(reversed([1, 2])),
        vars(types.SimpleNamespace(a=1)),
        next(iter([5])),
        next(iter([]), 9),
        iter(lambda: 1, 1).__class__.__name__,
        memoryview(b"ab")[0],
        chr(65),
        isinstance(x, Tensor),
        getattr(x, "nope", None),
    )


@program
def maths(x, n):
    m = math
    return (
        x * m.sqrt(n + 2.0) + m.pi,
        m.floor(2.5),
        m.ceil(2.1),
        m.gcd(12, 18),
        m.prod([1, 2, 3]),
        m.isclose(0.1 + 0.2, 0.3),
        m.log2(8),
        m.factorial(5),
        m.comb(5, 2),
        m.hypot(3, 4),
        m.inf,
        m.isnan(m.nan),
        m.copysign(1, -2),
        m.fsum([0.1] * 10),
        m.frexp(8.0),
        m.isqrt(17),
        m.dist([0, 0], [3, 4]),
        m.trunc(2.7),
        m.lcm(4, 6),
        statistics.mean([1, 2, 3]),
        fractions.Fraction(1, 3) + 1 == fractions.Fraction(4, 3),
    )


@program
def sets_(x, n):
    s = {1, 2, n}
    t = frozenset([2, 3])
    s.add(5)
    s.discard(9)
    s |= {7}
    s.update([8], (9,))
    u = s.copy()
    u.remove(5)
    u.clear()
    return (
        x * len(s),
        s & t,
        s - t,
        s ^ t,
        s | t,
        s >= {1},
        s.isdisjoint({100}),
        t.issubset({1, 2, 3}),
        s.union([4]),
        s.intersection([1]),
        s.difference([1]),
        u,
        2 in t,
        {t: 1}[frozenset([3, 2])],
        s.symmetric_difference([1]),
    )


@program
def dicts_(x, n):
    d = {"a": 1, "b": x}
    d.setdefault("c", []).append(n)
    d.update({"e": 1}, f=2)
    d |= {"g": 3}
    p = d.pop("e")
    q = d.pop("zz", None)
    i = d.popitem()
    e = dict.fromkeys("ab", 0)
    v = d.keys() & {"a", "c"}
    w = d.items()
    del d["f"]
    return (
        d["b"] * p,
        q,
        i,
        e,
        sorted(v),
        len(w),
        list(reversed(d)),
        d.keys() == {"a", "b", "c"},
        d | e,
        dict(zip("a", [1])),
        {**d},
        d.get("q", 4),
        "a" in d.values(),
        list(d.items())[0],
    )


@program
def lists_(x, n):
    l = [3, 1, n]
    l.sort(key=lambda v: -v, reverse=True)
    l.insert(0, x)
    l.extend((4, 5))
    l[1:2] = [8, 9]
    del l[-1]
    l += [7]
    m = l[1:]
    m.reverse()
    m.remove(9)
    k = m.copy()
    k.clear()
    return (
        l[0] * 2,
        m,
        k,
        m.index(8),
        m.count(8),
        l[::2][1:],
        m * 2,
        [1] + [2],
        [1, 2] < [1, 3],
        m.pop(),
        m.pop(0),
        [[0] * 2 for _ in range(2)],
        sorted(m, key=str),
    )


@program
def globals_and_builtins(x, n):
    global COUNT
    COUNT = globals().get("COUNT", 0) + 1
    return x * COUNT, "n" in locals(), __name__ is not None


@program
def numbers_(x, n):
    a = n / 2
    b = n // 2
    c = n % 3
    d = n**2
    e = -n
    f = n << 2
    g = n | 8
    h = n & 1
    i = n ^ 5
    j = ~n
    k = n >> 1
    return (
        x * a + b,
        c,
        d,
        e,
        f,
        g,
        h,
        i,
        j,
        k,
        n.bit_length(),
        (2.5).is_integer(),
        (0.5).as_integer_ratio(),
        (3).to_bytes(2, "big"),
        int.from_bytes(b"a", "big"),
        float.fromhex("0x1p3"),
        (1 + 2j).conjugate(),
        n == 1.0,
        1 < n < 3,
        n is None,
        decimal.Decimal("1.5") + 1 == decimal.Decimal("2.5"),
    )


@program
def star_exprs_and_loops(x, n):
    out = []
    for i, (a, b) in enumerate(zip([1, 2, 3], "abc")):
        if i == n:
            break
        out.append((a, b))
    else:
        out.append("else")
    k = 0
    while k < 3:
        k += 1
        if k == 2:
            continue
        x = x + k
    else:
        out.append("welse")
    return x, out


@program
def recursion_(x, n):
    def fib(k):
        return k if k < 2 else fib(k - 1) + fib(k - 2)

    def walk(t):
        return sum(walk(v) for v in t) if isinstance(t, (list, tuple)) else t

    return x * fib(n + 3), walk([x, [x, (x, [x])]])


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(3, 3)
        self.count = 0
        self.cfg = Cfg(2)
        self.layers = torch.nn.ModuleDict({"a": torch.nn.ReLU()})

    def forward(self, x):
        self.count += 1
        for k, v in self.layers.items():
            x = v(x)
        return self.lin(x) * self.cfg.a, self.count


mod = Module()


@program
def json_(x, n):
    return x + 1, json.dumps({"a": [1, n]}), json.loads('{"a": [1]}')


@program
def super_forms(x, n):
    class A:
        def f(self):
            return 1

        @classmethod
        def c(cls):
            return cls.__name__

        @staticmethod
        def s(k):
            return k * 2

        @property
        def p(self):
            return 3

    class B(A):
        def f(self):
            return super().f() + super().f()

        @classmethod
        def c(cls):
            return super().c() + "!"

        @property
        def p(self):
            return super().p + 1

    b = B()
    return x * b.f(), B.c(), b.s(3), b.p, B.s(4), A.f(b)


class Multi1:
    def go(self):
        return ["m1"]


class Multi2(Multi1):
    def go(self):
        return ["m2"] + super().go()


class Multi3(Multi1):
    def go(self):
        return ["m3"] + super().go()


class Diamond(Multi2, Multi3):
    def go(self):
        return ["d"] + super().go()


@program
def mro(x, n):
    return x + 1, Diamond().go(), [c.__name__ for c in Diamond.__mro__], Diamond.mro()[0] is Diamond


@program
def attr_builtins(x, n):
    o = Weak(x)
    setattr(o, "k", n)
    delattr(o, "v")
    return (
        x * getattr(o, "k"),
        hasattr(o, "v"),
        vars(o),
        o.__dict__,
        o.__class__.__name__,
        type(o) is Weak,
        sorted(o.__dict__),
        dir(o)[-1],
    )


@program
def property_inside(x, n):
    class P:
        def __init__(self):
            self._v = x

        @property
        def v(self):
            return self._v * 2

        @v.setter
        def v(self, o):
            self._v = o

    p = P()
    p.v = x + n
    return p.v


@program
def type_call(x, n):
    K = type("K", (Weak,), {"twice": lambda self: self.v * 2})
    return K(x).twice(), K.__name__


@program
def func_attributes(x, n):
    def f(a):
        return a

    f.k = n
    return x * f.k, f.__name__, f.__qualname__, f.__module__ is not None, f.__dict__, f.__closure__


@program
def iterators_user(x, n):
    class It:
        def __init__(self, k):
            self.k = k

        def __iter__(self):
            return self

        def __next__(self):
            if self.k <= 0:
                raise StopIteration
            self.k -= 1
            return x * self.k

    return sum(It(3)), len(list(It(n)))


class CtxVar:
    pass


@program
def stateful_iter_across(x, n):
    it = iter([1, 2, 3])
    a = next(it)
    return x * a, list(it), next(it, "end")


@program
def bytes_(x, n):
    b = b"abc"
    return (
        x + b[0],
        b.decode(),
        b + b"d",
        b.hex(),
        bytes([1, 2]),
        b.upper(),
        bytearray(b).extend(b"q"),
        b[1:],
        list(b),
    )


@program
def chained(x, n):
    y = x if n else None
    z = y or x if n > 100 else (y is not None and n)
    return x * 1, z, n if n else "z", not n, (n and 5) or 6


@program
def print_objects(x, n):
    print([1, n], {"a": n}, Ordered(1, 2), Color.RED)
    return x * 2


class Reg(dict):
    def register(self, name):
        def wrap(f):
            self[name] = f
            return f

        return wrap


REG = Reg()


@REG.register("mul")
def _mul(a, b):
    return a * b


@program
def registry(x, n):
    return REG["mul"](x, n), "mul" in REG, [k for k in REG]


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    def __init__(self, content):
        self.content = content


@program
def generic_types_made_inside(x, n):
    parts: typing.List[Tensor] = torch.jit.annotate(typing.List[Tensor], [])
    parts.append(x * Box[int](n).content)
    made = (typing.Dict[str, typing.List[int]], typing.Optional[int], typing.Literal["a"],
            typing.Callable[[int], str], typing.Annotated[int, "x"], int | None, list[int])
    return parts[0], made, typing.get_args(made[0]), made[0].__origin__


@program
def generic_functions_made_inside(x, n):
    @functools.singledispatch
    def shown(value):
        return "object"

    @shown.register(int)
    def _(value):
        return f"int {value}"

    @shown.register(list)
    def _(value):
        return [shown(item) for item in value]

    @shown.register(torch.Tensor)
    def _(value):
        return value * n

    return shown(x), shown([1, "a", [2]]), shown(2.5), shown(True)


@program
def signatures_of_functions_made_inside(x, n):
    def scaled(a, b=x, *rest, scale: float = 2.0, **more):
        return a * scale

    signature = inspect.signature(scaled)
    names = [f"{one.name} {one.kind.name}" for one in signature.parameters.values()]
    bound = signature.bind(x, scale=n)
    bound.apply_defaults()
    partly = inspect.signature(functools.partial(scaled, scale=n))
    return (scaled(*bound.args, **bound.kwargs), names, signature.parameters["b"].default is x,
            partly.parameters["scale"].default, list(bound.arguments))
