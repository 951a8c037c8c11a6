"""The server of Triton compilers that this process has started, if any.

Place in the pipeline: between `triton_build.py` (what is missing in the cache) and the script
`triton_worker.py` (which compiles it).

    future = pool().submit(arguments of triton_worker.compile_text)
    future.result()    # raises ServerGone when it could not be compiled there
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from concurrent.futures import Future
from functools import cache
from itertools import count
from multiprocessing import Pipe
from pathlib import Path
from threading import Lock, Thread
from typing import Final, final

from weft.config import config
from weft.folders import process_folder
from weft.runtime.triton_worker import Compiled

_WORKER: Final = Path(__file__).with_name("triton_worker.py")


class ServerGone(Exception):
    """The server ended or failed: compile in this process, which also shows what is wrong."""


@final
class TritonServer:
    """One server: requests are sent, and a thread passes the answers to their futures."""

    def __init__(self) -> None:
        jobs = config.compile_jobs or os.cpu_count() or 1
        self._connection, theirs = Pipe()
        command = [sys.executable or "python3", str(_WORKER), str(theirs.fileno())]
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        self._connection.send((sys.path, jobs, str(process_folder())))
        self._waiting: dict[int, Future[Compiled]] = {}
        self._numbers = count()
        self._lock = Lock()
        self.gone = False
        self._owner = os.getpid()
        Thread(target=self._listen, name="weft-triton-answers", daemon=True).start()
        atexit.register(self._stop)

    def submit(self, arguments: tuple[object, ...]) -> Future[Compiled]:
        """Compile there; arguments are those of `compile_text`."""
        future: Future[Compiled] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
            try:
                if self.gone:
                    raise OSError
                self._connection.send((number, arguments))
            except OSError:
                del self._waiting[number]
                future.set_exception(ServerGone("the server has ended"))
        return future

    def _listen(self) -> None:
        try:
            while True:
                number, compiled, error = self._connection.recv()
                future = self._waiting.pop(number)
                if compiled is None:
                    future.set_exception(ServerGone(error))
                else:
                    future.set_result(compiled)
        except (EOFError, OSError):
            self._end()

    def _stop(self) -> None:
        """At exit: an ended process does not outlive its folder, and is not warned of."""
        if not self.gone and os.getpid() == self._owner:
            self.process.kill()
            self.process.wait()

    def _end(self) -> None:
        with self._lock:
            self.gone = True
            for future in self._waiting.values():
                future.set_exception(ServerGone("the server ended before its answer"))
            self._waiting.clear()
        self.process.wait()


_starting: Final = Lock()


def pool() -> TritonServer:
    """This process's server, started if there is none.

    Raises OSError if no process can be started.
    """
    with _starting:
        server = _server(os.getpid())
        if server.gone:
            _server.cache_clear()
            server = _server(os.getpid())
    return server


@cache
def _server(process: int) -> TritonServer:
    """A forked child must not use its parent's connection, so each `process` has its own server."""
    return TritonServer()
