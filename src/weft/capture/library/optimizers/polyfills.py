"""Functions that torch.optim and similar code call, as tensor operations that graphs can hold."""

from __future__ import annotations

from typing import Any

import torch


def foreach_addcdiv_(tensors: Any, first: Any, second: Any, scalars: Any) -> None:
    """`torch._foreach_addcdiv_` with tensors as scalars, which the operator would read."""
    for tensor, a, b, scalar in zip(tensors, first, second, scalars, strict=True):
        tensor.add_(a / b * scalar)


def foreach_addcmul_(tensors: Any, first: Any, second: Any, scalars: Any) -> None:
    """`torch._foreach_addcmul_` with tensors as scalars."""
    for tensor, a, b, scalar in zip(tensors, first, second, scalars, strict=True):
        tensor.add_(a * b * scalar)


def number_of(value: Any) -> object:
    """`torch.optim.optimizer._get_value`: a step count, as precise as Python's number."""
    cpu = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    return value.double() if cpu and value.is_floating_point() else value


def without_branches(function: Any, n_counts: int) -> object:
    """An optimizer's step in the form that selects by `where`.

    The last `n_counts` lists are step counts and what follows from them, which are tensors under
    compilers; they are made as precise as Python's numbers.
    """

    def step(*lists: Any, **options: Any) -> None:
        precise = [[number_of(count) for count in counts] for counts in lists[-n_counts:]]
        function(*lists[:-n_counts], *precise, **{**options, "capturable": True})
        for counts, numbers in zip(lists[-n_counts:], precise, strict=True):
            for count, value in zip(counts, numbers, strict=True):
                count.copy_(value)

    return step


def group_tensors(lists: Any, with_indices: bool = False) -> object:
    """`torch._C._group_tensors_by_device_and_dtype`: grouped by the first list's tensors."""
    groups: Any = {}
    for index, tensor in enumerate(lists[0]):
        key = (tensor.device, tensor.dtype)
        if key not in groups:
            groups[key] = ([[] for _ in lists], [])
        columns, indices = groups[key]
        for column, items in zip(columns, lists, strict=True):
            if items:
                column.append(items[index])
        if with_indices:
            indices.append(index)
    return groups


def unscale(gradients: Any, found_inf: Any, inv_scale: object) -> None:
    """`torch._amp_foreach_non_finite_check_and_unscale_`."""
    for gradient in gradients:
        found_inf.copy_(torch.maximum(found_inf, (~gradient.isfinite()).any().to(found_inf.dtype)))
        gradient.mul_(inv_scale)
