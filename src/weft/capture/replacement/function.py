"""The text of a replacement as a function of the user's file.

Place in the pipeline: the last step of `emitter.py`, and of loading a stored entry. The function
has the name, the file, the lines and the globals of the frame that it replaces::

    parts = ReplacementParts("def make(graph, c0):\\n    def replacement(v): ...", {"c0": f})
    replacement_function(parts, graph, code, globals)([x, w])
"""

from __future__ import annotations

import builtins
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any, Final, final

from weft.capture.core.tracebacks import Place, stand_for
from weft.capture.replacement.user_lines import relocate_code
from weft.diagnostics.regions import name_graph
from weft.graph_call import GraphCall

_WORD: Final = re.compile(r"\b[A-Za-z]\w*")
_BUILTINS: Final = {"math": math} | {
    name: value for name, value in vars(builtins).items()
    if not (name.startswith("_") or iskeyword(name))}
"""Names that the text of a replacement may use."""


@final
@dataclass(frozen=True, slots=True)
class ReplacementParts:
    """What a replacement function is made of, beside the graph's callable."""

    text: str
    constants: Mapping[str, Any]
    """The objects that the text refers to, by name."""
    places: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    """For a line, the frames of the program that tracebacks show instead of it."""
    region: str = ""
    """How profiles name the graph's calls."""


def replacement_function(
    parts: ReplacementParts, graph: GraphCall | None, user: types.CodeType, globals: dict[str, Any]
) -> Callable[[list[Any]], Any]:
    """Compile the text into a function that stands in for the user's code.

    Builtins that it uses are passed in, because the user's globals may shadow them.
    """
    text = parts.text
    used = {name: _BUILTINS[name] for name in set(_WORD.findall(text)) & _BUILTINS.keys()}
    head, rest = text.split("\n", 1)
    namespace: dict[str, Any] = {}
    exec(f"{head[:-2]}, {', '.join(used)}):\n{rest}", namespace)
    call = None if graph is None else graph.call
    template = namespace["make"](call, *parts.constants.values(), *used.values())
    places = {number: parts.places[line.strip()]
              for number, line in enumerate(text.splitlines(), 1)
              if line.strip() in parts.places}
    lines = {number: of_line[0].line for number, of_line in places.items() if of_line}
    code = relocate_code(template.__code__, user, user.co_firstlineno, lines)
    stand_for(code, {offset: places[line] for start, end, line in template.__code__.co_lines()
                     if line in places for offset in range(start, end, 2)})
    function: Any = types.FunctionType(
        code, globals, template.__name__, None, template.__closure__)
    if graph is not None:
        name_graph(function, "graph", parts.region)
    function.__weft_constants__ = parts.constants  # also those that the text does not use
    return function  # type: ignore[no-any-return]
