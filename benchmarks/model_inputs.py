"""Inputs that a transformers model's `forward` may want, guessed from its signature and config.

Place: beside `small_models`, which calls the model with each until one runs.

    for kwargs in candidates(model, config, FIRST):      # most telling first
        model(**kwargs)

Images and sounds come with tokens that stand for them in the text: as many as the model's own
`get_image_features` gives, so that the text really reads them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How large the inputs of a call are."""

    batch: int = 2
    length: int = 16
    """Tokens; sounds are 250 samples a token."""
    larger: int = 0
    """Pixels to add to each side of an image, in steps of 32 (what most models divide by)."""

    def __str__(self) -> str:
        return f"{self.batch}x{self.length}" + f"+{32 * self.larger}" * bool(self.larger)


FIRST: Final = Sizes()

MARKS: Final = (
    ("get_image_features", ("image_token_id", "image_token_index")),
    ("get_audio_features", ("audio_token_id", "audio_token_index")),
)
"""What makes vectors for the text, and the names of the token that stands for one of them."""


BINS: Final = ("num_mel_bins", "input_dim", "input_feat_size", "feature_size")
"""What configs call the length of a spectrum's frame."""


def candidates(model: torch.nn.Module, config: Any, sizes: Sizes) -> Iterator[Inputs | None]:
    """Arguments that a call may want, most telling first; of the same kinds at the same places for
    all sizes (None where there is none of that kind)."""
    named = inspect.signature(model.forward).parameters
    for plain in _inputs(set(named), model, config, sizes):
        for one in (plain, _completed(named, plain), *_masked(named, plain)):
            yield _marked(model, config, one)
            yield one


def _inputs(
    parameters: set[str], model: torch.nn.Module, config: Any, sizes: Sizes
) -> Iterator[Inputs]:
    text = _text(parameters, config, sizes)
    images = list(_images(parameters, config, sizes))
    sounds = list(_sounds(parameters, model, config, sizes))
    yield from _gridded(model, parameters, config, sizes)
    if "input_ids" not in parameters:
        yield from images
    if "decoder_input_ids" in parameters and "input_ids" in parameters:
        yield {**text, "decoder_input_ids": text["input_ids"]}
    if "input_ids" in parameters:
        yield from ({**text, **one} for one in images + sounds)
        if "decoder_input_ids" in parameters:
            yield from ({**text, **one, "decoder_input_ids": text["input_ids"]} for one in images)
        yield text
    yield from images
    for one in sounds:
        yield {**one, **_decoder(parameters, config, sizes)}
    yield from _series(parameters, config)


def _text(parameters: set[str], config: Any, sizes: Sizes) -> Inputs:
    tokens = _tokens(config, sizes.batch, sizes.length)
    text = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    return {k: v for k, v in text.items() if k in parameters}


def _tokens(config: Any, *shape: int) -> torch.Tensor:
    vocabulary = getattr(config, "vocab_size", None) or getattr(
        getattr(config, "text_config", None), "vocab_size", 256
    )
    return torch.randint(5, max(6, min(int(vocabulary), 200)), shape)


def _decoder(parameters: set[str], config: Any, sizes: Sizes) -> Inputs:
    if "decoder_input_ids" not in parameters:
        return {}
    return {"decoder_input_ids": _tokens(config, sizes.batch, sizes.length)}


def _images(parameters: set[str], config: Any, sizes: Sizes) -> Iterator[Inputs]:
    """An image each, then several of each row of the batch (tiles, frames, pairs)."""
    name = next((n for n in ("pixel_values", "pixel_values_videos") if n in parameters), None)
    if name is None:
        return
    height, width, channels = _image_shape(config)
    shape = (channels, height + 32 * sizes.larger, width + 32 * sizes.larger)
    yield {name: torch.randn(sizes.batch, *shape)}
    for count in (4, 2):
        several: Inputs = {name: torch.randn(sizes.batch, count, *shape)}
        if "image_sizes" in parameters:
            several["image_sizes"] = torch.tensor([shape[1:]] * sizes.batch)
        yield several


def _image_shape(config: Any) -> tuple[int, int, int]:
    """Height, width and channels."""
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", 64)
    pair = list(size)[-2:] if isinstance(size, list | tuple) else [size, size]
    height, width = pair if all(isinstance(n, int) for n in pair) and len(pair) == 2 else (64, 64)
    return height, width, int(getattr(vision, "num_channels", 3) or 3)


def _sounds(
    parameters: set[str], model: torch.nn.Module, config: Any, sizes: Sizes
) -> Iterator[Inputs]:
    """Samples, or their spectra in either order of frames and bins."""
    if "input_values" in parameters:
        samples = 250 * sizes.length
        yield {"input_values": torch.randn(sizes.batch, samples)}
        yield {"input_values": torch.randn(sizes.batch, 1, samples)}
        shape = [_first_of(config, (width,), 64) for width in ("max_length", "num_mel_bins")]
        yield {"input_values": torch.randn(sizes.batch, *shape)}
    name = next((n for n in ("input_features", "audio_mel") if n in parameters), None)
    if name is None:
        return
    longest = _first_of(config, ("max_source_positions",), 64)
    frames = 2 * longest * sizes.length // FIRST.length
    widths = [_first_of(config, (width,), 80) for width in BINS]
    widths += [m.in_features for m in model.modules() if isinstance(m, torch.nn.Linear)][:1]
    for bins in dict.fromkeys(widths):
        yield {name: torch.randn(sizes.batch, bins, frames)}
        yield {name: torch.randn(sizes.batch, frames, bins)}


def _first_of(config: Any, names: Iterable[str], default: int) -> int:
    """The first of these numbers that the config or one of its parts has."""
    parts = [config, *(v for v in vars(config).values() if hasattr(v, "model_type"))]
    found = (getattr(part, name, None) for name in names for part in parts)
    return next((n for n in found if isinstance(n, int) and n), default)


def _series(parameters: set[str], config: Any) -> Iterator[Inputs]:
    if "past_values" in parameters:
        shape = (FIRST.batch, _first_of(config, ("context_length",), 32),
                 _first_of(config, ("num_input_channels",), 1))
        yield {"past_values": torch.randn(shape)}
        yield {"past_values": torch.randn(shape[:2])}


def _gridded(
    model: torch.nn.Module, parameters: set[str], config: Any, sizes: Sizes
) -> Iterator[Inputs]:
    """Images as lists of patches with their grids (the Qwen-VL family and others)."""
    grid = next((g for g in ("grid_thw", "image_grid_thw") if g in parameters), None)
    if grid is None:
        return
    vision = getattr(config, "vision_config", config)
    merge = _first_of(vision, ("spatial_merge_size", "merge_size"), 2)
    patch = _first_of(vision, ("patch_size",), 14)
    frames = _first_of(vision, ("temporal_patch_size",), 1)
    channels = _first_of(vision, ("num_channels", "in_channels"), 3)
    wide = 2 + sizes.batch
    grids = torch.tensor([[1, 2 * merge, 2 * merge], [1, 2 * merge, wide * merge]])
    if "input_ids" in parameters:
        grids = grids[1:]
    count = int(grids.prod(1).sum())
    first = next(iter(inspect.signature(model.forward).parameters))
    where = "pixel_values" if "pixel_values" in parameters else first
    for shape in ((count, channels * frames * patch * patch), (count, channels, patch, patch)):
        images = {where: torch.randn(shape), grid: grids}
        if "input_ids" not in parameters:
            yield images
            continue
        token = getattr(config, "image_token_id", None)
        if not isinstance(token, int):
            return
        text = _with_marks(_tokens(config, 1, sizes.length - 8), token, count // merge**2)
        if "mm_token_type_ids" in parameters:
            yield {**text, **images, "mm_token_type_ids": (text["input_ids"] == token).long()}
        yield {**text, **images}


def _with_marks(tokens: torch.Tensor, mark: int, count: int) -> Inputs:
    """A text with so many marks after its fourth token."""
    marks = torch.full((len(tokens), count), mark)
    tokens = torch.cat([tokens[:, :4], marks, tokens[:, 4:]], 1)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def _marked(model: torch.nn.Module, config: Any, kwargs: Inputs | None) -> Inputs | None:
    """The inputs with a token for each vector that the model makes of an image or a sound."""
    if kwargs is None or "input_ids" not in kwargs:
        return None
    for maker, names in MARKS:
        token = next((t for n in names if isinstance(t := getattr(config, n, None), int)), None)
        if token is None or (kwargs["input_ids"] == token).any():
            continue
        if rows := _vectors(getattr(model, maker, None), kwargs):
            text = _with_marks(kwargs["input_ids"], token, rows // len(kwargs["input_ids"]))
            kinds = {n: (text["input_ids"] == token).long() for n in ("mm_token_type_ids", "token_type_ids")
                     if n in inspect.signature(model.forward).parameters}
            return {**kwargs, **text, **kinds}
    return None


def _vectors(maker: Any, kwargs: Inputs) -> int:
    """How many vectors for the text the model makes of its other inputs; 0 for none."""
    texts = ("input_ids", "attention_mask", "decoder_input_ids", "token_type_ids", "mm_token_type_ids")
    try:
        with torch.no_grad():
            made = maker(**{k: v for k, v in kwargs.items() if k not in texts})
    except Exception:  # not what this model makes them of
        return 0
    made = getattr(made, "pooler_output", made)
    parts = made if isinstance(made, list | tuple) else [made]
    return sum(t.numel() // t.shape[-1] for t in parts if isinstance(t, torch.Tensor) and t.numel())


Maker = Callable[[torch.Tensor], torch.Tensor]
"""A mask of an input."""


def _ones(dtype: torch.dtype, frames: int) -> Maker:
    """Masks of ones for all positions; of three dimensions, `frames` is the one of positions."""

    def mask(like: torch.Tensor) -> torch.Tensor:
        shape = like.shape if like.dim() < 3 else (len(like), like.shape[frames])
        return torch.ones(shape, dtype=dtype)

    return mask


MASKS: Final = [_ones(dtype, frames) for dtype in (torch.long, torch.bool) for frames in (1, 2)]


def _completed(named: Any, kwargs: Inputs, mask: Maker = MASKS[0]) -> Inputs | None:
    """The inputs with required arguments that follow from them; None if there is none."""
    missing = [n for n, p in named.items() if p.default is p.empty and n not in kwargs
               and p.kind is p.POSITIONAL_OR_KEYWORD]
    made = {n: one for n in missing if (one := _like_another(n, kwargs, mask)) is not None}
    return {**kwargs, **made} if made else None


def _masked(named: Any, kwargs: Inputs) -> Iterator[Inputs]:
    """The inputs with all masks of them that the model takes, and what it requires beside."""
    for mask in MASKS:
        known = _completed(named, kwargs, mask) or kwargs
        masks = [n for n in named if n.endswith("_mask") and n not in kwargs]
        made = {n: one for n in masks if (one := _like_another(n, kwargs, mask)) is not None}
        if not made and "attention_mask" in named and "attention_mask" not in known:
            made = {"attention_mask": mask(next(iter(known.values())))}
        yield {**known, **made}


def _like_another(name: str, kwargs: Inputs, mask: Maker) -> torch.Tensor | None:
    """An argument of the shape of the one that its name ends with; of a mask, that before _mask."""
    base = name.removesuffix("_mask")
    like = next((v for k, v in kwargs.items() if base == k or base.endswith("_" + k)), None)
    if not isinstance(like, torch.Tensor):
        return None
    return mask(like) if name.endswith("_mask") else like.clone()
