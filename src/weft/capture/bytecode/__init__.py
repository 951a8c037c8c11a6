"""CPython byte code as data: read it, change it, write it again.

`Bytecode` and `Instruction` (`instruction.py`) are the model; `disassemble` and `assemble` convert
from and to code objects; `liveness` says which locals are still needed; `version.py` has the
differences between Python versions. Nothing here needs torch::

    from weft.capture.bytecode import assemble, disassemble

    body = disassemble(f.__code__)
    assert assemble(body.instructions, body.exceptions, f.__code__) == f.__code__
"""

from __future__ import annotations

from .assemble import assemble
from .disassemble import disassemble, slot_names
from .instruction import Bytecode, ExceptionEntry, Instruction, Positions
from .percode import PerCode
from .tables import TABLE

__all__ = [
    "TABLE", "Bytecode", "ExceptionEntry", "Instruction", "PerCode", "Positions", "assemble",
    "disassemble", "slot_names",
]
