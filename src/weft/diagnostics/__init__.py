"""What a person reads about a compilation: events, statistics, logs, explanations, reports.

Place in the pipeline: low; every stage records events, and nothing here imports a stage. `events`
is the only source of the views `statistics`, `logs`, `trace_files` and `explanation` (with
`artifacts`, `graph_text`, `changes`, `rendering`)::

    from weft.diagnostics import events
    with events.stage("schedule"):
        events.record("kernel", name="fused_relu_0", lines=["model.py:12"])
        events.count("kernels")

Failures inside weft end in `failures`. `checks` compares compiled graphs with PyTorch (`numerics`)
and reduces failing ones (`minimize`, `repro`). `timing` measures.
"""
