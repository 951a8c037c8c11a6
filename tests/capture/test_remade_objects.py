"""Mutable objects of C types that depend on constants: made while capturing, made again where they
escape."""

from __future__ import annotations

import array
import csv
import decimal
import hashlib
import io
import json
import logging
import queue
import struct
import sys
import threading
import zlib
from contextlib import redirect_stdout
from copy import deepcopy
from typing import Any

import pytest
import torch

import weft
from tests.capture.harness import check

X = torch.ones(2)
HEADER = struct.Struct("<If")
Result = tuple[Any, ...]


@weft.disable  # type: ignore[untyped-decorator]
def pause() -> None: ...


def contents(*values: Any) -> Result:
    """What the objects hold, to compare them."""
    return tuple(value.getvalue() if hasattr(value, "getvalue") else value for value in values)


def whole(f: Any, *args: Any) -> None:
    """One graph; results of eager in each of two calls."""
    compiled = weft.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        expected, actual = contents(*f(*args)), contents(*compiled(*args))
        assert len(expected) == len(actual)
        for a, b in zip(expected, actual, strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, (a, b)


class Report:
    def __init__(self) -> None:
        self.text = io.StringIO()
        self.digest = hashlib.md5()

    def line(self, *values: Any) -> None:
        print(*values, file=self.text)
        self.digest.update(repr(values).encode())


def test_report_beside_tensors_is_whole() -> None:
    def f(x: torch.Tensor) -> Result:
        report = Report()
        for step in range(3):
            x = x * 2
            report.line("step", step, tuple(x.shape))
        return x, report.text, report.digest.hexdigest()

    whole(f, X)


def test_text_of_data_is_written_after_the_graph() -> None:
    def f(x: torch.Tensor) -> Result:
        text = io.StringIO()
        text.write(f"sum {x.sum().item():.2f}\n")
        first = text.getvalue()
        text.write("end")
        return x + 1, first + "!", text

    whole(f, X)
    whole(f, X * 3)


def test_writes_to_a_buffer_from_outside_are_left_to_the_replacement() -> None:
    def f(x: torch.Tensor, text: io.StringIO) -> Result:
        text.write("one ")
        print("two", x.shape[0], file=text)
        return x + 1, text.getvalue()

    outcomes = []
    for function in (f, weft.compile(f, backend="eager", fullgraph=True)):
        text = io.StringIO()
        outcomes.append([function(X, text)[1], function(X, text)[1], text.getvalue()])
    assert outcomes[0] == outcomes[1]


def test_object_alive_at_a_break_is_made_again_with_what_it_shares() -> None:
    def f(x: torch.Tensor) -> Result:
        data = bytearray(b"abcd")
        view, text = memoryview(data), io.StringIO("a\nb\n")
        view[1] = 33
        rows = [text, text]
        text.readline()
        y = x + 1
        pause()
        view[0] = 34
        return y, bytes(data), rows[0].read(), rows[0] is rows[1]

    check(f, (X,), breaks=None)


def test_errors_and_what_they_leave_behind() -> None:
    def f(x: torch.Tensor) -> Result:
        data, errors = io.BytesIO(b"abc"), []
        for action in (lambda: data.write("text"), lambda: data.seek(-1),  # type: ignore[arg-type]
                       lambda: bytearray(b"a")[4], lambda: array.array("i", ["a"])):
            try:
                action()
            except (TypeError, ValueError, IndexError) as error:
                errors.append((type(error), str(error)))
        data.seek(0, 2)
        return x * data.write(b"de"), data, errors

    whole(f, X)


def test_tables_arrays_and_packed_numbers() -> None:
    def f(x: torch.Tensor, n: int) -> Result:
        table = io.StringIO()
        writer = csv.DictWriter(table, ["epoch", "loss"])
        writer.writeheader()
        writer.writerow({"epoch": n, "loss": 0.5})
        numbers = array.array("d", [1.0, n])
        numbers.append(4.0)
        more = deepcopy(numbers) + numbers[:1]
        packed = HEADER.pack(n, 0.5) + struct.pack("<H", n)
        squeezed = zlib.compressobj()
        return (x * sum(numbers), table, numbers, more, HEADER.unpack(packed[:8]),
                squeezed.compress(packed) + squeezed.flush(), json.dumps({"n": n, "x": x},
                                                                         default=lambda t: "T"))

    whole(f, X, 3)


def test_redirected_output_is_written_to_the_buffer() -> None:
    def f(x: torch.Tensor) -> Result:
        text = io.StringIO()
        with redirect_stdout(text):
            print("inner", 1)
        return x + 1, text, sys.stdout is text

    whole(f, X)


def test_decimal_context_that_changes_between_calls() -> None:
    def f(x: torch.Tensor, number: decimal.Decimal) -> Result:
        return x + 1, number / 3

    compiled = weft.compile(f, backend="eager")
    for digits in (28, 5, 28):
        with decimal.localcontext() as context:
            context.prec = digits
            assert compiled(X, decimal.Decimal(1))[1] == f(X, decimal.Decimal(1))[1]


class Key:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.name == other.name


def test_key_is_filled_before_it_is_hashed() -> None:
    def f(x: torch.Tensor) -> Result:
        key, other = Key("a"), Key("b")
        return x + 1, key, {key: 1, (other, 2): 3}, other

    check(f, (X,), breaks=0)


def test_writer_follows_a_text_that_was_left_to_the_replacement() -> None:
    def f(x: torch.Tensor) -> Result:
        table = io.StringIO()
        writer = csv.writer(table)
        table.write(f"{x.shape[0]} rows\n")
        writer.writerow([1, 2])
        return x + 1, table.getvalue()

    check(f, (X,), (torch.ones(3),), (torch.ones(4),), breaks=0)


def test_queue_and_locks_made_inside() -> None:
    def f(x: torch.Tensor) -> Result:
        todo: queue.Queue[Any] = queue.Queue()
        todo.put(x)
        todo.put(3)
        with threading.Lock() as held, threading.RLock():
            y = todo.get() * todo.get()
        return y, held, todo.qsize()

    whole(f, X)


def test_comparisons_with_constants_on_the_other_side() -> None:
    def f(x: torch.Tensor) -> Result:
        data, numbers = bytearray(b"b"), array.array("i", [1])
        return (x, b"b" == data, data == b"b", data in [b"b"], b"a" < data, b"b" != data,
                numbers == array.array("i", [1]), numbers == [1], io.StringIO() == "", b"c" + data,
                data.split(b"x"), bytearray().join([data, data]))

    whole(f, X)


def test_functions_that_read_and_write_buffers() -> None:
    def f(x: torch.Tensor, n: int) -> Result:
        data = bytearray(struct.pack("<4sH", b"WEFT", n) + bytes(4))
        struct.pack_into("<I", data, 6, n + 1)
        view = memoryview(data)
        return (x * struct.unpack_from("<H", view, 4)[0], data, view[:4].tobytes(), bytes(view[4:]),
                hashlib.sha1(view).hexdigest(), list(struct.iter_unpack("<5s", data)))

    whole(f, X, 3)


def test_objects_from_outside_are_changed_after_the_graph() -> None:
    def f(x: torch.Tensor, digest: Any, data: io.BytesIO, text: io.StringIO) -> Result:
        digest.update(b"a")
        data.write(b"b")
        try:
            text.write("c")
        except ValueError as error:
            return x, str(error)
        return x * 2, digest.hexdigest() + "!", data.getvalue()

    outcomes = []
    for function in (f, weft.compile(f, backend="eager")):
        digest, data, text = hashlib.sha256(), io.BytesIO(), io.StringIO()
        seen = [function(X, digest, data, text)[1:] for _ in range(2)]
        text.close()
        outcomes.append([*seen, function(X, digest, data, text)[1:], digest.digest()])
    assert outcomes[0] == outcomes[1]


def test_writes_and_log_records_keep_their_order() -> None:
    text = io.StringIO()
    logger = logging.getLogger("tests.of.remade")
    logger.handlers, logger.propagate = [logging.StreamHandler(text)], False

    def f(x: torch.Tensor, fails: bool) -> Result:
        text.write("one ")
        logger.warning("two")
        text.write("three ")
        seen = text.getvalue()
        logger.warning("four")
        if fails:
            raise ValueError(3)
        return x + 1, seen

    outcomes = []
    for function in (f, weft.compile(f, backend="eager")):
        text.seek(0)
        text.truncate()
        seen = [function(X, False)[1] for _ in range(2)]
        for _ in range(2):
            with pytest.raises(ValueError, match="3"):
                function(X, True)
        outcomes.append((seen, text.getvalue()))
    assert outcomes[0] == outcomes[1]
