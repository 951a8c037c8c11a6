"""Programs in Python's language with tensors; every `stop()` may be a graph break."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import sys
import typing
from typing import Any

import torch
from torch import nn


def stop(*a):
    return a[-1] if a else None


def arith(x, y):
    z = x + y * 2 - 3 / (x.abs() + 1)
    z = z @ y.T
    z **= 2
    z //= 3
    z %= 5
    return (
        -z,
        +z,
        z < y,
        ~(z > 0),
        z[0, 1:],
        z[..., None, ::2],
        divmod(7, 3),
        7 // 2,
        -7 % 3,
        1 << 3 | 5 & 6 ^ 1,
    )


def unpacking(x):
    a, b, *c = x.unbind(0)
    (d, e), f = (a, b), stop(c)
    first, *_, last = f
    [g, *h] = [1, 2, 3]
    return a + b, d - e, first * last, g, h, {**{"a": a}, "b": b}, [*f, a], (*h, g)


def loops(x, n):
    total = x.new_zeros(x.shape[1:])
    for i, row in enumerate(x):
        if i == n:
            break
        total = total + row * i
        for j in range(3):
            if j == 1:
                continue
            total = total - stop(j)
    else:
        total = total * 10
    k = 0
    while True:
        k += 1
        total = total + k
        stop()
        if k > 3:
            break
    return total, k


def generators(x):
    def gen(n):
        received = 0
        try:
            for i in range(n):
                r = yield x * i + received
                received = r or 0
        finally:
            log.append("closed")
        return "done"

    def outer():
        res = yield from gen(3)
        yield res

    log = []
    g = gen(3)
    first = next(g)
    second = g.send(5)
    g.close()
    items = list(outer())
    squares = sum(v * v for v in (x, x + 1))
    stop()
    return (
        first,
        second,
        items,
        squares,
        log,
        [a for a in gen(2)],
        list(itertools.islice((i * x for i in itertools.count()), 3)),
    )


class Shape(enum.Enum):
    ROUND = 1
    FLAT = 2


@dataclasses.dataclass
class Config:
    width: int = 3
    names: list = dataclasses.field(default_factory=list)

    def total(self):
        return self.width + len(self.names)


class Point(typing.NamedTuple):
    x: Any
    y: Any = 1


class Stack:
    count = 0

    def __init__(self, items=()):
        self.items = list(items)
        type(self).count

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]

    def __setitem__(self, i, v):
        self.items[i] = v

    def __contains__(self, v):
        return any(v is i for i in self.items)

    def __iter__(self):
        return iter(self.items)

    def __add__(self, o):
        return Stack(self.items + list(o))

    def __eq__(self, o):
        return isinstance(o, Stack) and len(self) == len(o)

    def __bool__(self):
        return bool(self.items)

    def __call__(self, x):
        return x + len(self)

    def __getattr__(self, name):
        if name.startswith("get_"):
            return lambda: name[4:]
        raise AttributeError(name)

    @property
    def top(self):
        return self.items[-1]

    @top.setter
    def top(self, v):
        self.items[-1] = v

    @staticmethod
    def make(*a):
        return Stack(a)

    @classmethod
    def empty(cls):
        return cls()


def objects(x):
    s = Stack.make(x, x + 1)
    s.top = s.top * 2
    s[0] = s[0] - 1
    stop()
    t = s + [x]
    p = Point(x)
    c = Config(names=["a"])
    c.width += 2
    q = p._replace(y=c.total())
    return (
        len(t),
        t.top,
        x in t,
        s == t,
        s(x),
        s.get_abc(),
        bool(Stack.empty()),
        list(t)[1],
        q.x + q.y,
        p._fields,
        c.width,
        Shape.ROUND.name,
        Shape(2) is Shape.FLAT,
        hasattr(s, "nope"),
        getattr(s, "nope", 5),
        isinstance(s, Stack),
    )


def closures(x):
    n = 1

    def add(y):
        nonlocal n
        n += 1
        return y + n

    fs = [lambda z, k=k: z * k + n for k in range(3)]
    a = add(x)
    stop()
    b = add(a)

    def deco(f):
        @functools.wraps(f)
        def inner(*args, **kw):
            return f(*args, **kw) + 1

        return inner

    @deco
    def g(u, *, v=2):
        return u * v

    part = functools.partial(g, v=3)
    return (
        a,
        b,
        n,
        [f(x) for f in fs],
        g(x),
        part(x),
        (lambda *a, **k: (len(a), sorted(k)))(1, 2, z=1, y=2),
    )


@contextlib.contextmanager
def scale(log, k):
    log.append("in")
    try:
        yield k
    except ValueError:
        log.append("caught")
    finally:
        log.append("out")


def managers(x):
    log = []
    with scale(log, 2) as k:
        x = x * k
        stop()
    with scale(log, 3) as k, contextlib.suppress(KeyError):
        y = {}["missing"]
    with scale(log, 4):
        stop()
        raise ValueError("x")
    with torch.no_grad():
        x = x + 1
        stop()
        x = x * 2
    with contextlib.nullcontext(5) as five:
        x = x + five
    with contextlib.ExitStack() as stack:
        stack.enter_context(scale(log, 1))
        x = x - 1
    return x, log


def exceptions(x, n):
    out = []
    for i in range(4):
        try:
            if i == 0:
                raise ValueError("v", i)
            if i == 1:
                [][i]
            if i == 2:
                {}[i]
            out.append(x * i)
        except (IndexError, KeyError) as e:
            out.append(type(e).__name__)
            out.append(stop(str(e)))
        except ValueError as e:
            out.append(e.args)
        else:
            out.append("else")
        finally:
            stop()
            out.append("finally")
    try:
        try:
            1 / 0
        except ZeroDivisionError as e:
            stop()
            raise RuntimeError("two") from e
    except RuntimeError as e:
        out.append((type(e.__cause__).__name__, type(e.__context__).__name__))

    def f():
        try:
            return "try"
        finally:
            out.append("after")

    out.append(f())
    return out


def containers(x):
    d = {"a": x, "b": x + 1}
    d["c"] = d.pop("a") * 2
    d.setdefault("e", []).append(x)
    d.update(f=x, **{"g": 3})
    l = [x, 1, "s"]
    l.insert(1, x + 2)
    l.extend([5])
    l += [6]
    del l[0]
    l2 = sorted([3, 1, 2], key=lambda v: -v)
    stop()
    s = {1, 2} | {3}
    s.add(4)
    s.discard(1)
    od = collections.OrderedDict(a=1)
    od.move_to_end("a")
    dd = collections.defaultdict(list)
    dd["k"].append(x)
    c = collections.Counter("aab")
    dq = collections.deque([1, 2], maxlen=2)
    dq.append(3)
    return (
        d,
        l,
        l2,
        s,
        list(d),
        list(d.values())[0],
        {k: v for k, v in d.items() if k != "e"},
        od,
        dd,
        c["a"],
        list(dq),
        [*zip([1, 2], "ab")],
        list(map(lambda a, b: a + b, [1, 2], [3, 4])),
        list(filter(None, [0, 1])),
        list(reversed([1, 2])),
        max([1, 3, 2]),
        min(4, 2),
        sum([x, x]),
        any([0, 1]),
        all([]),
        "-".join(["a", "b"]),
        "%s %d" % ("a", 3),
        f"{x.shape[0]:>3}|{1.5:.2f}",
    )


def strings(x):
    n = x.shape[0]
    name = f"layer.{n}.weight"
    parts = name.split(".")
    return (
        x * len(parts),
        parts[-1].upper(),
        name.startswith("layer"),
        name.replace("layer", "l"),
        "a" in name,
        int(parts[1]) + 1,
        repr(n),
        str(1.5),
        "x".center(5, "*"),
        name[1:4],
    )


def builtins_(x):
    return (
        isinstance(x, torch.Tensor),
        type(x) is torch.Tensor,
        callable(stop),
        hasattr(x, "foo"),
        abs(-3),
        round(2.567, 1),
        pow(2, 3),
        divmod(9, 4),
        x.ndim,
        len(x),
        list(range(5))[::2],
        tuple(range(3)),
        dict(a=1),
        set([1]),
        frozenset([1, 2]),
        bool(0),
        int("3"),
        float("2.5"),
        math.sqrt(4),
        math.pi,
        functools.reduce(operator.add, [1, 2, 3]),
        operator.itemgetter(1)([1, 2]),
        list(itertools.chain([1], [2])),
        list(itertools.product([1, 2], [3])),
        list(enumerate("ab", 1)),
        list(itertools.accumulate([1, 2, 3])),
        slice(1, 2).start,
        x.size(0),
        x.dtype,
        x.device.type,
        x.is_floating_point(),
        id(x) == id(x),
        iter([1]).__next__(),
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.act = nn.ReLU()
        self.register_buffer("scale", torch.tensor(2.0))
        self.calls = 0
        self.cache = {}

    def forward(self, x, *, depth=None):
        self.calls += 1
        for i, layer in enumerate(self.layers):
            x = self.act(layer(x))
            if depth is not None and i >= depth:
                break
            stop()
        self.cache["last"] = x
        return x * self.scale


torch.manual_seed(0)
NET = Net()


def module(x):
    a = NET(x)
    b = NET(x, depth=1)
    return a, b, NET.calls > 0


def conditional(x, flag):
    y = x + 1 if flag else x - 1
    z = None if flag else y
    w = y if z is None else z
    v = flag and y.shape[0] or 7
    if not flag or (x.shape[0] > 100 and stop()):
        w = w * 2
    elif x.dim() == 2 and x.shape[0] == 4 != 3:
        w = w * 3
    assert w is not None, "never"
    return w, v, 1 < v < 10


GLOBAL = {"n": 0, "items": []}
COUNT = 0


def globals_(x):
    global COUNT
    COUNT += 1
    GLOBAL["n"] += 1
    GLOBAL["items"].append(COUNT)
    stop()
    return x + GLOBAL["n"] * 0, len(GLOBAL["items"]) > 0


def mutation(x):
    y = x.clone()
    y[0] = 1
    y[:, 1] += 2
    y.add_(1)
    stop()
    y.mul_(2).relu_()
    z = [y]
    z[0] += 1
    return y, z


def matching(x, v):
    match v:
        case {"k": int(n), **rest}:
            r = (n, rest)
        case [a, *b]:
            r = (a, b)
        case Point(x=px, y=1):
            r = ("p", px)
        case str() as s if len(s) > 1:
            r = s
        case None | 1:
            r = "none"
        case _:
            r = "other"
    stop()
    return x + 1, r


def recursion(x, n):
    if n == 0:
        return x
    stop()
    return recursion(x * 2, n - 1) + n


def deep(x):
    def a(y):
        z = y + 1

        def b(w):
            for i in range(2):
                w = w * 2
                stop()
            return w + z

        return b(y) - z

    return [a(x), a(x + 1)]


def walrus(x):
    if (n := x.shape[0]) > 2 and (m := stop(n)):
        return x * n + m
    return x


def star_calls(x):
    def f(a, /, b, *args, c=3, **kw):
        return (a, b, args, c, sorted(kw.items()))

    return f(1, 2), f(1, b=2, c=x.shape[0]), f(*[1, 2, 3], **{"z": 1}, y=2), f(1, *(2,), *[3], c=4)


def errors(x, kind):
    if kind == 0:
        raise ValueError(f"bad {x.shape}")
    if kind == 1:
        return x @ torch.ones(7)
    if kind == 2:
        return {}["k"]
    if kind == 3:
        return undefined_name
    if kind == 4:
        return x.nope
    if kind == 5:
        assert x.shape[0] == 99, "size"
    if kind == 6:
        return len(5)
    return x


def data_dependent(x):
    if x.sum() > 0:
        y = x * 2
    else:
        y = x * 3
    n = int(y.abs().max().item())
    stop()
    while (y > 4).any():
        y = y / 2
    return y, n, y.tolist() == y.tolist(), bool((x == x).all())


def deques(x):
    d = collections.deque([x, 1, 2], maxlen=3)
    d.append(4)
    d.appendleft(x + 1)
    d.rotate(1)
    stop()
    e = collections.deque()
    e.extendleft([1, 2, 3])
    e += [5]
    a = e.popleft()
    b = e.pop()
    del e[0]
    f = d.copy()
    f.clear()
    return (
        list(d),
        d,
        e,
        a,
        b,
        len(f),
        d.maxlen,
        e == collections.deque([1]),
        list(reversed(e)),
        1 in e,
        d[-1],
        bool(f),
        [v for v in e],
    )


def boom(n):
    stop()
    if n > 1:
        raise ValueError(n)
    return n


class Swallow:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.log.append(kind and kind.__name__)
        return True


def raising_breaks(x, n):
    """What a break's operation, or a frame resumed inside, raises is caught where it should be."""
    log = []
    try:
        y = x + boom(n)
    except ValueError as error:
        y = x - 1
        log.append(str(error))
    finally:
        log.append("finally")

    def inner(z):
        w = z * 2
        k = boom(n)
        return w + k

    try:
        y = inner(y)
    except ValueError:
        log.append("inner")
    with Swallow(log):
        y = y + boom(n)
        log.append("not raised")
    with Swallow(log), Swallow(log):
        y = inner(y)
    try:
        if boom(n):
            y = y * 2
    except ValueError:
        stop()
        y = y * 3
    return y, log


def who():
    return repr(sys.exc_info()[1])


def handled_breaks(x, n):
    """What runs while an exception is handled can ask for it."""
    y = x * 2
    try:
        if n:
            raise ValueError(n)
    except ValueError:
        w = who()
        y = y + 1
        try:
            {}[w]
        except KeyError as error:
            w = w + who() + repr(error.__context__)
        w = w + who()
        if n > 1:
            raise
    return y.relu(), w if n else who()


def handled_by_caller(x, n):
    try:
        raise KeyError(1)
    except KeyError:
        return handled_breaks(x, n)


class Slot:
    value = 0


SLOT = Slot()


def restored(x, n):
    """A value that is changed and set back is written, whatever it was when captured."""
    SLOT.value = n
    stop()
    k = SLOT.value
    stop()
    SLOT.value = 1
    return x + k, SLOT.value


def refused_write(x):
    """Only the kernel sees that items share memory: the effects before it stay."""
    log = []
    log.append("before")
    try:
        x[0].sum().expand(3).add_(1)
    except RuntimeError:
        log.append("refused")
    return x + 1, log


def long_loops(x, n):
    """Breaks in loops of many iterations must not nest."""
    total = 0
    for i in range(n):
        x = x + 1
        total += stop(i)
    k = 0
    while k < n:
        if x.sum() > 0:
            x = x - 1
        k += 1

    def inner(y):
        z = y * 0.5
        stop()
        return z + 1

    while (x < 1000).any():
        x = x + 1
    for _ in range(n):
        x = inner(x)
    return x, total, k


class Rows:
    """Gives a new generator that exists before the call's frame reads it."""

    def __iter__(self):
        return stop(iter(map(float, range(3))))


def outside_iterator(x, rows):
    """The loop itself cannot be captured; what comes before it can."""
    y = (x * 2).relu()
    for row in rows:
        y = y + row
    return y


class History:
    def __init__(self):
        self.past = collections.deque(maxlen=2)

    def __call__(self, x):
        self.past.append(x.sum())
        return x * len(self.past)


def outside_deque(x, h):
    y = h(x)
    stop()
    y = h(y)
    y = h(y)
    return y, h.past


def getters(x):
    s = Stack([x, 5])
    g = operator.itemgetter(1, 0)
    h = operator.attrgetter("top", "items")
    m = operator.methodcaller("mul", 3)
    k = operator.methodcaller("sum", dim=0)
    stop()
    return (
        g([1, 2]),
        h(s)[0],
        m(x),
        k(x),
        sorted([(1, "b"), (2, "a")], key=operator.itemgetter(1)),
        operator.attrgetter("shape")(x),
    )


def iters(x):
    it = iter([1, 2, 3])
    a = it.__next__()
    b = next(it)
    z = zip([x], [1])
    n = z.__next__()
    try:
        next(z)
    except StopIteration as e:
        s = "stopped"
    return a, b, list(it), n, s, next(it, "end"), list(map(str, range(2))).__iter__().__next__()


X = torch.arange(16.0).reshape(4, 4) / 3 - 1
CASES = [
    (arith, (X, X.T + 1)),
    (unpacking, (X,)),
    (loops, (X, 2)),
    (loops, (X, 9)),
    (generators, (X,)),
    (objects, (X,)),
    (closures, (X,)),
    (managers, (X,)),
    (exceptions, (X, 1)),
    (containers, (X,)),
    (strings, (X,)),
    (builtins_, (X,)),
    (module, (X,)),
    (conditional, (X, True)),
    (conditional, (X, False)),
    (globals_, (X,)),
    (mutation, (X,)),
    *[(matching, (X, v)) for v in ({"k": 1, "z": 2}, [1, 2], Point(3), "abc", None, 2.5)],
    (recursion, (X, 3)),
    (deep, (X,)),
    (walrus, (X,)),
    (star_calls, (X,)),
    *[(errors, (X, k)) for k in range(7)],
    (data_dependent, (X,)),
    (data_dependent, (-X,)),
    *[(raising_breaks, (X, n)) for n in range(4)],
    *[(handled_breaks, (X, n)) for n in range(3)],
    *[(handled_by_caller, (X, n)) for n in range(3)],
    *[(restored, (X, n)) for n in range(4)],
    (refused_write, (X,)),
    (outside_iterator, (X, Rows())),
    (long_loops, (X, 600)),
    (deques, (X,)),
    (outside_deque, (X, History())),
    (getters, (X,)),
    (iters, (X,)),
]
