"""`copy.copy` and `copy.deepcopy`.

Captured: copies of values of every family that can be made anew, with `__deepcopy__`, reductions
and the memo (`copy_memo`) as Python has them. Objects of C types without a model break the graph.
"""
