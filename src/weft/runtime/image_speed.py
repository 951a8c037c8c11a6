"""Which convolutions are faster on channels-last (NHWC) memory, and which as matrix products.

Place in the pipeline: used by `aot/rewrites/image_layout.py` and `codegen/lowering/convolution.py`.

On CPUs ATen reorders row-major float32 images inside oneDNN; for 1 x 1 kernels oneDNN's product is
up to four times as fast. On GPUs cuDNN's tensor core kernels are written for NHWC and convert other
images at each call. On an H100 with bfloat16, NHWC over NCHW: 3 x 3 kernels 0.5 to 0.7, depthwise
0.25 to 0.5, groups whose channels are no power of two 1.9; 1 x 1 kernels with a bias are 0.4 as
products. With float32 the backward of depthwise convolutions is up to 5 times slower on NHWC.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import torch

from weft._torch import fp32_precision
from weft.runtime.gemm_speed import onednn_is_faster

MIN_PRODUCTS: Final = 1 << 22
"""Multiplications (of a convolution, or of all of a training graph) below which the layout does not
matter, and calls of oneDNN cost more."""
_HALF = (torch.bfloat16, torch.float16)
_FEW_CHANNELS = 8
"""Channels of a group below which the gradient is slow on NHWC."""


def nhwc_is_faster(
    device: torch.device, dtype: torch.dtype, weight: torch.Size, groups: int, trained: bool
) -> bool:
    """Whether a 2-D convolution is faster on NHWC memory.

    weight: its shape (outputs, channels of a group, height, width); trained: whether its gradient
    is computed too.
    """
    if device.type == "cpu":
        return dtype == torch.float32 and bool(torch.backends.mkldnn.enabled)
    if not _has_tensor_cores(device, dtype):
        return False
    channels = weight[1]
    if groups == 1:
        return True
    if channels == 1:  # depthwise
        return dtype in _HALF or not trained
    return channels & (channels - 1) == 0 and (channels >= _FEW_CHANNELS or not trained)


def product_is_faster(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a convolution with a 1 x 1 kernel is faster as a product of pixels and weight."""
    return onednn_is_faster() if device.type == "cpu" else dtype in _HALF


def is_mostly_weight(weight: Sequence[Any], image_elements: int) -> bool:
    """On CPUs: whether a convolution's weight, of this shape, has more elements than its images.

    Then row-major images are better: ATen copies the weight into the images' layout at each call
    (the call takes 1.3 to 2.5 times as long, at 512 channels of 7 x 7), and its gradient back.
    """
    return bool(prod(weight[2:]) > 1 and prod(weight) > image_elements)


def _has_tensor_cores(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether cuDNN uses tensor cores for this type (float32: as TF32, if the user allows it)."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.backends.cudnn.enabled:
        return False
    major, _ = torch.cuda.get_device_capability(device)
    if dtype in _HALF:
        return major >= 7
    return dtype == torch.float32 and major >= 8 and fp32_precision("cuda", "conv") == "tf32"
