"""Programs of test_features.py: containers, iterators, functools, text, match, contexts."""

from __future__ import annotations

import bisect
import collections
import contextlib
import copy
import functools
import heapq
import inspect
import itertools
import logging
import numbers
import operator
import random
import re
import string
import textwrap
import types
import typing
import warnings
import weakref

import torch
from torch import Tensor

from tests.capture.features import program
from tests.capture.features.objects import Cfg, Color, Ordered, Pt, Slots, Vec


class UD(collections.UserDict):
    def __setitem__(self, k, v):
        super().__setitem__(k.upper(), v)


class DictSub(dict):
    def __missing__(self, k):
        return k * 2

    def __getitem__(self, k):
        return super().__getitem__(k)


class ListSub(list):
    def append(self, v):
        super().append(v)
        self.n = len(self)


@program
def container_subclasses(x, n):
    u = UD(a=x)
    u["b"] = n
    d = DictSub(a=x)
    d["q"] = n
    l = ListSub([1])
    l.append(x)
    return u["A"] * u["B"] + d["a"], d["w"], l.n, list(u), l, isinstance(d, dict), len(l)


@program
def itertools_all(x, n):
    i = itertools
    r = [
        list(i.accumulate([1, 2, 3], initial=n)),
        list(i.accumulate([1, 2, 3], operator.mul)),
        list(i.chain([1], (2,), "ab")),
        list(i.chain.from_iterable([[1], [2]])),
        list(i.combinations("abc", 2)),
        list(i.combinations_with_replacement("ab", 2)),
        list(i.compress("abc", [1, 0, 1])),
        list(i.islice(i.count(n, 2), 3)),
        list(i.islice(i.cycle("ab"), 5)),
        list(i.dropwhile(lambda v: v < 2, range(4))),
        list(i.takewhile(lambda v: v < 2, range(4))),
        list(i.filterfalse(lambda v: v % 2, range(5))),
        [(k, list(g)) for k, g in i.groupby("aabbb")],
        list(i.islice(range(10), 2, 8, 3)),
        list(i.pairwise("abcd")),
        list(i.permutations("abc", 2)),
        list(i.product("ab", [1, 2])),
        list(i.product([0, 1], repeat=2)),
        list(i.repeat(n, 3)),
        list(i.starmap(pow, [(2, 3), (3, 2)])),
        list(i.zip_longest("ab", "c", fillvalue="-")),
    ]
    a, b = i.tee([x, x * 2, x * n])
    return sum(a) + next(b), r, [t.sum() for t in i.accumulate([x, x, x])], next(i.count(3))


@program
def itertools_lazy(x, n):
    it = itertools.chain([x], itertools.repeat(x * 2, 2))
    first = next(it)
    g = itertools.islice(it, 1)
    c = itertools.count(5)
    z = zip(c, [x, x])
    return first + sum(g), list(it), [a * b for a, b in z], next(c)


@functools.singledispatch
def kind(v):
    return "other"


@kind.register
def _(v: int):
    return "int"


@kind.register(list)
def _(v):
    return "list"


@kind.register
def _(v: Tensor):
    return v * 2


class FT:
    calls = 0

    def __init__(self, k):
        self.k = k

    @functools.cached_property
    def big(self):
        self.k += 1
        return self.k * 10

    @functools.singledispatchmethod
    def m(self, v):
        return "o"

    @m.register
    def _(self, v: int):
        return v + self.k

    def pm(self, a, b):
        return a * self.k + b

    pm2 = functools.partialmethod(pm, 2)

    @functools.cache
    def cached(self, v):
        return v * 2


@functools.total_ordering
class TO:
    def __init__(self, v):
        self.v = v

    def __eq__(self, o):
        return self.v == o.v

    def __lt__(self, o):
        return self.v < o.v


@functools.lru_cache(maxsize=4)
def lru(a, b=1):
    return a * b


@functools.cache
def cach(a):
    return a + 1


def deco(f):
    @functools.wraps(f)
    def inner(*a, **k):
        return f(*a, **k) + 1

    inner.tag = f.__name__
    return inner


@deco
def decorated(x):
    "doc"
    return x * 2


@program
def functools_dispatch(x, n):
    return kind(x), kind(n), kind([1]), kind("s")


@program
def functools_methods(x, n):
    f = FT(n)
    return x * f.big + f.big, f.k, f.m(3), f.m("s"), f.pm2(3), f.pm2(b=1)


@program
def functools_caches(x, n):
    return x * lru(3, b=2) + lru(3, b=2) + cach(n)


@program
def functools_order(x, n):
    a, b = TO(1), TO(n)
    return (
        x + 1,
        a <= b,
        a > b,
        a >= b,
        sorted([TO(3), TO(2)], key=functools.cmp_to_key(lambda p, q: p.v - q.v))[0].v,
    )


@program
def functools_partial(x, n):
    p = functools.partial(torch.add, x, alpha=n)
    q = functools.partial(p)
    r = functools.partial(lambda a, b=1, **k: a * b + len(k), b=x)
    return (
        q(x) + r(2, z=1),
        p.func is torch.add,
        p.keywords,
        functools.reduce(operator.add, [x, x, x], 1),
        p.args,
    )


@program
def functools_wraps(x, n):
    return (
        decorated(x),
        decorated.__name__,
        decorated.tag,
        decorated.__wrapped__(x),
        decorated.__doc__,
    )


@program
def formatting(x, n):
    name = "w"
    v = 3.14159
    a = f"{n:>5}|{name!r:^7}|{v:.2f}|{n:04d}|{v:{n + 5}.1f}|{n=}|{'a' if n > 1 else 'b'}|{x.shape}|{x.dtype!s}"
    b = "%s %d %5.2f %r %%" % (name, n, v, "q")
    c = "%(a)s" % {"a": n}
    d = "{} {0!r}".replace("{} ", "").format(n) + f"{1234567:,}" + f"{[n][0]} {(2).real}"
    e = string.Template("$who likes").substitute(who="tim")
    return (
        x + 1,
        a,
        b,
        c,
        d,
        e,
        format(n, "b"),
        str(v),
        ascii("é"),
        "abc".center(9, "*"),
        "{:>{w}}".format("a", w=4),
    )


@program
def strings(x, n):
    s = "Hello, World"
    return (
        x * len(s),
        s.lower().split(", "),
        s.partition(","),
        s.rsplit("o", 1),
        s.translate(str.maketrans("lo", "01")),
        "-".join(["a", "b"]),
        s.startswith(("He", "x")),
        s[::-1],
        s.find("W"),
        s.encode(),
        s.zfill(15),
        s.isalpha(),
        "a\nb".splitlines(),
        s.removeprefix("He"),
        s.casefold(),
        s.index("o"),
        s.count("l"),
        s * 2,
        "l" in s,
        ord("a") + n,
        chr(97),
        s.title(),
        s.swapcase(),
        s.expandtabs(),
        textwrap.dedent("  a\n  b"),
        re.sub(r"l+", "L", s),
        re.match(r"(\w+), (\w+)", s).groups(),
    )


@program
def tensor_format(x, n):
    return (
        x + 1,
        f"{x.shape[0]}x{x.ndim}",
        "%s" % (tuple(x.shape),),
        f"{x.dtype}",
        f"{x.device}",
    )


@program
def matching(x, n):
    out = []
    for v in [
        0,
        1,
        -5,
        "s",
        [1, 2],
        (1, 2, 3),
        [1],
        {"k": 1, "z": 3},
        Ordered(1, 2),
        None,
        True,
        Color.RED,
        2.5,
        (Ordered(1, 9), [3, 4, 5]),
        b"x",
        {"t": (1, 2)},
    ]:
        match v:
            case None:
                r = "none"
            case True:
                r = "true"
            case 0:
                r = "zero"
            case Color.RED:
                r = "red"
            case int(k) if k < 0:
                r = ("neg", k)
            case int() | float() as q:
                r = ("num", q)
            case "s" | "t":
                r = "str"
            case [a, b]:
                r = ("pair", a, b) if not isinstance(a, Ordered) else ("op", a.a, b)
            case [a, *rest] if len(rest) > 1:
                r = ("long", a, rest)
            case [_]:
                r = "one"
            case {"k": kk, **more}:
                r = ("map", kk, more)
            case {"t": (p, q)}:
                r = ("nested", p, q)
            case Ordered(1, b=bb):
                r = ("cls", bb)
            case _:
                r = "default"
        out.append(r)
    match x:
        case Tensor(shape=[a, *_]):
            y = x * a
        case _:
            y = x
    match n:
        case 1:
            y = y + 1
        case 2:
            y = y * 3
        case other:
            y = y - other
    return y, out


class Res:
    log = None

    def __init__(self, log, name, swallow=False):
        self.log, self.name, self.swallow = log, name, swallow

    def __enter__(self):
        self.log.append("+" + self.name)
        return self

    def __exit__(self, t, v, tb):
        self.log.append("-" + self.name + (t.__name__ if t else ""))
        return self.swallow

    def close(self):
        self.log.append("closed " + self.name)


@contextlib.contextmanager
def managed(log, k):
    log.append("in")
    try:
        yield k * 2
    except ValueError as e:
        log.append(str(e))
    finally:
        log.append("out")


class Deco(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *a):
        return False


@Deco()
def in_deco(x):
    return x * 3


@program
def ctx_exitstack(x, n):
    log = []
    with contextlib.ExitStack() as st:
        a = st.enter_context(Res(log, "a"))
        st.enter_context(Res(log, "b"))
        st.callback(log.append, "cb")
        st.push(lambda *e: log.append("push"))
        y = x * n
        if n > 5:
            st.pop_all()
    with contextlib.ExitStack() as st:
        for i in range(2):
            st.enter_context(Res(log, str(i), swallow=True))
        raise ValueError("q")
    return y, log


@program
def ctx_suppress(x, n):
    with contextlib.suppress(KeyError, ValueError):
        y = x + 1
        {}["a"]
        y = y * 100
    with contextlib.nullcontext(n) as k:
        y = y * k
    with contextlib.nullcontext():
        y = y + 1
    return y


@program
def ctx_closing(x, n):
    log = []
    with contextlib.closing(Res(log, "r")) as r:
        y = x * 2
    return y, log, r.name


@program
def ctx_generator(x, n):
    log = []
    with managed(log, x) as t:
        y = t + n
        if n > 1:
            raise ValueError("v")
    return y, log, in_deco(x)


@program
def ctx_nested_return(x, n):
    log = []

    def f():
        for i in range(3):
            with Res(log, str(i)), Res(log, "x"):
                if i == n:
                    return x * i
                if i == 0:
                    continue
                break
        return x - 1

    return f(), log


@program
def ctx_redirect(x, n):
    import io

    b = io.StringIO()
    with contextlib.redirect_stdout(b):
        print("hi", n)
    return x + 1, b.getvalue()


@program
def warn(x, n):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("careful")
        return x * 2


logger = logging.getLogger("weft.test")


@program
def logs(x, n):
    logger.debug("value %s", n)
    logger.info("x")
    y = x + 1
    if logger.isEnabledFor(logging.DEBUG):
        y = y * 2
    return y


@program
def printing(x, n):
    print("start", n)
    y = x * 2
    print(y.shape, end="!\n")
    return y + 1


@program
def rand_module(x, n):
    random.seed(n)
    a = random.random()
    b = random.randint(1, 10)
    c = random.choice([1, 2, 3])
    l = [1, 2, 3, 4]
    random.shuffle(l)
    return x * a + b, c, l, random.sample(range(10), 3), random.uniform(0, 1), random.gauss(0, 1)


@program
def rand_instance(x, n):
    r = random.Random(n)
    return x * r.random(), r.randrange(10), r.choices([1, 2], k=3)


@program
def rand_nonseeded(x, n):
    if random.random() < 0.5:
        return x * 2
    return x * 3


def sigf(a, b=2, *args, c, d=4, **kw) -> int:
    "doc"


@program
def inspect_signature(x, n):
    s = inspect.signature(sigf)
    names = list(s.parameters)
    b = s.bind(1, c=3)
    b.apply_defaults()
    return (
        x + len(names),
        names,
        s.parameters["b"].default,
        b.arguments["d"],
        inspect.isfunction(sigf),
        inspect.isclass(Vec),
        inspect.ismethod(Vec().__len__),
        inspect.getdoc(sigf),
        sigf.__code__.co_argcount,
        inspect.getfullargspec(sigf).args,
        sigf.__defaults__,
        sigf.__kwdefaults__,
    )


@program
def typing_features(x, n):
    T = typing.TypeVar("T")
    a: int | None = n
    b = typing.cast(int, n)
    return (
        x + b,
        typing.get_type_hints(Pt)["y"],
        typing.get_origin(list[int]),
        typing.get_args(typing.Union[int, str]),
        isinstance([], collections.abc.Sequence),
        isinstance(n, numbers.Number),
        issubclass(dict, collections.abc.Mapping),
        isinstance(n, int | str),
    )


@program
def copying(x, n):
    d = {"a": [1, {"b": n}], "t": x}
    c = copy.copy(d)
    e = copy.deepcopy(d["a"])
    e[1]["b"] = 99
    s = copy.copy(Slots(3))
    o = copy.deepcopy(Cfg(n, [[1]]))
    o.b[0].append(2)
    return (
        c["t"] * 2,
        d["a"],
        e,
        s.a,
        o,
        c["a"] is d["a"],
        copy.copy([1, 2]),
        copy.deepcopy((1, [2])),
    )


@program
def deepcopy_tensor(x, n):
    d = copy.deepcopy({"t": x, "l": [x]})
    return d["t"] + 1, d["t"] is d["l"][0]


@program
def operators(x, n):
    o = operator
    g = o.itemgetter(1, 0)
    a = o.attrgetter("shape", "ndim")
    m = o.methodcaller("sum", dim=0)
    l = [3, 1, 2]
    o.setitem(l, 0, n)
    o.iadd(l, [9])
    return (
        g([x, x * 2])[0] + m(x),
        a(x)[1],
        o.add(x, n),
        o.mul(2, n),
        l,
        o.contains(l, 9),
        o.countOf(l, 9),
        o.length_hint([1]),
        o.not_(n),
        o.is_(l, l),
        o.concat([1], [2]),
        o.truth([]),
        o.matmul(x, x).shape if x.ndim == 2 else None,
        o.lt(1, 2),
        o.indexOf(l, 2),
        o.call(len, l),
        o.attrgetter("a.b")(types.SimpleNamespace(a=types.SimpleNamespace(b=4))),
    )


@program
def heaps(x, n):
    h = [5, 3, n, 8]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    a = heapq.heappop(h)
    b = heapq.heappushpop(h, 7)
    c = heapq.heapreplace(h, 6)
    l = [1, 3, 5]
    bisect.insort(l, n)
    return (
        x * (a + b + c),
        h,
        heapq.nlargest(2, h),
        heapq.nsmallest(2, h),
        list(heapq.merge([1, 4], [2, 3])),
        bisect.bisect_left(l, 3),
        bisect.bisect(l, 3),
        l,
        bisect.bisect_right([(1, "a")], 1, key=lambda p: p[0]),
    )


@program
def namespaces(x, n):
    s = types.SimpleNamespace(a=x, b=n)
    s.c = s.a * s.b
    m = types.MappingProxyType({"a": 1})
    return (
        s.c,
        s.b,
        repr(types.SimpleNamespace(q=1)),
        m["a"],
        types.MethodType(lambda self, k: k * 2, s)(3),
        s == s,
        vars(types.SimpleNamespace(q=n)),
    )


class Weak:
    def __init__(self, v):
        self.v = v


@program
def weakrefs(x, n):
    w = Weak(x)
    r = weakref.ref(w)
    d = weakref.WeakValueDictionary()
    return r().v * 2, r() is w
