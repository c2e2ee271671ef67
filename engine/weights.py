"""A model's matrices, read from safetensors and fused into the few the decoder multiplies by."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelError
from engine.linear import Linear
from engine.model_config import ModelConfig, name_some, safetensors_files

# Buffers that older checkpoints carry and that are computed here.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "masked_bias")


@dataclass(slots=True)
class LayerWeights:
    """One layer. Rows of `qkv`: all query heads, then key heads, then value heads; of `gate_up`: gate, then up."""

    attention_norm: Tensor
    qkv: Linear
    output: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    attention_output_norm: Tensor | None = None  # of what attention and MLP add, with sandwich norms
    mlp_output_norm: Tensor | None = None


@dataclass(slots=True)
class DecoderWeights:
    """Everything a decoder holds. With tied embeddings `head` and `embedding` share memory until `head` is packed."""

    embedding: Tensor
    layers: list[LayerWeights]
    final_norm: Tensor
    head: Linear

    @property
    def dtype(self) -> torch.dtype:
        """Of every matrix and of the activations."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        """Where all of it lies."""
        return self.embedding.device


@dataclass(slots=True)
class _Plan:
    """Fused tensors not yet filled, and which slice of them each tensor of the checkpoint fills."""

    weights: DecoderWeights
    slots: dict[str, Tensor] = field(default_factory=dict)


def _plan(config: ModelConfig, dtype: torch.dtype, device: torch.device | str) -> _Plan:
    """Allocate the fused tensors and map every checkpoint name to the view it fills."""
    slots: dict[str, Tensor] = {}

    # 1 + w is near 1, where bf16 has few digits: such norms keep fp32.
    norm_dtype = torch.float32 if config.norm_offset else dtype

    def norm(name: str, size: int) -> Tensor:
        slots[name] = torch.empty(size, dtype=norm_dtype, device=device)
        return slots[name]

    def fused(prefix: str, parts: dict[str, int], inputs: int, bias: bool) -> Linear:
        sizes = list(parts.values())
        weight = torch.empty(sum(sizes), inputs, dtype=dtype, device=device)
        biases = torch.empty(sum(sizes), dtype=dtype, device=device) if bias else None
        for name, rows in zip(parts, weight.split(sizes), strict=True):
            slots[f"{prefix}{name}.weight"] = rows
        if biases is not None:
            for name, values in zip(parts, biases.split(sizes), strict=True):
                slots[f"{prefix}{name}.bias"] = values
        return Linear(weight, biases)

    hidden, head_size = config.hidden_size, config.head_size
    query_size, kv_size = config.heads * head_size, config.kv_heads * head_size
    embedding = torch.empty(config.vocabulary_size, hidden, dtype=dtype, device=device)
    slots["model.embed_tokens.weight"] = embedding
    mlp_norm = "pre_feedforward_layernorm" if config.sandwich_norms else "post_attention_layernorm"
    layers = []
    for index in range(config.layers):
        layer = f"model.layers.{index}."
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        qkv_parts = {"q_proj": query_size, "k_proj": kv_size, "v_proj": kv_size}
        gate_up_parts = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
        layers.append(
            LayerWeights(
                attention_norm=norm(f"{layer}input_layernorm.weight", hidden),
                qkv=fused(attention, qkv_parts, hidden, config.qkv_bias),
                output=fused(attention, {"o_proj": hidden}, query_size, config.output_bias),
                mlp_norm=norm(f"{layer}{mlp_norm}.weight", hidden),
                gate_up=fused(mlp, gate_up_parts, hidden, config.mlp_bias),
                down=fused(mlp, {"down_proj": hidden}, config.intermediate_size, config.mlp_bias),
                query_norm=norm(f"{attention}q_norm.weight", head_size) if config.qk_norm else None,
                key_norm=norm(f"{attention}k_norm.weight", head_size) if config.qk_norm else None,
                attention_output_norm=(
                    norm(f"{layer}post_attention_layernorm.weight", hidden) if config.sandwich_norms else None
                ),
                mlp_output_norm=(
                    norm(f"{layer}post_feedforward_layernorm.weight", hidden) if config.sandwich_norms else None
                ),
            )
        )
    final_norm = norm("model.norm.weight", hidden)
    head = (
        Linear(embedding)
        if config.tied_embeddings
        else fused("", {"lm_head": config.vocabulary_size}, hidden, bias=False)
    )
    return _Plan(DecoderWeights(embedding, layers, final_norm, head), slots)


def _tensors(files: list[Path]) -> Iterator[tuple[Path, str, Tensor]]:
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a dict: it can't be iterated
                    yield path, name, file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} can't be read as safetensors ({error}); download the model again.") from error


def load_weights(
    folder: Path | str, config: ModelConfig, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> DecoderWeights:
    """Read the safetensors of `folder` into fused matrices of `dtype` on `device`, one tensor at a time.

    Raises ModelError if tensors are missing, surplus or of another shape than `config` says.
    """
    plan = _plan(config, dtype, device)
    unfilled, surplus = set(plan.slots), []
    for path, name, tensor in _tensors(safetensors_files(folder)):
        slot = plan.slots.get(name)
        if slot is None:
            # A tied head is often stored as well; like transformers, the embedding stands for both.
            tied_head = config.tied_embeddings and name == "lm_head.weight"
            if not tied_head and not name.endswith(_IGNORED_SUFFIXES):
                surplus.append(name)
            continue
        if slot.shape != tensor.shape:
            raise ModelError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, but config.json asks for {tuple(slot.shape)}; "
                "the two don't belong together."
            )
        if not tensor.is_floating_point():
            raise ModelError(f"{path}: {name} is {tensor.dtype}: quantised weights are not supported.")
        slot.copy_(tensor)
        if config.norm_offset and "norm" in name:
            slot += config.norm_offset
        unfilled.discard(name)
    if unfilled:
        raise ModelError(
            f"{folder}: missing from the weights: {name_some(sorted(unfilled))}; download the model again."
        )
    if surplus:
        raise ModelError(
            f"{folder}: the weights hold tensors that a {config.architecture} model with this config.json has no "
            f"place for: {name_some(sorted(surplus))}; config and weights don't belong together."
        )
    return plan.weights


def random_weights(
    config: ModelConfig, dtype: torch.dtype, device: torch.device | str = "cpu", seed: int = 0
) -> DecoderWeights:
    """Weights of the right shape with normal values (deviation 0.02, norms about 1): for benchmarks and tests."""
    plan = _plan(config, dtype, device)
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, slot in plan.slots.items():
        slot.normal_(1.0 if "norm" in name else 0.0, 0.02, generator=generator)
    return plan.weights
