"""CompiledFunction: which version runs, what a miss does, and that it passes for a function."""

import gc
import inspect
import threading
import weakref
from types import CodeType
from typing import Any

from tests.frame.extension import frame


def guard_eq(values: list[Any], slots: bool = True) -> Any:
    """A tree that wants just these values and collects them."""
    nodes = tuple(
        (("local", i), (("eq", value, i),), i if slots else -1, ())
        for i, value in enumerate(values)
    )
    return frame.GuardTree(nodes, (), len(values) if slots else 0)


class Compiler:
    """An on_miss that compiles to `answer(values)` and remembers what it was asked."""

    def __init__(self, answer: Any, **options: Any) -> None:
        self.asked: list[Any] = []
        self.answer = answer
        self.options = options

    def __call__(self, compiled: Any, fn: Any, code: Any, values: Any, cells: Any, space: Any,
                 ) -> Any:
        self.asked.append((fn.__name__, *values))
        return frame.Entry(guard_eq(values), self.answer, space, **self.options)


def raises(kind: type[BaseException], call: Any, *args: Any) -> str:
    try:
        call(*args)
    except kind as error:
        return str(error)
    raise AssertionError(f"{kind.__name__} not raised")


def test_compiles_once_per_version_and_moves_hits_to_the_front() -> None:
    def f(x: int, y: int = 2) -> int:
        return x + y

    compiler = Compiler(lambda v: ("compiled", *v))
    compiled = frame.CompiledFunction(f, compiler)
    assert compiled(1) == compiled(x=1) == compiled(1, 2) == ("compiled", 1, 2)
    assert compiled(3) == ("compiled", 3, 2)
    assert compiler.asked == [("f", 1, 2), ("f", 3, 2)]
    first, second = frame.entries(f.__code__)
    assert (first.hits, second.hits) == (0, 2)
    compiled(1)
    assert compiled.used_entries == [second, first]


def test_entries_for_one_size_are_tried_before_those_for_any() -> None:
    """An epoch's last, smaller batch left the slower kernels in front for all that followed."""
    def f(x: int) -> int:
        return x

    def entry(x: int | None, **options: bool) -> frame.Entry:
        guards = guard_eq((x,)) if x is not None else frame.GuardTree((), (), 0)
        return frame.Entry(guards, lambda v: x, None, **options)

    one, other = entry(1), entry(2)
    some, any_size = entry(None, any_size=True), entry(None, any_size=True)
    for made in (one, some, other, any_size):
        frame.add_entry(f.__code__, made)
    assert frame.entries(f.__code__) == [other, one, any_size, some]
    compiled = frame.CompiledFunction(f, lambda *args: None)
    assert [compiled(x) for x in (1, 2, 7, 2, 1)] == [1, 2, None, 2, 1]
    assert compiled.used_entries == [one, other, any_size]
    assert [e.hits for e in (one, other, any_size, some)] == [2, 2, 1, 0]


def test_runs_eagerly_when_there_is_nothing_to_use() -> None:
    def f(x: int) -> int:
        return x + 1

    asked = []
    compiled = frame.CompiledFunction(f, lambda *args: asked.append(args))
    assert (compiled(1), compiled(x=2)) == (2, 3)
    assert len(asked) == 2
    assert not frame.is_hooked() and not frame.is_installed()
    frame.skip(f.__code__)
    assert compiled(5) == 6 and len(asked) == 2
    assert frame.is_settled(f.__code__)


def test_entry_whose_guards_do_not_hold_runs_eagerly() -> None:
    def f(x: int) -> int:
        return x + 1

    compiled = frame.CompiledFunction(f, lambda *args: frame.Entry(guard_eq([99]), print))
    assert compiled(1) == 2


def test_freeze_stops_compiling() -> None:
    def f(x: int) -> Any:
        return x

    compiler = Compiler(lambda v: "compiled")
    compiled = frame.CompiledFunction(f, compiler)
    assert compiled(1) == "compiled"
    frame.freeze(f.__code__)
    assert (compiled(1), compiled(2)) == ("compiled", 2)
    frame.clear(f.__code__)
    assert (compiled(2), compiled(1)) == ("compiled", "compiled")
    assert compiled(3) == "compiled"
    assert frame.entry_count() >= 3
    frame.clear()
    assert frame.entry_count() == 0 and frame.entries(f.__code__) == []


def test_exceptions_come_through() -> None:
    def f(x: int) -> int:
        return x

    def fails(v: Any) -> Any:
        raise LookupError("from the replacement")

    assert raises(LookupError, frame.CompiledFunction(f, Compiler(fails)), 1)

    def g(x: int) -> int:
        return x

    def miss_fails(*args: Any) -> Any:
        raise OSError("from the compiler")

    assert raises(OSError, frame.CompiledFunction(g, miss_fails), 1) == "from the compiler"
    assert raises(TypeError, frame.CompiledFunction(g, lambda *a: 3), 1)
    assert "missing 1 required" in raises(TypeError, frame.CompiledFunction(g, miss_fails))
    assert not frame.is_installed()


def test_entries_are_for_their_globals() -> None:
    code = (lambda x: x).__code__
    entry = frame.Entry(guard_eq([1]), lambda v: "compiled", {})
    frame.add_entry(code, entry)
    function = type(test_bound_as_a_method)(code, globals())
    assert frame.CompiledFunction(function, lambda *args: None)(1) == 1


def test_bound_as_a_method() -> None:
    class Model:
        def __init__(self) -> None:
            self.scale = 3

        def forward(self, x: int) -> int:
            return self.scale * x

    def on_miss(compiled: Any, fn: Any, code: Any, values: Any, cells: Any, space: Any) -> Any:
        me = (("local", 0), (("type_is", Model, 0),), 0, ())
        tree = frame.GuardTree((me, (("local", 1), (), 1, ())), (), 2)
        return frame.Entry(tree, lambda v: ("compiled", v[0].scale, v[1]), space)

    Model.forward = frame.CompiledFunction(Model.forward, on_miss)  # type: ignore[method-assign]
    model = Model()
    assert model.forward(2) == ("compiled", 3, 2)
    method = model.forward
    assert method(4) == Model.forward(model, 4) == ("compiled", 3, 4)


def test_passes_for_the_function() -> None:
    def f(x: int, *, y: int = 1) -> int:
        """Doc of f."""
        return x

    f.mark = "set on f"  # type: ignore[attr-defined]
    compiled = frame.CompiledFunction(f, lambda *args: None)
    assert compiled.__wrapped__ is f and compiled.__code__ is f.__code__
    assert (compiled.__name__, compiled.__doc__) == ("f", "Doc of f.")
    assert compiled.__module__ == f.__module__ and compiled.__qualname__ == f.__qualname__
    assert compiled.mark == "set on f"
    assert inspect.signature(compiled) == inspect.signature(f)
    compiled.mark = "own"
    assert compiled.mark == "own" and f.mark == "set on f"  # type: ignore[attr-defined]
    assert frame.CompiledFunction.__doc__.startswith("Calls `fn`")
    assert weakref.ref(compiled)() is compiled


def private(function: Any) -> Any:
    """The function with a code object of its own."""
    code: CodeType = function.__code__.replace()
    return type(function)(code, function.__globals__, closure=function.__closure__)


def test_what_entries_hold_dies_with_the_compiled_function() -> None:
    class Held:
        pass

    def f(x: Any) -> Any:
        return x

    held = Held()
    watch = weakref.ref(held)
    tree = frame.GuardTree(((("local", 0), (("is", held, 0),), 0, ()),), (), 1)
    entries = [frame.Entry(tree, lambda v: v[0])]
    compiled = frame.CompiledFunction(private(f), lambda *args: entries.pop())
    assert compiled(held) is held
    del tree
    held.compiled = compiled  # type: ignore[attr-defined]  # a cycle through the entries
    del compiled, held
    gc.collect()
    assert watch() is None


def test_entries_die_with_their_code() -> None:
    class Held:
        pass

    held = Held()
    watch = weakref.ref(held)
    function = private(lambda: None)
    tree = frame.GuardTree(((("object", held), (), -1, ()),), (), 0)
    frame.add_entry(function.__code__, frame.Entry(tree, print))
    del tree, held, function
    assert watch() is None


def test_two_compiled_functions_share_the_entries_of_one_code() -> None:
    def f(x: int) -> int:
        return x

    compiler = Compiler(lambda v: "compiled")
    one, two = frame.CompiledFunction(f, compiler), frame.CompiledFunction(f, compiler)
    assert one(1) == two(1) == "compiled"
    assert len(compiler.asked) == 1
    del one
    assert two(1) == "compiled" and len(compiler.asked) == 1


def test_code_replaced_under_way() -> None:
    def f(x: int) -> Any:
        return x

    compiler = Compiler(lambda v: "compiled")
    compiled = frame.CompiledFunction(f, compiler)
    assert compiled(1) == "compiled"
    f.__code__ = f.__code__.replace(co_name="other")
    assert compiled(1) == "compiled"
    assert len(compiler.asked) == 2


def test_guards_may_change_the_entries_while_they_are_searched() -> None:
    def f(x: int) -> Any:
        return x

    def forget(value: Any) -> bool:
        frame.clear(f.__code__)
        return False

    compiled = frame.CompiledFunction(f, lambda *args: None)
    for _ in range(3):
        tree = frame.GuardTree(((("local", 0), (("py", forget, 0),), -1, ()),), (), 0)
        frame.add_entry(f.__code__, frame.Entry(tree, print))
    assert compiled(1) == 1


def test_threads_that_compile_and_call_at_once() -> None:
    def f(x: int) -> Any:
        return x

    compiled = frame.CompiledFunction(f, Compiler(lambda v: ("compiled", v[0])))
    wrong: list[Any] = []

    def work() -> None:
        for i in range(3000):
            if compiled(i % 20) != ("compiled", i % 20):
                wrong.append(i)
            if i % 500 == 0:
                frame.clear(f.__code__)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
