"""Compiled entries that outlive the process (docs/architecture/store.md).

Place in the pipeline: between a miss and a capture. `entries.py` is the interface of the compiler;
`record.py` is an entry as one value, `records.py` writes and reads it; `guards.py` writes guard
trees and finds their objects in another process; `lookup.py` has the keys and the files.
"""
