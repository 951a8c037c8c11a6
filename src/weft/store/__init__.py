"""Compiled entries on disk: objects as data, what they stand for in another process, and the files.

Place in the pipeline: below capture, which finds an entry here before it captures a frame. Nothing
is unpickled: `writer.py` knows a closed set of kinds of objects, `reader.py` makes them again, and
whatever else an entry needs makes it not storable, with a reason::

    writer = Writer()
    data = writer.value((1.5, torch.float32, torch.relu))     # plain lists and texts
    Reader(writer.programs).value(data)                       # the same, in any process

Objects of the program are not stored at all. `identity.py` says what one of them is (the hash of
its byte code, say), and an entry fits a process whose objects are the same.
"""

from __future__ import annotations

from weft.store.errors import DoesNotFit, NotStorable
from weft.store.reader import Reader
from weft.store.writer import Writer

__all__ = ["DoesNotFit", "NotStorable", "Reader", "Writer"]
