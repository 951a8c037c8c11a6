"""Plain Python equivalents of C functions, evaluated like the user's own code.

Place in the pipeline: beside `handlers/`, which say which function is replaced by which polyfill.
"""
