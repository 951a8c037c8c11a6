"""What runs a model on CPUs beside weft: PyTorch's own ways, OpenVINO, ONNX Runtime.

    call = PEERS["openvino"](model, inputs, 2)       # 2 threads
    call()                                           # the result as a tensor

A runtime that is not installed raises ImportError. The product imports none of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

import weft

Inputs = tuple[Tensor, ...]
Call = Callable[[], Any]
Prepare = Callable[[nn.Module, Inputs, int], Call]


def _eager(model: nn.Module, inputs: Inputs, threads: int) -> Call:
    return partial(model, *inputs)


def _weft(model: nn.Module, inputs: Inputs, threads: int) -> Call:
    return partial(weft.compile(model), *inputs)


def _torch(model: nn.Module, inputs: Inputs, threads: int) -> Call:
    return partial(torch.compile(model), *inputs)


def _frozen(model: nn.Module, inputs: Inputs, threads: int) -> Call:
    return partial(torch.compile(model, options={"freezing": True}), *inputs)


def _tuned(model: nn.Module, inputs: Inputs, threads: int) -> Call:
    options = {"freezing": True, "max_autotune": True}
    return partial(torch.compile(model, options=options), *inputs)


def _openvino(model: nn.Module, inputs: Inputs, threads: int) -> Call:
    import openvino

    converted = openvino.convert_model(model, example_input=inputs, input=[
        list(x.shape) for x in inputs])
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads,
                "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.compile_model(converted, "CPU", settings).create_infer_request()
    arrays = [x.numpy() for x in inputs]

    def call() -> Tensor:
        request.infer(arrays, share_inputs=True, share_outputs=True)
        return torch.from_numpy(request.get_output_tensor(0).data)

    return call


def _onnxruntime(model: nn.Module, inputs: Inputs, threads: int) -> Call:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "model.onnx")
        torch.onnx.export(model, inputs, file, dynamo=False, opset_version=17)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    feed = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return lambda: torch.from_numpy(session.run(None, feed)[0])


PEERS: Final[dict[str, Prepare]] = {
    "eager": _eager,
    "torch": _torch,
    "freezing": _frozen,
    "autotune": _tuned,
    "openvino": _openvino,
    "onnx": _onnxruntime,
    "weft": _weft,
}
"""By name. `torch`, `freezing` and `autotune` are torch.compile with its default settings, with
constant parameters, and with measured products too."""
