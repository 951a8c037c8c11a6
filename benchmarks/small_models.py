"""Small random-weight models of every transformers architecture, with inputs, built from config
classes.

Place: source of real cases for sweeps and tests; nothing is downloaded.

    for name in model_types():
        case = build(name)          # Case(model, kwargs) or raises NotBuildable
        case.model(**case.kwargs)

The sizes are shrunk by attribute name (hidden sizes, layers, heads, vocabulary, images), in
sub-configs too. Where a shrunk config does not build, gentler settings are tried.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from unittest import mock

import torch
from torch.utils._pytree import tree_map_only

from benchmarks.model_inputs import FIRST, Inputs, Sizes, candidates

LARGEST_MODEL: Final = 120_000_000
"""Parameters above which a config counts as not shrunk (it would take too long to run)."""

LAYERS: Final = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "depth",
    "num_encoder_layers", "num_decoder_layers", "num_block", "e_layers", "d_layers", "num_stages_layers",
    "encoder_num_layers", "decoder_num_layers", "num_encoder_blocks_layers", "decoder_num_hidden_layers",
    "num_mem_blocks", "vision_layers", "text_layers", "predictor_num_hidden_layers", "n_encoder_layers",
)
HEADS: Final = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
    "decoder_attention_heads", "num_key_value_heads", "decoder_num_attention_heads", "attention_heads",
    "num_kv_heads", "predictor_num_attention_heads", "multi_query_group_num",
)
WIDTHS: Final = (
    "hidden_size", "d_model", "dim", "embed_dim", "n_embd", "emb_dim", "projection_dim", "hidden_dim",
    "embedding_size", "encoder_hidden_size", "decoder_hidden_size", "d_embed", "d_inner_model",
    "word_embed_proj_dim", "text_embed_dim", "conv_dim_width", "model_dim", "cross_attention_hidden_size",
)
FEED_FORWARD: Final = (
    "intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner", "d_inner",
    "dim_feedforward", "ffn_hidden_size", "moe_intermediate_size", "shared_expert_intermediate_size",
    "encoder_intermediate_size", "expert_ffn_hidden_size", "mlp_hidden_size", "feed_forward_size",
)


FACTOR: Final = 8
SCALED: Final = ("size", "dim", "width", "d_model", "channels", "d_ff", "rank", "n_embd", "d_kv")
UNSCALED: Final = (
    "vocab", "image", "patch", "kernel", "window", "num_", "max_", "type_vocab", "codebook", "mel",
    "merge", "chunk", "stride", "input_size", "sample", "batch", "pool", "grid", "video",
)
"""Parts of the names of what is divided by `_scale_all`, and of what is not."""


NEEDED: Final = {"num_experts_per_tok": 2, "vocab_size": 512, "head_dim": 16, "num_key_value_heads": 4,
                 "pad_token_id": 1, "mask_token_id": 2}
"""What defaults to None although some models cannot do without it."""


class NotBuildable(Exception):
    """No small configuration of this type could be built and run in eager."""


@dataclass
class Case:
    """A model in eval mode and the keyword arguments of one forward call."""

    name: str
    model: torch.nn.Module
    kwargs: dict[str, Any]
    at: Callable[[Sizes], dict[str, Any]]
    """The arguments of a call of other sizes, which the model may refuse."""


def on_device(case: Case, device: str) -> Case:
    """The case on another device; convolutions there compute in float32, as on CPUs."""
    if device == "cpu":
        return case
    torch.backends.cudnn.allow_tf32 = False

    def moved(kwargs: dict[str, Any]) -> dict[str, Any]:
        return dict(tree_map_only(torch.Tensor, lambda t: t.to(device), kwargs))

    model = case.model.to(device)
    return Case(case.name, model, moved(case.kwargs), lambda sizes: moved(case.at(sizes)))


def model_types() -> list[str]:
    """Every model type that transformers maps to a base model."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def build(name: str, *, seed: int = 0) -> Case:
    """A small model of type `name` that runs in eager, or NotBuildable."""
    reasons = []
    for shrink in SHRINKS:
        for finish in (lambda config: config, _made_again, _filled):
            try:
                return _attempt(name, shrink, finish, seed)
            except Exception as error:  # any config combination may be invalid: try the next
                reasons.append(f"{shrink.__name__}: {type(error).__name__}: {str(error)[:200]}")
    raise NotBuildable("; ".join(reasons))


def _attempt(
    name: str, shrink: Callable[[Any], None], finish: Callable[[Any], Any], seed: int
) -> Case:
    from transformers import AutoModel

    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = shrunk_config(name, shrink, finish)
        with torch.device("meta"):
            count = sum(p.numel() for p in AutoModel.from_config(config).parameters())
        if count > LARGEST_MODEL:
            raise NotBuildable(f"{count} parameters")
        model = AutoModel.from_config(config).eval()
    errors = []
    for index, kwargs in enumerate(candidates(model, config, FIRST)):
        if kwargs is None:
            continue
        try:
            with torch.no_grad():
                model(**kwargs)
            mend = _mended(model, kwargs)
            return Case(name, model, mend(kwargs),
                        lambda n, i=index, mend=mend: mend(_nth(candidates(model, config, n), i)))
        except Exception as error:  # not the inputs that this model wants
            errors.append(f"{sorted(kwargs)}: {str(error)[:100]}")
    raise NotBuildable(" | ".join(errors[:4]))


def _mended(model: torch.nn.Module, kwargs: Inputs) -> Callable[[Inputs], Inputs]:
    """What the inputs need to mean the same compiled: models that take a mask of ones for none,
    in eager alone, may give another answer to it; some padding tells them that it is a mask."""
    if (_answers_alike(model, kwargs) or "attention_mask" not in kwargs
            or not _answers_alike(model, _padded(kwargs))):
        return lambda inputs: inputs
    return _padded


def _padded(kwargs: Inputs) -> Inputs:
    mask = kwargs["attention_mask"].clone()
    mask[-1, -3:] = 0
    return {**kwargs, "attention_mask": mask}


def _answers_alike(model: torch.nn.Module, kwargs: Inputs) -> bool:
    """Whether the model gives the same answer when it is told that it is being compiled."""
    with torch.no_grad():
        torch.manual_seed(0)
        expected = model(**kwargs)
        try:
            with mock.patch("torch.compiler.is_compiling", lambda: True):
                torch.manual_seed(0)
                return same(model(**kwargs), expected)
        except Exception:  # the model's own: another mask does not change it
            return False


def _nth(choices: Iterable[Inputs | None], index: int) -> Inputs:
    found = next(islice(choices, index, None))
    if found is None:
        raise ValueError("no such inputs of that size")
    return found


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from _configs(value)


def _made_again(config: Any) -> Any:
    """The config made from its own values, so that those that it derives fit the shrunk ones."""
    values = {}
    for name, parameter in inspect.signature(type(config).__init__).parameters.items():
        value = vars(config).get(name)
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            values[name] = _made_again(value)
        elif value is not None and parameter.default not in (None, parameter.empty):
            values[name] = value
    return type(config)(**values)


def _filled(config: Any) -> Any:
    """The config made again, with what it lacks; rotary positions of images, of three parts, too."""
    config = _made_again(config)
    for one in _configs(config):
        for name, value in NEEDED.items():
            if name in vars(one) and _value(one, name) is None:
                setattr(one, name, value)
        rope = _value(one, "rope_parameters")
        if isinstance(rope, dict) and "rope_type" in rope:
            rope.setdefault("mrope_section", [8, 12, 12])
    return config


def _make_consistent(configs: list[Any]) -> None:
    """Token ids within the smallest vocabulary, rotary sections that fit the heads, images as wide
    as words."""
    text = next((getattr(c, "text_config", None) for c in configs), None)
    words = getattr(text, "hidden_size", None)
    limits = [c.vocab_size for c in configs if isinstance(getattr(c, "vocab_size", None), int)]
    for config in configs:
        if limits:
            _clamp_token_ids(config, min(limits))
        if isinstance(words, int) and isinstance(getattr(config, "out_hidden_size", None), int):
            config.out_hidden_size = words
        rope = _value(config, "rope_parameters") or _value(config, "rope_scaling")
        sections = rope.get("mrope_section") if isinstance(rope, dict) else None
        half = _rotated(config, rope) // 2
        if isinstance(sections, list) and half >= len(sections) and sum(sections) != half:
            parts = [max(1, n * half // sum(sections)) for n in sections]
            rope["mrope_section"] = [half - sum(parts[1:]), *parts[1:]]


def _rotated(config: Any, rope: Any) -> int:
    """How much of an attention head is rotated."""
    share = rope.get("partial_rotary_factor", 1.0) if isinstance(rope, dict) else 1.0
    return int(_head_size(config) * share)


def _head_size(config: Any) -> int:
    size, heads = _value(config, "head_dim"), _value(config, "num_attention_heads")
    width = _value(config, "hidden_size")
    if isinstance(size, int):
        return size
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads else 0


def _value(config: Any, name: str) -> Any:
    """A value of the config; None where it has none, or one for each layer."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        return None


def _set(config: Any, names: tuple[str, ...], value: int) -> None:
    for name in names:
        current = _value(config, name)
        if isinstance(current, int) and not isinstance(current, bool) and current > value:
            with suppress(NotImplementedError):  # a config may refuse that one of its names be set
                setattr(config, name, value)


def _shrink_depth(config: Any) -> None:
    for name in LAYERS:
        _set(config, (name,), 2)
    types = _value(config, "layer_types")
    if isinstance(types, list) and len(types) > 2:
        config.layer_types = types[:2] if len(set(types)) == 1 else [*dict.fromkeys(types)][:2]
        if len(config.layer_types) < 2:
            config.layer_types = types[:2]
    depths = getattr(config, "depths", None)
    if isinstance(depths, list | tuple):
        config.depths = [min(2, d) for d in depths]


def _shrink_depth_and_vocabulary(config: Any) -> None:
    _shrink_depth(config)
    _shrink_vocabulary(config)


def _shrink_vocabulary(config: Any) -> None:
    _set(config, tuple(name for name in vars(config) if "vocab" in name), 512)
    _set(config, ("image_size",), 64)


def _shrink_all(config: Any) -> None:
    _shrink_depth(config)
    _shrink_widths(config)


def _shrink_widths(config: Any) -> None:
    """All but the depth: for models that need a layer of each of their kinds."""
    _shrink_vocabulary(config)
    _set(config, HEADS, 4)
    _set(config, WIDTHS, 64)
    _set(config, FEED_FORWARD, 128)
    _set(config, ("head_dim", "attention_head_size", "kv_channels", "d_kv"), 16)
    _set(config, ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4)
    _set(config, ("num_experts_per_tok", "moe_topk", "n_group", "topk_group"), 2)
    _set(config, ("max_position_embeddings", "n_positions", "max_source_positions"), 128)
    _set(config, ("num_queries",), 20)
    for name in ("hidden_sizes", "embed_dims", "encoder_hidden_sizes"):
        sizes = getattr(config, name, None)
        if isinstance(sizes, list) and all(isinstance(s, int) for s in sizes):
            setattr(config, name, [max(16, s // 8 // 16 * 16) for s in sizes])


def _scale_all(config: Any) -> None:
    """All widths divided alike: for models whose widths must stay in proportion."""
    _shrink_depth_and_vocabulary(config)
    for name, value in list(vars(config).items()):
        if any(part in name for part in SCALED) and not any(part in name for part in UNSCALED):
            scaled = _scaled(value)
            if scaled is not None:
                setattr(config, name, scaled)


def _scaled(value: Any) -> Any:
    """A width, or a list of widths, divided; None for what is neither."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value // FACTOR if value >= 4 * FACTOR and value % FACTOR == 0 else None
    if isinstance(value, list) and value and all(type(n) is int for n in value):
        fits = all(n >= 2 * FACTOR and n % FACTOR == 0 for n in value)
        return [n // FACTOR for n in value] if fits else None
    return None


def shrunk_config(
    name: str, shrink: Callable[[Any], None] = _shrink_all,
    finish: Callable[[Any], Any] = lambda config: config,
) -> Any:
    """The default config of that type, made small."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(name)
    for one in _configs(config):
        shrink(one)
    config = finish(config)
    _make_consistent(list(_configs(config)))
    return config


SHRINKS: Final = (_shrink_all, _scale_all, _shrink_widths, _shrink_depth_and_vocabulary, _shrink_depth)
"""What is tried, one after another, until a model builds."""


def _clamp_token_ids(config: Any, limit: int | None = None) -> None:
    limit = getattr(config, "vocab_size", None) if limit is None else limit
    if not isinstance(limit, int):
        return
    for name, value in list(vars(config).items()):
        if name.endswith(("token_id", "token_index")) and isinstance(value, int) and value >= limit:
            setattr(config, name, limit - 1 - (len(name) % 16))


def same(left: Any, right: Any, tolerance: float = 1e-4) -> bool:
    """Are two model outputs equal, tensor by tensor, in structure too?"""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and _same_tensor(left, right, tolerance)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k], tolerance) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right, [tolerance] * len(left)))
    if isinstance(left, float):
        return left == right or math.isclose(left, right, rel_tol=tolerance)
    if left is None or isinstance(left, int | str | bool):
        return left == right
    fields = getattr(left, "__dict__", None)
    return type(left) is type(right) and (fields is None or same(fields, right.__dict__, tolerance))


def _same_tensor(left: torch.Tensor, right: torch.Tensor, tolerance: float) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    return torch.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)
