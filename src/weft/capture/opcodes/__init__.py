"""One function for each byte code instruction, registered under its name for every Python version.

Place in the pipeline: called by the interpreter's loop. Each file is a family: `variables`,
`stack`, `operators`, `containers`, `control`, `calls`, `functions`, `exceptions`, `generators`,
`matching`, `class_bodies`. A handler takes the interpreter, the frame and the instruction, and
works on the frame's stack; only those that leave the frame return a value. An opcode name means the
same in all versions; where it does not, the handler asks `TABLE` (`bytecode/version.py`)::

    @opcode("GET_ITER")
    def get_iter(tx, frame, ins):
        frame.push(frame.pop().iter(tx))

Instructions without a handler (coroutines) break the graph.
"""

from weft.capture.opcodes import (  # noqa: F401  (registers the handlers)
    calls,
    class_bodies,
    containers,
    control,
    exceptions,
    functions,
    generators,
    matching,
    operators,
    stack,
    variables,
)
