"""A process that compiled a model holds nothing of torch.compile's stack but what torch imports.

`weft` itself never names those modules (the "torch" contract of `make lint` reads the sources). But
PyTorch's own library code imports some: what a plain program imports by using the same public parts
of torch (fake tensors) is measured here, in a process without weft, and allowed by name.
"""

import os
import subprocess
import sys

FORBIDDEN = (
    "torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd",
    "torch._functorch._aot_autograd", "torch._functorch.partitioners", "torch._export",
    "torch.fx.experimental.proxy_tensor", "torch.fx.experimental.symbolic_shapes",
)
PRINT = f"""
import sys
print(*(m for m in sys.modules if any(m == f or m.startswith(f + ".") for f in {FORBIDDEN!r})))
"""
MODEL = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
                            torch.nn.Flatten(), torch.nn.Linear(144, 8), torch.nn.LayerNorm(8),
                            torch.nn.GELU(), torch.nn.Softmax(-1)).eval()
x = torch.randn(2, 3, 8, 8)
"""
PLAIN = MODEL + """
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
    model(mode.from_tensor(x))
""" + PRINT
COMPILED = MODEL + """
import weft
with torch.no_grad():
    compiled = weft.compile(model)
    torch.testing.assert_close(compiled(x), model(x))
assert weft.stats()["graphs"] == 1 and weft.stats()["kernels"] > 0
weft.explain(lambda x: x.relu() + 1)(x)
""" + PRINT


def _modules(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "WEFT_STRICT": "1"}, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_compiling_imports_nothing_that_torch_does_not():
    assert _modules(COMPILED) - _modules(PLAIN) == set()


def test_importing_weft_is_light():
    code = "import weft, sys; print(*sys.modules)"
    loaded = _modules(code)
    assert not {m for m in loaded if m.split(".")[0] in {"torch", "rich", "typer", "numpy"}}
