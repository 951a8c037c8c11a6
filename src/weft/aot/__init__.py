"""Captured (torch-level) graph → functional ATen graphs and a thin runtime wrapper.

Core types: `AtenGraph` (`graph.py`), `Recorder` (`record.py`), `Functionalizer`
(`functionalize.py`), `Evaluator` (`evaluate.py`), `Traced` (`trace.py`), `Template` (`expand.py`);
`pipeline.py` lists the steps.
"""
