"""Fake tensors: operators on metadata alone.

Place in the pipeline: the upper part of `shapes`; capture and aot run operators here. `fake`
(``FakeContext``) and `make_fake` make fakes, `fake_mode` (``MemoFakeMode``) answers operators: by
`data_dependent`, from its `result_memo`, or by `operator_rules`: formulas (`shape_rules`,
`view_rules`, `pooling_rules`), else PyTorch's meta kernels (`without_sympy`, `without_dynamo`,
`meta_corrections`). `float_trials` finds out what C++ does with floats, `wrappers` takes tensors
made of tensors apart.
"""
