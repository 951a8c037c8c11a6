"""Plain Python equivalents of C functions, interpreted like the user's own code.

Place in the pipeline: beside `handlers/`, whose rules say which function is replaced by which
polyfill.
"""
