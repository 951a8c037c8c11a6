"""FakeContext: fakes have the metadata, identity and aliasing of the real tensors."""

import pytest
import torch

import weft
from weft.shapes.fakes.fake import FakeContext

CASES = {
    "plain": lambda: torch.randn(2, 3),
    "transposed": lambda: torch.randn(2, 3).t(),
    "slice": lambda: torch.randn(10)[2:8:2],
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
    "scalar": lambda: torch.tensor(1),
    "empty": lambda: torch.empty(0, 3),
    "requires_grad": lambda: torch.randn(2, requires_grad=True),
    "non_leaf": lambda: torch.randn(2, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.randn(2)),
    "bool": lambda: torch.ones(2, dtype=torch.bool),
    "conj": lambda: torch.randn(2, dtype=torch.complex64).conj(),
    "channels_last": lambda: torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last),
}


def _facts(t: torch.Tensor) -> tuple:
    return (
        t.size(), t.stride(), t.storage_offset(), t.dtype, t.device, t.requires_grad,
        t.is_leaf, isinstance(t, torch.nn.Parameter), t.is_conj(), t.is_inference(),
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("inference", [False, True])
def test_fake_has_the_real_tensors_metadata(case: str, inference: bool) -> None:
    real = CASES[case]()
    with torch.inference_mode(inference):
        fake = FakeContext().fake(real)
        assert _facts(fake) == _facts(real)


def test_inference_tensor_stays_one() -> None:
    with torch.inference_mode():
        real = torch.randn(2)
    assert FakeContext().fake(real).is_inference()


def test_memo_is_by_identity() -> None:
    context, real = FakeContext(), torch.randn(3)
    assert context.fake(real) is context.fake(real)
    assert context.fake(real) is not context.fake(real.clone())


@pytest.mark.parametrize("order", [1, -1])
def test_aliases_share_a_storage(order: int) -> None:
    context, base = FakeContext(), torch.randn(10)
    fakes = [context.fake(t) for t in (base, base[2:5])[::order]]
    assert fakes[0].untyped_storage()._cdata == fakes[1].untyped_storage()._cdata
    other = context.fake(torch.randn(10))
    assert other.untyped_storage()._cdata != fakes[0].untyped_storage()._cdata


def test_given_sizes_keep_the_dimension_order() -> None:
    fake = FakeContext().fake(torch.randn(4, 6).t(), sizes=(8, 5))
    assert fake.size() == (8, 5) and fake.stride() == (1, 8)


@pytest.mark.parametrize(("write", "dtype", "fails"), [
    (lambda x: x.mul_(2), torch.bool, True),
    (lambda x: x.mul_(1.5), torch.int32, True),
    (lambda x: x[0].mul_(torch.ones(2)), torch.int64, True),
    (lambda x: x.sub_(1j), torch.float32, True),
    (lambda x: x.lerp_(torch.ones(3, 2), torch.ones(3, 2, dtype=torch.float64)), torch.int32, True),
    (lambda x: x.mul_(True), torch.bool, False),
    (lambda x: x.mul_(x.shape[0]), torch.int32, False),
    (lambda x: x.logical_and_(torch.ones(2)), torch.bool, False),
    (lambda x: x.eq_(1.5), torch.int32, False),
    (lambda x: x.copy_(torch.ones(2)), torch.int32, False),
])
def test_writes_that_the_tensor_cannot_hold_raise_as_in_eager(write, dtype, fails) -> None:
    """PyTorch's meta kernels of some operators accept them: the numbers were cut off silently."""
    def f(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        x = x.clone()
        try:
            write(x)
        except RuntimeError:
            return x, True
        return x, False

    given = torch.ones(3, 2, dtype=dtype)
    assert f(given)[1] is fails
    for dynamic in (False, True):
        compiled = weft.compile(f, backend="aot_eager", dynamic=dynamic)
        torch.testing.assert_close(compiled(given), f(given))
