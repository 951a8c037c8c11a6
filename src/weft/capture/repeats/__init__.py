"""Calls of a function that repeat an earlier one of the same capture, on other objects.

The layers of a model call one function with other parameters. The first call is interpreted; what
it read is known by its guards, and what it did is in the graph. If the same guards hold for the
next layer, its interpretation would go the same way, so the operators and guards are added again
without it::

    for layer in self.layers:
        x = layer(x)            # interpreted once; for the others, the same nodes and guards

Only calls that do nothing else are repeated: no change of an object or of a mode, no writes, no
draws, no symbolic sizes, no questions about data (`moments.py` compares). `recordings.py` says
whether a call repeats another one, `replay.py` makes its part of the graph, `calls.py` decides.
"""
