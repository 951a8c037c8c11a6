"""What a caller can see of a call that writes to its inputs and returns views.

    seen = run(call, gradients=True)        # results, inputs, which were written, gradients
    assert_alike(run(compiled, True), seen)
"""

from collections.abc import Callable

import torch


def make_inputs(gradients: bool) -> list[torch.Tensor]:
    x = torch.arange(32.0).view(4, 8) / 16 - 0.9
    w = torch.linspace(-1, 1, 48).view(6, 8)
    if gradients:
        x = x.requires_grad_() * 1
        w.requires_grad_()
    return [x, w, torch.linspace(0.5, 1, 8)]


def flat(result: object) -> list[object]:
    return torch.utils._pytree.tree_flatten(result)[0]


def run(call: Callable, gradients: bool) -> tuple[list, list, list, list]:
    """Results, inputs, how often inputs were written, gradients."""
    inputs = make_inputs(gradients)
    source = inputs[0]
    versions = [i._version for i in inputs]
    torch.manual_seed(0)
    results = flat(call(*inputs))
    written = [i._version - v for i, v in zip(inputs, versions, strict=True)]
    roots = [r for r in [*results, *inputs]
             if isinstance(r, torch.Tensor) and r.requires_grad and not r.is_leaf]
    gradient_inputs = [i for i in (source, inputs[1]) if i.requires_grad and i.is_leaf]
    gradients_found = []
    if roots and gradient_inputs:
        tangents = [torch.linspace(1, 2, r.numel()).view(r.shape).to(r.dtype) for r in roots]
        gradients_found = list(
            torch.autograd.grad(roots, gradient_inputs, tangents, allow_unused=True)
        )
    return results, inputs, written, gradients_found


def memory_pattern(values: list, bases: bool = True) -> list:
    """Which tensors share memory, or are one object; and (if `bases`) of which they are views."""
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    pointers = [t.untyped_storage().data_ptr() for t in tensors]
    objects = [id(t) for t in tensors]
    viewed = [objects.index(id(t._base)) if bases and id(t._base) in objects else None
              for t in tensors]
    return [(pointers.index(p), objects.index(o), v)
            for p, o, v in zip(pointers, objects, viewed, strict=True)]


def assert_same(found: list, wanted: list) -> None:
    assert len(found) == len(wanted)
    for f, w in zip(found, wanted, strict=True):
        if not isinstance(w, torch.Tensor):
            assert f == w
            continue
        assert (f.dtype, f.size(), f.stride()) == (w.dtype, w.size(), w.stride())
        assert (f.requires_grad, f.is_leaf) == (w.requires_grad, w.is_leaf)
        torch.testing.assert_close(f, w, rtol=1e-6, atol=1e-6)


def assert_alike(
    found: tuple, wanted: tuple, *, counted: bool = True, bases: bool = True
) -> None:
    """The same results, inputs, sharing of memory, versions (if `counted`) and gradients."""
    assert_same(found[0] + found[1], wanted[0] + wanted[1])
    if counted:
        assert found[2] == wanted[2], "written inputs"
    seen = memory_pattern(found[0] + found[1], bases)
    assert seen == memory_pattern(wanted[0] + wanted[1], bases)
    for f, w in zip(found[3], wanted[3], strict=True):
        assert (f is None) == (w is None)
        if f is not None:
            torch.testing.assert_close(f, w, rtol=1e-5, atol=1e-6)
