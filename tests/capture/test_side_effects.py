"""Side effects: replayed once, in order, identity and aliasing kept, also across breaks."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
from collections import OrderedDict, defaultdict, deque

import torch
from torch import nn

import weft
from tests.capture.harness import check

X = torch.tensor([1.0, -2.0, 3.0])


class Counter:
    def __init__(self):
        self.n = 0
        self.seen = []
        self.table = {}

    def step(self, x):
        self.n += 1
        self.seen.append(x * self.n)
        self.table[self.n] = self.seen[-1]
        return self.seen[-1]


def test_attributes_lists_and_dicts():
    check(lambda c, x: c.step(x) + c.step(x), (Counter(), X), graphs=1)


def test_attributes_across_a_break():
    def f(c, x):
        y = c.step(x)
        print(c.n)
        return c.step(y)

    check(f, (Counter(), X), breaks=1)


def test_state_kept_between_calls():
    def make():
        counter = Counter()
        return lambda x: (counter.step(x), counter.n, len(counter.seen))

    check(None, (X,), breaks=0, make=make, repeat=4)


def test_module_attribute_counter():
    def make():
        class M(nn.Module):
            def __init__(self):
                super().__init__()
                self.calls = 0
                self.register_buffer("total", torch.zeros(3))
                self.last = None

            def forward(self, x):
                self.calls += 1
                self.total += x
                self.last = x * 2
                return x * self.calls + self.total, self.last

        return M()

    check(None, (X,), breaks=0, make=make, repeat=4)


def test_buffer_replaced():
    def make():
        class M(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("mean", torch.zeros(3))

            def forward(self, x):
                self.mean = self.mean * 0.9 + x * 0.1
                return x - self.mean

        return M()

    check(None, (X,), breaks=0, make=make, repeat=3)


def test_in_place_on_arguments():
    def f(x, items):
        x.add_(1)
        x[0] = 7
        items[0].mul_(2)
        items[1:] = [x]
        return x.view(-1)

    check(f, (X, [X.clone(), X.clone()]), graphs=1)


def test_returned_argument_is_the_argument():
    def f(x, items):
        return x, items, items[0]

    compiled = weft.compile(f, backend="eager")
    x, items = X.clone(), [X]
    a, b, c = compiled(x, items)
    assert a is x and b is items and c is X


def test_aliases_inside_results():
    def f(x):
        inner = [x + 1]
        d = {"a": inner, "b": inner}
        t = (inner, d)
        inner.append(t)
        return t

    out = weft.compile(f, backend="eager")(X)
    inner, d = out
    assert d["a"] is inner and d["b"] is inner and inner[1] is out


def test_containers_of_all_kinds():
    def f(x, li, d, s, od, dd, dq):
        li.insert(0, 5)
        li.sort()
        d["new"] = x + 1
        d.pop("old")
        d["old"] = 3
        s.add(4)
        od.move_to_end("a")
        dd["k"].append(1)
        dq.appendleft(0)
        return x + len(li)

    check(f, (X, [3, 1], {"old": 1, "z": 2}, {1}, OrderedDict(a=1, b=2),
              defaultdict(list), deque([1])), breaks=None)


def test_closure_and_global():
    def make():
        n = 0

        def f(x):
            nonlocal n
            n += 1
            return x + n

        return f

    check(None, (X,), breaks=0, make=make, repeat=3)


GLOBAL = 0


def test_global_variable():
    global GLOBAL

    def f(x):
        global GLOBAL
        GLOBAL = GLOBAL + 1
        return x * 2

    GLOBAL = 0
    compiled = weft.compile(f, backend="eager")
    for n in range(3):
        compiled(X)
        assert GLOBAL == n + 1


@dataclasses.dataclass
class Point:
    x: torch.Tensor
    y: int = 0
    tags: list = dataclasses.field(default_factory=list)


def test_dataclasses():
    def f(p, x):
        q = Point(x + 1, p.y + 1)
        q.tags.append("q")
        p.y = 9
        return dataclasses.replace(q, y=5), q, p

    check(f, (Point(X, 2), X), breaks=None)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


def test_slots():
    def f(x):
        made = Slotted(x + 1)
        made.b = made.a * 2
        return made.a + made.b

    check(f, (X,), graphs=1)


def test_slots_of_an_argument():
    def f(s, x):
        s.b = s.a + x
        return s.b

    s = Slotted(X)
    compiled = weft.compile(f, backend="eager")
    assert torch.equal(compiled(s, X), X + X) and torch.equal(s.b, X + X)


def test_exception_keeps_earlier_effects():
    def f(items, x):
        items.append(x + 1)
        if len(items) > 1:
            raise ValueError("too many")
        return x

    check(f, ([], X), ([1], X), breaks=None)


def test_restored_attribute():
    class A:
        mode = "a"

    def f(a, x):
        old = a.flag
        a.flag = True
        try:
            return x + int(a.flag)
        finally:
            a.flag = old

    a = A()
    a.flag = False
    compiled = weft.compile(f, backend="eager")
    assert torch.equal(compiled(a, X), X + 1) and a.flag is False
    assert torch.equal(compiled(a, X), X + 1) and a.flag is False


VARIABLE = contextvars.ContextVar("VARIABLE", default=1)


def test_context_variable():
    def f(x):
        token = VARIABLE.set(5)
        y = x * VARIABLE.get()
        VARIABLE.reset(token)
        VARIABLE.set(VARIABLE.get() + 1)
        return y

    compiled = weft.compile(f, backend="eager")

    def run():
        a = compiled(X)
        return a, VARIABLE.get()

    for n in range(2):
        context = contextvars.copy_context()
        out, left = context.run(run)
        assert torch.equal(out, X * 5) and left == 2, n


def test_deleted_attribute_and_key():
    def f(o, d, x):
        del o.a
        del d["k"]
        return x

    class O:
        pass

    o = O()
    o.a = 1
    d = {"k": 1, "l": 2}
    weft.compile(f, backend="eager")(o, d, X)
    assert not hasattr(o, "a") and d == {"l": 2}


def test_hooks_run_and_record():
    def make():
        layer = nn.Linear(3, 3)
        with torch.no_grad():
            layer.weight.fill_(0.5)
            layer.bias.fill_(0.1)
        seen = []
        layer.register_forward_hook(lambda m, args, out: seen.append(out) or out * 2)
        layer.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
        return lambda x: (layer(x), len(seen))

    check(None, (X,), breaks=0, make=make, repeat=3)


def test_module_made_inside():
    def f(x):
        layer = nn.ReLU()
        block = nn.Sequential(layer, nn.Identity())
        return block(x)

    check(f, (X,), breaks=None)


def test_train_and_eval_inside():
    def make():
        model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
        for p in model.parameters():
            nn.init.constant_(p, 0.3)

        def f(x):
            model.eval()
            y = model(x)
            model.train()
            return y, model.training

        return f

    check(None, (X,), breaks=0, make=make)


def test_lazy_module():
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.LazyLinear(3), nn.ReLU())

    torch.manual_seed(0)
    check(None, (torch.ones(2, 5),), breaks=0, make=make, repeat=3)


def test_what_is_only_written_is_not_guarded(fresh):
    class Memory:
        last = None

    def f(o, d, x):
        o.last = d["last"] = x * 2
        d["gone"] = 1
        del d["gone"]
        return x + 1

    compiled = weft.compile(f, backend="eager")
    o = Memory()
    for d in ({"last": 0, "gone": 5}, {"last": "a", "first": 1}, {"gone": X}, {"last": [X]}):
        expected = {k: X * 2 if k == "last" else v for k, v in d.items() if k != "gone"}
        compiled(o, d, X)
        assert o.last is d["last"] and torch.equal(o.last, X * 2)
        assert list(d) == [*expected, *(["last"] if "last" not in expected else [])]
    assert weft.stats()["recompiles"] == 0


def test_a_key_restored_to_what_it_was_at_the_first_call():
    def f(d, x):
        d["x"] = x
        return x + 1

    compiled = weft.compile(f, backend="eager")
    d = {"x": X}
    compiled(d, X)
    d = {"x": None}
    compiled(d, X)
    assert d["x"] is X


def test_inference_mode_whose_tensors_stay_inside_is_part_of_the_graph():
    linear = nn.Linear(3, 3)

    @torch.inference_mode()
    def features(x):
        return linear(x).relu()

    def f(x):
        inside = features(x)
        return linear(x) + inside, torch.is_inference_mode_enabled()

    check(f, (torch.ones(2, 3),), graphs=1, breaks=0)


def test_a_graph_in_inference_mode_as_a_whole():
    linear = nn.Linear(3, 3)
    kept = torch.zeros(4, 3)

    @torch.inference_mode()
    def f(x, at):
        kept[at : at + 2] = linear(x)
        with torch.inference_mode():
            return kept[:at] + 1, kept.sum(0), linear.weight.t(), x

    def later(x):
        out = f(x, 2)
        return out[0].is_inference(), out[1], out[2].requires_grad, torch.is_grad_enabled()

    def mixed(x):
        before = linear(x)
        return before, f(x, 1)[1], torch.is_inference_mode_enabled()

    check(f, (torch.ones(2, 3), 1), graphs=1, breaks=0)
    check(later, (torch.ones(2, 3),), graphs=1, breaks=0)
    check(mixed, (torch.ones(2, 3),), breaks=None)
    assert weft.compile(f, fullgraph=True)(torch.ones(2, 3), 1)[0].is_inference()


def test_tensors_made_in_inference_mode_are_inference_tensors_outside():
    linear = nn.Linear(3, 3)

    def f(x):
        with torch.inference_mode():
            inside = linear(x)
            print(inside.shape)
        return inside, inside.is_inference()

    compiled = check(f, (torch.ones(2, 3),), breaks=None)
    assert compiled(torch.ones(2, 3))[0].is_inference()
    assert not torch.is_inference_mode_enabled()


def test_side_effects_of_cached_methods_happen_once_for_each_key():
    class Tables:
        made: list[int]

        def __init__(self):
            self.made = []

        @functools.lru_cache
        def get(self, n):
            self.made.append(n)
            return n * 2

        @functools.lru_cache
        def shown(self, n):
            print("made", n)
            return n

    def make():
        tables = Tables()

        def f(x):
            return x * tables.get(3) + tables.get(3) + tables.shown(1), list(tables.made)

        return f

    check(None, (X,), (X,), make=make, breaks=3)


def test_a_batch_norm_whose_result_is_unused_updates_its_statistics() -> None:
    def make():
        norm = torch.nn.BatchNorm1d(4)

        def f(x):
            norm(x)
            norm.eval()(x)
            norm.train()
            return norm.running_mean * 2, norm.running_var.clone()

        return f

    check(make(), (torch.randn(5, 4),), graphs=1, make=make)


def test_hooks_of_modules_for_the_time_of_a_call() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU())

    def f(x):
        found = {}
        handles = [layer.register_forward_hook(
            lambda _, args, out, name=name: found.__setitem__(name, out.sum()), always_call=True)
            for name, layer in net.named_children()]
        with net.register_forward_pre_hook(lambda _, args: (args[0] * 2,)):
            y = net(x)
        for handle in handles:
            handle.remove()
        return y, found, net(x), len(net[0]._forward_hooks)

    check(f, (torch.randn(2, 3),), graphs=1)


def test_hooks_of_modules_that_stay_have_numbers_of_their_own() -> None:
    def make():
        layer, handles = nn.Linear(3, 3), []
        with torch.no_grad():
            layer.weight.fill_(1.0), layer.bias.fill_(0.5)

        def f(x, stay):
            handles.append(layer.register_forward_hook(lambda _, args, out: out + len(handles)))
            if not stay:
                handles.pop(0).remove()
            same = {handle.id for handle in handles} == set(layer._forward_hooks)
            return layer(x), len(layer._forward_hooks), same

        return f

    check(make(), *[(X, stay) for stay in (True, True, False, True)], make=make, breaks=None)


def test_cached_functions_answer_from_their_cache():
    scale = [2.0]

    @functools.lru_cache
    def chosen():
        return scale[0]

    @functools.cache
    def positions(n):
        return torch.arange(n) * scale[0]

    def f(x, n):
        return x * chosen() + positions(n), positions(n) is positions(n)

    check(f, (X, 3), (X, 3), breaks=0)
    compiled = weft.compile(f, backend="eager")
    for scale[0] in (3.0, 4.0):
        for n in (3, 1):
            chosen.cache_clear()
            positions.cache_clear()
            for _ in range(2):
                expected, actual = f(X, n), compiled(X, n)
                assert torch.equal(expected[0], actual[0]) and actual[1]


def test_a_cached_function_made_inside_calls_its_function_once_for_each_key():
    def f(x, n):
        calls = []

        @functools.lru_cache(maxsize=16)
        def power(k):
            calls.append(k)
            return 1 if k == 0 else 2 * power(k - 1)

        y = x * power(n) + power(n)
        return y, calls, power.cache_info(), power.__name__

    check(f, (X, 3), (X, 3), (X, 5), breaks=0)
