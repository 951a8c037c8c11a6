"""Strings that contain numbers that change, and how they are formatted.

Captured: f-strings, `str.format`, `%` and `join` field by field, so that numbers in a text stay
symbolic (`symbolic_texts`, `text_formats`). Formats with an effect of their own break the graph.
"""
