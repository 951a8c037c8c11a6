"""Exceptions that the program makes, raises and catches, with their tracebacks and groups.

Captured: raising, handlers, chaining, notes, `except*`, and exceptions that leave the frame, with
the program's own lines. What observes the interpreter itself, such as frames of a traceback,
breaks the graph (`observed-interpreter`).
"""
