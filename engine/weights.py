"""A model's matrices, read from safetensors and fused into the few the decoder multiplies by."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as functional
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelError
from engine.model_config import ModelConfig, name_some, safetensors_files

# Buffers that older checkpoints carry and that are computed here.
_IGNORED_SUFFIXES = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "masked_bias")


_row_block: ContextVar[int | None] = ContextVar("row_block", default=None)


@contextmanager
def matrix_product_rows(block: int | None) -> Iterator[None]:
    """Inside, every product of a `Linear` runs over exactly `block` rows at a time, padded with zeros.

    Libraries choose how to sum by the number of rows; with one number, a row's result depends on that row alone.
    """
    token = _row_block.set(block)
    try:
        yield
    finally:
        _row_block.reset(token)


class Linear:
    """y = x W^T + b. `pack` reorders W for this CPU's bf16 kernels; the products keep their values."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None):
        """`weight` is [outputs, inputs], `bias` [outputs]."""
        self.weight = weight
        self.bias = bias
        self._packed = False

    def pack(self) -> "Linear":
        """Replace the weight by oneDNN's own blocked layout where that is faster: bf16 on a CPU.

        Measured on a 2-core EPYC, hidden size 576: 650 to 280 microseconds a layer for 1 row, 1,024 to 690 for 32,
        2 to 7 % for 512. The operators are those torch.compile emits; where torch lacks them nothing changes.
        """
        weight = self.weight
        if self._packed or weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
            return self
        try:
            with torch.inference_mode():
                packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
                torch.ops.mkldnn._linear_pointwise(weight[:1], packed, self.bias, "none", [], "")
        except (AttributeError, RuntimeError, NotImplementedError):
            return self
        self.weight, self._packed = packed, True
        return self

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, inputs] -> [n, outputs]."""
        block = _row_block.get()
        if block is None:
            return self._multiply(rows)
        count = rows.shape[0]
        padded = functional.pad(rows, (0, 0, 0, -count % block))
        return torch.cat([self._multiply(part) for part in padded.split(block)])[:count]

    def _multiply(self, rows: Tensor) -> Tensor:
        if self._packed:
            return torch.ops.mkldnn._linear_pointwise(rows, self.weight, self.bias, "none", [], "")
        return functional.linear(rows, self.weight, self.bias)


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

    def vector(name: str, size: int) -> Tensor:
        slots[name] = torch.empty(size, dtype=dtype, device=device)
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
    layers = []
    for index in range(config.layers):
        attention, mlp = f"model.layers.{index}.self_attn.", f"model.layers.{index}.mlp."
        qkv_parts = {"q_proj": query_size, "k_proj": kv_size, "v_proj": kv_size}
        gate_up_parts = {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size}
        layers.append(
            LayerWeights(
                attention_norm=vector(f"model.layers.{index}.input_layernorm.weight", hidden),
                qkv=fused(attention, qkv_parts, hidden, config.qkv_bias),
                output=fused(attention, {"o_proj": hidden}, query_size, config.output_bias),
                mlp_norm=vector(f"model.layers.{index}.post_attention_layernorm.weight", hidden),
                gate_up=fused(mlp, gate_up_parts, hidden, config.mlp_bias),
                down=fused(mlp, {"down_proj": hidden}, config.intermediate_size, config.mlp_bias),
                query_norm=vector(f"{attention}q_norm.weight", head_size) if config.qk_norm else None,
                key_norm=vector(f"{attention}k_norm.weight", head_size) if config.qk_norm else None,
            )
        )
    final_norm = vector("model.norm.weight", hidden)
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
