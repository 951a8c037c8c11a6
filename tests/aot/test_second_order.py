"""`gradcheck` and `gradgradcheck` of sixty operators through compiled code."""

import warnings
from itertools import islice

import pytest
import torch
from comparing import make_graph
from torch.testing._internal.common_methods_invocations import op_db

from weft.backends import resolve

NAMES = """
    abs acos add addcdiv addcmul addmm asin asinh atan atan2 baddbmm bmm cat clamp cos cosh
    cumsum div erf exp expm1 fmod gather index_select lerp log log1p logaddexp logsumexp matmul mean
    mm mul nn.functional.conv2d nn.functional.gelu nn.functional.layer_norm nn.functional.linear
    nn.functional.mse_loss nn.functional.silu nn.functional.softplus norm permute pow prod
    reciprocal rsqrt sigmoid sin sinc sinh softmax sqrt std sub sum tan tanh transpose tril var
    where
""".split()
DATABASE = {op.name: op for op in reversed(op_db) if not op.variant_test_name}
OPS = [DATABASE[name] for name in NAMES if name in DATABASE]


def sample_of(op):
    """The smallest of the first samples with an input that can be differentiated."""
    candidates = []
    for sample in islice(op.sample_inputs("cpu", torch.float64, requires_grad=True), 12):
        gm, inputs = make_graph(op.op, (sample.input, *sample.args), sample.kwargs)
        size = sum(i.numel() for i in inputs)
        if size and any(i.requires_grad for i in inputs):
            candidates.append((size, len(candidates), sample, gm, inputs))
    return min(candidates)[2:]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.formatted_name)
def test_gradgradcheck(op) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample, gm, inputs = sample_of(op)
        compiled = resolve("aot_eager")(gm, inputs)
        assert getattr(compiled, "boxed", False), "runs without aot"

        def call(*given):
            outputs = [o for o in compiled(list(given)) if o.requires_grad]
            if sample.output_process_fn_grad is not None:
                outputs = [sample.output_process_fn_grad(o) for o in outputs]
            return tuple(outputs)

        assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def test_there_are_sixty() -> None:
    assert len(OPS) >= 60
