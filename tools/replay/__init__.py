"""Process replay: what weft makes of some 120 programs at a commit, as text, and what differs.

Place in the pipeline: for developers; a commit that says it changes no behaviour must replay
identically (docs/contributing.md)::

    python -m tools.replay record /tmp/before          # programs.py, recording.py
    ...                                                # the change
    python -m tools.replay record /tmp/after
    python -m tools.replay compare /tmp/before /tmp/after      # comparison.py

    python -m tools.replay against HEAD~1      # all of it; --short takes every fifth program
"""
