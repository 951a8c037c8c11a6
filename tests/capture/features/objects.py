"""Programs of test_features.py: functions, classes, dataclasses, enumerations, descriptors."""

from __future__ import annotations

import collections
import dataclasses
import enum
import operator
import typing

from torch import Tensor

from tests.capture.features import program


@program
def closures(x, n):
    total = 0

    def add(k, *, by=1, **more):
        nonlocal total
        total += k * by
        return x * total + more.get("extra", 0)

    a = add(n)
    b = add(n, by=3)
    c = add(1, extra=2)
    return a + b + c, total


@program
def lambdas_defaults(x, n):
    fs = [lambda y, i=i: y * i for i in range(3)]
    g = [lambda y: y + i for i in range(3)]
    return sum(f(x) for f in fs), [h(x) for h in g]


@dataclasses.dataclass
class Cfg:
    a: int
    b: list = dataclasses.field(default_factory=list)
    c: typing.Any = dataclasses.field(default=3, repr=False, compare=False)
    d: dataclasses.InitVar[int] = 5
    e: int = dataclasses.field(init=False)

    def __post_init__(self, d):
        self.e = self.a + d
        self.b.append(d)


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    t: Tensor | None = None

    def scaled(self, k):
        return dataclasses.replace(self, a=self.a * k)


@dataclasses.dataclass(slots=True)
class Slotted:
    a: int
    t: Tensor

    def total(self):
        return self.t * self.a


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: int = 1
    t: typing.Any = None


@dataclasses.dataclass(order=True)
class Ordered:
    a: int
    b: int = 0


@dataclasses.dataclass(kw_only=True)
class KwOnly(Cfg):
    z: int = 9


@program
def dataclass_plain(x, n):
    c = Cfg(n)
    d = Cfg(2, [7], d=n)
    c.a += 1
    return (
        x * c.a + c.e + d.e,
        c.b,
        d.b,
        c == d,
        repr(c),
        dataclasses.asdict(d),
        dataclasses.astuple(c),
    )


@program
def dataclass_frozen(x, n):
    f = Frozen(n, x)
    g = f.scaled(3)
    try:
        f.a = 5
        bad = None
    except dataclasses.FrozenInstanceError as e:
        bad = str(e)
    return g.t * g.a, bad, g.a


@program
def dataclass_frozen_hash(x, n):
    f = Frozen(n)
    g = Frozen(n)
    d = {f: 1}
    return x + d[g], f == g, hash(f) == hash(g)


@program
def dataclass_slots(x, n):
    s = Slotted(n, x)
    s.a += 1
    fs = FrozenSlots(n, x)
    try:
        s.zzz = 1
        m = ""
    except AttributeError as e:
        m = "no"
    return s.total() + fs.t * fs.a, m


@program
def dataclass_order(x, n):
    xs = sorted([Ordered(3, n), Ordered(1), Ordered(2, 5)])
    return x * xs[0].a, xs, Ordered(1) < Ordered(2), max(xs)


@program
def dataclass_kwonly(x, n):
    k = KwOnly(a=n, z=2)
    return x * k.z + k.a, [f.name for f in dataclasses.fields(k)], dataclasses.is_dataclass(k)


@program
def dataclass_returned(x, n):
    return Cfg(n, [x * 2]), Frozen(n, x + 1), FrozenSlots(2, x + n)


@program
def class_inside(x, n):
    class Local:
        k = 3

        def __init__(self, v):
            self.v = v

        def mul(self, y):
            return y * self.v * self.k

    return Local(n).mul(x)


@program
def class_inside_inherits(x, n):
    class Base:
        def f(self, y):
            return y + 1

    class Child(Base):
        def f(self, y):
            return super().f(y) * n

    c = Child()
    return c.f(x), isinstance(c, Base), Child.__name__, Child.__mro__[1].__name__


@program
def dataclass_inside(x, n):
    @dataclasses.dataclass
    class P:
        a: int
        b: int = 2

    p = P(n)
    return x * p.a + p.b, repr(p)[-12:]


@program
def enum_inside(x, n):
    class C(enum.Enum):
        A = 1
        B = 2

    return x * C.A.value, C(2).name


@program
def namedtuple_inside(x, n):
    P = collections.namedtuple("P", "a b", defaults=[4])
    p = P(x * n)
    return p.a + p.b, p._fields


class Color(enum.Enum):
    RED = 1
    GREEN = 2

    @property
    def nice(self):
        return self.name.title()

    @classmethod
    def default(cls):
        return cls.GREEN


class Num(enum.IntEnum):
    ONE = 1
    TWO = 2


class Fl(enum.Flag):
    A = enum.auto()
    B = enum.auto()
    AB = A | B


class St(str, enum.Enum):
    X = "x"
    Y = "y"


@program
def enums(x, n):
    c = Color.RED if n < 2 else Color(2)
    names = [m.name for m in Color]
    return (
        x * c.value + Num.TWO,
        c.nice,
        names,
        Color["RED"] is Color.RED,
        Color.default(),
        len(Color),
        c in Color,
        St("x") == "x",
        St.Y.value,
    )


@program
def enum_flags(x, n):
    f = Fl.A | Fl.B
    return (
        x + f.value,
        f is Fl.AB,
        bool(f & Fl.A),
        Fl.A in f,
        ~Fl.A,
        isinstance(Num.ONE, int),
        Num.ONE + n,
    )


@program
def enum_dict_keys(x, n):
    table = {Color.RED: x, Color.GREEN: x * 2}
    return (
        table[Color(1)] + table[Color.GREEN],
        str(Color.RED),
        repr(Color.GREEN),
        f"{Num.ONE}",
        hash(Color.RED) == hash(Color(1)),
    )


class Pt(typing.NamedTuple):
    x: Tensor
    y: int = 2

    def norm(self):
        return self.x * self.y


NT = collections.namedtuple("NT", ["a", "b"])


@program
def namedtuples(x, n):
    p = Pt(x)
    q = p._replace(y=n)
    a, b = NT(x, n)
    return (
        p.norm() + q.norm() + a * b,
        q._asdict()["y"],
        NT._fields,
        NT._make([1, 2]),
        p._fields,
        Pt.__annotations__ is not None,
        isinstance(p, tuple),
    )


class TD(typing.TypedDict, total=False):
    a: int
    t: Tensor


@program
def typeddict(x, n):
    d: TD = {"a": n, "t": x}
    e = TD(a=n + 1, t=x * 2)
    e["a"] += 1
    return d["t"] * d["a"] + e["t"], e["a"], type(e).__name__


class Slots:
    __slots__ = ("_c", "a", "b")

    def __init__(self, a):
        self.a = a

    @property
    def c(self):
        return self._c

    @c.setter
    def c(self, v):
        self._c = v * 2

    @c.deleter
    def c(self):
        del self._c


@program
def slots(x, n):
    s = Slots(x)
    s.c = n
    before = s.c
    missing = hasattr(s, "b")
    s.b = 1
    del s.c
    return s.a * before, missing, hasattr(s, "b"), hasattr(s, "c"), s


class Typed:
    def __init__(self, kind):
        self.kind = kind

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        if obj is None:
            return self
        return getattr(obj, self.name, 0)

    def __set__(self, obj, value):
        if not isinstance(value, self.kind):
            raise TypeError(f"{self.name} wants {self.kind.__name__}")
        setattr(obj, self.name, value)

    def __delete__(self, obj):
        delattr(obj, self.name)


class NonData:
    def __get__(self, obj, owner=None):
        return owner.__name__ if obj is None else 7


class Described:
    n = Typed(int)
    nd = NonData()


@program
def descriptors(x, n):
    d = Described()
    d.n = n
    try:
        d.n = "s"
        m = None
    except TypeError as e:
        m = str(e)
    first = d.nd
    d.__dict__["nd"] = 8
    r = d.n
    del d.n
    return x * r + first + d.nd, m, Described.nd, d.n


class Dyn:
    def __init__(self):
        self.log = []

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return name + "!"

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        if name != "log":
            self.log.append(name)

    def __delattr__(self, name):
        super().__delattr__(name)
        self.log.append("-" + name)


class DynAll:
    def __init__(self):
        self.v = 3

    def __getattribute__(self, name):
        if name == "twice":
            return super().__getattribute__("v") * 2
        return object.__getattribute__(self, name)


@program
def getattr_setattr(x, n):
    d = Dyn()
    d.a = x
    d.b = n
    del d.b
    return d.a * 2, d.zzz, d.log, hasattr(d, "_q"), getattr(d, "_q", 5), DynAll().twice, d.b


class Vec:
    def __init__(self, *v):
        self.v = list(v)

    def __add__(self, o):
        return Vec(*[a + b for a, b in zip(self.v, o.v)]) if isinstance(o, Vec) else NotImplemented

    def __radd__(self, o):
        return Vec(*[o + a for a in self.v])

    def __iadd__(self, o):
        self.v = [a + o for a in self.v]
        return self

    def __mul__(self, k):
        return Vec(*[a * k for a in self.v])

    __rmul__ = __mul__

    def __matmul__(self, o):
        return sum(a * b for a, b in zip(self.v, o.v))

    def __neg__(self):
        return Vec(*[-a for a in self.v])

    def __abs__(self):
        return sum(abs(a) for a in self.v)

    def __eq__(self, o):
        return isinstance(o, Vec) and len(self) == len(o)

    def __lt__(self, o):
        return len(self.v) < len(o.v)

    def __len__(self):
        return len(self.v)

    def __getitem__(self, i):
        return self.v[i]

    def __setitem__(self, i, x):
        self.v[i] = x

    def __delitem__(self, i):
        del self.v[i]

    def __contains__(self, x):
        return any(x is v for v in self.v)

    def __iter__(self):
        return iter(self.v)

    def __bool__(self):
        return bool(self.v)

    def __call__(self, k):
        return self.v[0] * k

    def __int__(self):
        return 5

    def __float__(self):
        return 2.5

    def __index__(self):
        return 1

    def __str__(self):
        return "Vec!"

    def __repr__(self):
        return f"Vec({len(self.v)})"

    def __format__(self, spec):
        return f"<{spec}>"

    def __reversed__(self):
        return reversed(self.v)

    def __invert__(self):
        return 1

    def __pow__(self, o, m=None):
        return (o, m)

    def __divmod__(self, o):
        return (o, 1)

    def __round__(self, nd=None):
        return nd

    def __hash__(self):
        return len(self.v)

    def __enter__(self):
        return self.v[0]

    def __exit__(self, *a):
        self.v.append(1)
        return False


@program
def dunders(x, n):
    v = Vec(x, x * 2)
    w = Vec(x + n, x)
    u = v + w
    u += 1
    a = 3 * u
    b = 2 + v
    s = (v @ w) + abs(-a) + b[0]
    v[0] = x * 5
    with v as e:
        s = s + e
    del w[0]
    return (
        s,
        len(v),
        v == w,
        v != w,
        v < w,
        max(v, w, key=len) is v,
        x in v,
        int(v),
        float(v),
        [10, 20][v],
        str(v),
        repr(v),
        f"{v:abc}",
        list(reversed(w)),
        ~v,
        v**2,
        pow(v, 2, 3),
        divmod(v, 4),
        round(v),
        round(v, 2),
        hash(v),
        bool(Vec()),
        v(2),
        operator.index(v),
    )


@program
def defaultdicts(x, n):
    d = collections.defaultdict(list)
    d["a"].append(x)
    d["a"].append(x * n)
    d["b"]
    e = collections.defaultdict(int, z=1)
    e["q"] += n
    f = collections.defaultdict(lambda: x * 3)
    return (
        sum(d["a"]) + f[0],
        sorted(d),
        dict(e),
        d.get("zz"),
        "zz" in d,
        e,
        e.default_factory is int,
        e.copy(),
        e | {"r": 1},
    )


@program
def ordereddicts(x, n):
    d = collections.OrderedDict(a=1, b=x, c=n)
    d.move_to_end("a")
    d.move_to_end("c", last=False)
    k = d.popitem(last=False)
    e = collections.OrderedDict(sorted({"z": 1, "y": 2}.items()))
    return (
        d["b"] * d["a"],
        list(d),
        k,
        e,
        list(reversed(d)),
        e == {"z": 1, "y": 2},
        e == collections.OrderedDict([("z", 1), ("y", 2)]),
    )


@program
def counters(x, n):
    c = collections.Counter("abracadabra")
    c["a"] += n
    d = collections.Counter({"a": 1, "z": 2})
    c.update(["q", "q"])
    c.subtract({"b": 5})
    return (
        x * c["a"],
        c.most_common(2),
        c + d,
        c - d,
        c & d,
        c | d,
        c["missing"],
        list(d.elements()),
        sum(d.values()),
        d.total(),
        +c,
        -c,
        c,
    )


@program
def deques(x, n):
    d = collections.deque([x, x + 1, x + 2], maxlen=3)
    d.append(x * n)
    d.appendleft(x)
    d.rotate(1)
    a = d.pop()
    b = d.popleft()
    e = collections.deque(range(5))
    e.rotate(-2)
    e.extendleft([9, 8])
    e.remove(3)
    e.insert(1, 77)
    return (
        a + b,
        list(e),
        e.index(77),
        e.count(1),
        len(d),
        d.maxlen,
        e[0],
        e[-1],
        list(reversed(e)),
        e.copy() == e,
    )


@program
def chainmaps(x, n):
    c = collections.ChainMap({"a": x}, {"a": 1, "b": n})
    c["z"] = 5
    ch = c.new_child({"b": 100})
    return (
        c["a"] * c["b"],
        sorted(c),
        ch["b"],
        ch.parents["b"],
        c.maps[0]["z"],
        len(ch),
        c.get("nope", 3),
        "b" in c,
    )
