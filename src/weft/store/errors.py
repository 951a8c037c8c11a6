"""Why an entry is not stored, and why a stored one is not used.

Place in the pipeline: the bottom of `store/`. Both end in an ordinary capture, never in an error of
the program.
"""

from __future__ import annotations

from typing import final


@final
class NotStorable(Exception):
    """Something that has no form as data; `str(error)` is the reason that the user reads."""


@final
class DoesNotFit(Exception):
    """A stored entry of another state of the program."""
