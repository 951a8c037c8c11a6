"""Constants, local variables, cells, globals, attributes and imports."""

from __future__ import annotations

import builtins
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from weft.capture.bytecode.continuation import is_continuation
from weft.capture.bytecode.tables import TABLE
from weft.capture.core.base import NULL, LazyValue, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.cell import CellValue
from weft.capture.core.constant import ConstantValue, constant, evaluate
from weft.capture.core.frame import Frame, Instruction, opcode
from weft.capture.core.lifetimes import is_watched
from weft.capture.library.exceptions.exceptions import read_attribute

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_SIMPLE = (int, float, str, bool, bytes, complex, type(None), type(Ellipsis))
_NO_VALUE = "cannot access local variable '{}' where it is not associated with a value"
_NO_FREE_VALUE = (
    "cannot access free variable '{}' where it is not associated with a value in enclosing scope"
)


# -- constants ------------------------------------------------------------------------------------


def code_constant(tx: Interpreter, value: object) -> SymbolicValue:
    """The value of an item of `co_consts`."""
    if type(value) in _SIMPLE or isinstance(value, type(load_const.__code__)):
        return ConstantValue(value)
    return tx.wrap_new(value)


@opcode("LOAD_CONST")
def load_const(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(code_constant(tx, ins.argval))


@opcode("RETURN_CONST")
def return_const(tx: Interpreter, frame: Frame, ins: Instruction) -> SymbolicValue:
    return code_constant(tx, ins.argval)


# -- local variables ------------------------------------------------------------------------------


def read_local(tx: Interpreter, frame: Frame, name: str) -> SymbolicValue:
    """The value in a local slot, read; raises Python's error if it is unbound."""
    value = frame.locals.get(name)
    if name in frame.cells and (value is None or name not in frame.code.co_varnames):
        return frame.cells[name]  # 3.13 loads the cells of a closure like this; class bodies too
    if value is None:
        raise tx.error(UnboundLocalError, _NO_VALUE.format(name))
    if value.__class__ is LazyValue:
        value = frame.locals[name] = tx.force(value)
    return value


def write_local(frame: Frame, name: str, value: SymbolicValue) -> None:
    """Store in a local slot.

    If the slot is shared with a cell variable, the value may be its cell or NULL, which an inlined
    comprehension (3.12) or a continuation had put on the stack.
    """
    if name in frame.code.co_cellvars:
        frame.cells.pop(name, None)
        if isinstance(value, CellValue):
            frame.locals.pop(name, None)
            frame.cells[name] = value
            return
    if value is NULL:
        frame.locals.pop(name, None)
    else:
        frame.locals[name] = value


@opcode("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(read_local(tx, frame, ins.argval))


@opcode("STORE_FAST")
def store_fast(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if frame.caller is None:
        _let_go(frame, ins.argval)
    write_local(frame, ins.argval, frame.stack.pop())


@opcode("DELETE_FAST")
def delete_fast(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if ins.argval not in frame.locals:
        raise tx.error(UnboundLocalError, _NO_VALUE.format(ins.argval))
    if frame.caller is None:
        tx.lifetimes.deleted += _let_go(frame, ins.argval)
    del frame.locals[ins.argval]


def _let_go(frame: Frame, name: str) -> list[object]:
    """Break if freeing what the root frame's variable held has an effect; return that object."""
    value = frame.locals.get(name)
    if value is None or value.source is None or not is_continuation(frame.code):
        return []
    others = [held for other, held in frame.locals.items() if other != name]
    if is_watched(value.outside_object()) and not any(
            held is value for held in (*others, *frame.stack)):
        raise graph_break("watched-object", f"{value!r} is let go, which {name} was")
    return [value.outside_object()]


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    name = ins.argval
    saved: SymbolicValue | None = frame.locals.pop(name, None)
    if saved is None and name in frame.code.co_cellvars:
        saved = frame.cells.pop(name, None)
    if saved.__class__ is LazyValue:
        saved = tx.force(saved)
    frame.stack.append(NULL if saved is None else saved)


@opcode("LOAD_FAST_LOAD_FAST")
def load_fast_load_fast(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    for name in ins.argval:
        frame.stack.append(read_local(tx, frame, name))


@opcode("STORE_FAST_LOAD_FAST")
def store_fast_load_fast(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    stored, loaded = ins.argval
    write_local(frame, stored, frame.stack.pop())
    frame.stack.append(read_local(tx, frame, loaded))


@opcode("STORE_FAST_STORE_FAST")
def store_fast_store_fast(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    for name in ins.argval:
        write_local(frame, name, frame.stack.pop())


# -- cells ----------------------------------------------------------------------------------------


@opcode("MAKE_CELL")
def make_cell(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.cells[ins.argval] = CellValue(frame.locals.pop(ins.argval, None))


@opcode("COPY_FREE_VARS")
def copy_free_vars(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Nothing to do: the frame has its free variables from the start."""


@opcode("LOAD_CLOSURE")
def load_closure(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(frame.cells[ins.argval])


def _unbound_cell(tx: Interpreter, frame: Frame, name: str) -> ObservedException:
    if name in frame.code.co_freevars:
        return tx.error(NameError, _NO_FREE_VALUE.format(name), name=name)
    return tx.error(UnboundLocalError, _NO_VALUE.format(name))


@opcode("LOAD_DEREF")
def load_deref(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value = frame.cells[ins.argval].read(tx)
    if value is None:
        raise _unbound_cell(tx, frame, ins.argval)
    frame.stack.append(value)


@opcode("STORE_DEREF")
def store_deref(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.cells[ins.argval].write(tx, frame.stack.pop())


@opcode("DELETE_DEREF")
def delete_deref(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    cell = frame.cells[ins.argval]
    if cell.contents is None:
        raise _unbound_cell(tx, frame, ins.argval)
    cell.write(tx, None)


# -- globals --------------------------------------------------------------------------------------


def read_global(tx: Interpreter, frame: Frame, name: str) -> SymbolicValue:
    """A module's variable, else a builtin."""
    value: SymbolicValue | None = frame.globals.lookup(tx, name)
    if value is None:
        value = tx.globals_of(builtins.__dict__).lookup(tx, name)
    if value is None:
        raise tx.error(NameError, f"name '{name}' is not defined", name=name)
    return value


def push_with_null(frame: Frame, value: SymbolicValue) -> None:
    """A callable with the NULL that a CALL expects beside it."""
    pair = (value, NULL) if TABLE.null_above_callable else (NULL, value)
    frame.stack.extend(pair)


@opcode("LOAD_GLOBAL")
def load_global(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value = read_global(tx, frame, ins.argval)
    if ins.flags & 1:
        push_with_null(frame, value)
    else:
        frame.stack.append(value)


@opcode("STORE_GLOBAL")
def store_global(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.globals.setitem(tx, constant(ins.argval), frame.stack.pop())


@opcode("DELETE_GLOBAL")
def delete_global(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    name = ins.argval
    if frame.globals.lookup(tx, name) is None:
        raise tx.error(NameError, f"name '{name}' is not defined", name=name)
    frame.globals.delitem(tx, constant(name))


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(tx.wrap_fixed(AssertionError, "AssertionError"))


@opcode("LOAD_BUILD_CLASS")
def load_build_class(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(tx.wrap_fixed(builtins.__build_class__, "__build_class__"))


# -- attributes -----------------------------------------------------------------------------------


@opcode("LOAD_ATTR")
def load_attr(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value = read_attribute(tx, frame.stack.pop(), ins.argval)
    if ins.flags & 1:
        push_with_null(frame, value)
    else:
        frame.stack.append(value)


@opcode("LOAD_METHOD")
def load_method(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    push_with_null(frame, read_attribute(tx, frame.stack.pop(), ins.argval))


@opcode("STORE_ATTR")
def store_attr(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value, owner = frame.popn(2)
    owner.setattr(tx, ins.argval, value)


@opcode("DELETE_ATTR")
def delete_attr(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.stack.pop().delattr(tx, ins.argval)


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """`super().name` or `super(cls, self).name`; the global `super` may be another object."""
    function, cls, owner = frame.popn(3)
    explicit = function.real() is super or ins.flags & 2
    proxy = tx.call(function, [cls, owner] if explicit else [])
    value = proxy.getattr(tx, ins.argval)
    if ins.flags & 1:
        push_with_null(frame, value)
    else:
        frame.stack.append(value)


# -- imports --------------------------------------------------------------------------------------


def _is_of_torch(module: str) -> bool:
    """Whether the module is part of PyTorch, which imports parts of itself at their first use
    (rules of forward-mode derivatives at the first hessian): programs do not notice when."""
    return module.partition(".")[0] == "torch"


def _check_loaded(module: str, names: tuple[str, ...]) -> None:
    """Break the graph if the import would run a module, or code that stands for one."""
    if module not in sys.modules:
        raise graph_break("unknown-operation", f"the first import of {module}")
    if names and not issubclass(type(sys.modules[module]), ModuleType):
        raise graph_break("unknown-operation", f"an import from {module}, which is no module")
    for name in names:
        if not hasattr(sys.modules[module], name) and f"{module}.{name}" not in sys.modules:
            raise graph_break("unknown-operation", f"the first import of {module}.{name}")


@opcode("IMPORT_NAME")
def import_name(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """An import of a loaded module has no effect; Python does one that runs a module."""
    level, names = (value.constant() for value in frame.popn(2))
    package = frame.globals.original
    target = ins.argval
    if level:
        parent = package.get("__package__") or package["__name__"].rpartition(".")[0]
        base = parent.rsplit(".", level - 1)[0] if level > 1 else parent
        target = f"{base}.{target}" if target else base
    if not _is_of_torch(target):
        if tx.effects.changed_any(sys.modules):
            raise graph_break("unknown-operation", "an import after a change of sys.modules")
        _check_loaded(target, names or ())
        loaded = tx.tree.object(sys.modules, "sys.modules").dict_item(target)
        tx.guards.add(loaded, "is", sys.modules[target])
    module = evaluate(tx, lambda: __import__(ins.argval, package, None, names, level))
    frame.stack.append(tx.wrap_fixed(module, target))


@opcode("IMPORT_FROM")
def import_from(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    owner = frame.stack[-1]
    module = owner.real()
    if issubclass(type(module), ModuleType) and not hasattr(module, ins.argval):
        name = f"{module.__name__}.{ins.argval}"
        if name not in sys.modules:
            raise tx.error(ImportError, f"cannot import name {ins.argval!r} from {module!r}")
        frame.stack.append(tx.wrap_fixed(sys.modules[name], name))
        return
    frame.stack.append(owner.getattr(tx, ins.argval))
