"""What a person reads about a compilation: events, statistics, logs, explanations, reports.

Place in the pipeline: low; every stage records events, and nothing here imports a stage. `events`
is the only source; the rest are views of it::

    from weft.diagnostics import events
    with events.stage("schedule"):
        events.record("kernel", name="fused_relu_0", lines=["model.py:12"])
        events.count("kernels")

Core types: `Event`, `stage` (`events`), `Explanation` (`explanation`). Defects of weft itself are
reported by `failures`; `checks` finds them (`numerics`), makes them small (`minimize`) and writes
programs that show them (`repro`).
"""
