"""The forward pass of Llama, Mistral, Qwen2, Qwen3 and Gemma 3; attention itself is the caller's."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as functional
from torch import Tensor

from engine.linear import Linear
from engine.model_config import ModelConfig
from engine.native.row_operations import rotate
from engine.rotary import Rotary
from engine.row_operations import RowOperations, choose_row_operations
from engine.weights import DecoderWeights, LayerWeights

# (layer, query [T, heads, head_size], key [T, kv_heads, head_size], value, as key) -> [T, heads, head_size].
# It writes key and value to the cache and attends; the tensors are its own to keep until the layer ends.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@runtime_checkable
class RotatingAttend(Protocol):
    """An `Attend` that can also take the heads before their norms and rotation, and do those itself."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See `Attend`."""

    def rotate_and_attend(
        self,
        layer: int,
        heads: Tensor,
        cosine: Tensor,
        sine: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        epsilon: float,
    ) -> Tensor:
        """`heads` [T, heads + 2 kv_heads, head_size] are queries, keys and values; `cosine` and `sine` those of
        `Rotary.angles`, `norms` the weights of query and key norms. Returns [T, heads, head_size]."""


class Decoder:
    """A decoder-only transformer over a flat list of tokens that may belong to many rows.

    Call it under `torch.inference_mode()`. It keeps nothing between calls.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights, operations: RowOperations | None = None):
        """`weights` becomes the decoder's own: its matrices are reordered for the native kernel where that runs."""
        self.config = config
        self.weights = weights
        self._operations = operations or choose_row_operations(weights.device)
        ropes = list(dict.fromkeys(config.ropes))
        self._rotaries = [Rotary(rope, config.head_size, weights.device) for rope in ropes]
        self._rotary_of_layer = [ropes.index(rope) for rope in config.ropes]
        # Rounded as the embedding is, which is how the models were trained.
        self._embedding_scale = float(torch.tensor(config.embedding_scale, dtype=weights.dtype))
        self._query_size = config.heads * config.head_size
        self._kv_size = config.kv_heads * config.head_size
        for layer in weights.layers:
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
                linear.pack()
        weights.head.pack()

    def forward(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, needed_rows: Tensor | None = None
    ) -> Tensor:
        """Hidden states after the final norm of tokens `token_ids` [T] at `positions` [T] (int64).

        Of all T rows, [T, hidden_size], or of `needed_rows` [n] only: past the last layer's keys and values, nothing
        is computed for the others. `attend` is called once a layer, in order.
        """
        hidden = functional.embedding(token_ids, self.weights.embedding)
        if self._embedding_scale != 1.0:
            hidden *= self._embedding_scale
        angles = [rotary.angles(positions) for rotary in self._rotaries]
        attention: Callable[..., Tensor] = (
            self._fused_attention if isinstance(attend, RotatingAttend) else self._attention
        )
        addend = None
        last = self.config.layers - 1
        for index, layer in enumerate(self.weights.layers):
            normed = self._add_norm(hidden, addend, layer.attention_norm)
            attended = attention(index, layer, normed, *angles[self._rotary_of_layer[index]], attend)
            if index == last and needed_rows is not None:
                attended, hidden = attended[needed_rows], hidden[needed_rows]
            addend = self._output_norm(layer.output(attended), layer.attention_output_norm)
            addend = self._mlp(layer, self._add_norm(hidden, addend, layer.mlp_norm))
            addend = self._output_norm(addend, layer.mlp_output_norm)
        return self._add_norm(hidden, addend, self.weights.final_norm)

    @property
    def has_partial_logits(self) -> bool:
        """Whether the head's rows can be picked, and should: a tied head has them in the embedding, others only
        reordered, and a GPU has all logits sooner than it could pick rows."""
        return self.config.tied_embeddings and self.weights.device.type == "cpu"

    @property
    def partial_logits_are_exact(self) -> bool:
        """Whether logits of some tokens have the same bits as among those of all."""
        return self.weights.head.is_packed

    def logits(self, hidden: Tensor, token_ids: Tensor | None = None) -> Tensor:
        """fp32 [n, vocabulary_size] for rows of `forward`'s result, `hidden` [n, hidden_size].

        Pass only the rows that need a token: the head is the model's widest product. With `token_ids` [m], if
        `has_partial_logits`, only these tokens' logits are computed: [n, m].
        """
        head = self.weights.head
        if token_ids is not None:
            head = Linear(self.weights.embedding[token_ids])
            if self.weights.head.is_packed:
                head.pack()
        logits = head(hidden, torch.float32)
        cap = self.config.logit_soft_cap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)

    def _attention(
        self, index: int, layer: LayerWeights, normed: Tensor, cosine: Tensor, sine: Tensor, attend: Attend
    ) -> Tensor:
        config, tokens = self.config, normed.shape[0]
        query_key, value = layer.qkv(normed).split((self._query_size + self._kv_size, self._kv_size), dim=-1)
        # Query and key heads lie side by side, so one rotation turns both.
        heads = query_key.view(tokens, config.heads + config.kv_heads, config.head_size)
        if layer.query_norm is None or layer.key_norm is None:
            query, key = rotate(heads, cosine, sine).split((config.heads, config.kv_heads), dim=1)
        else:
            query, key = heads.split((config.heads, config.kv_heads), dim=1)
            query = rotate(self._norm(query, layer.query_norm), cosine, sine)
            key = rotate(self._norm(key, layer.key_norm), cosine, sine)
        attended = attend(index, query, key, value.view(tokens, config.kv_heads, config.head_size))
        return attended.reshape(tokens, self._query_size)

    def _fused_attention(
        self, index: int, layer: LayerWeights, normed: Tensor, cosine: Tensor, sine: Tensor, attend: RotatingAttend
    ) -> Tensor:
        config, tokens = self.config, normed.shape[0]
        norms = None
        if layer.query_norm is not None and layer.key_norm is not None:
            norms = layer.query_norm, layer.key_norm
        heads = layer.qkv(normed).view(tokens, config.heads + 2 * config.kv_heads, config.head_size)
        attended = attend.rotate_and_attend(index, heads, cosine, sine, norms, config.norm_epsilon)
        return attended.view(tokens, self._query_size)

    def _mlp(self, layer: LayerWeights, normed: Tensor) -> Tensor:
        return layer.down(self._operations.gate(layer.gate_up(normed), self.config.activation))

    def _add_norm(self, hidden: Tensor, addend: Tensor | None, weight: Tensor) -> Tensor:
        """Add `addend` to `hidden` in place, and norm the sum."""
        return self._operations.add_rms_norm(hidden, addend, weight, self.config.norm_epsilon)

    def _output_norm(self, addend: Tensor, weight: Tensor | None) -> Tensor:
        return addend if weight is None else self._add_norm(addend, None, weight)

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm over the last dimension (Zhang and Sennrich, 2019): fp32 inside, the dtype of `rows` outside."""
        if weight.dtype != rows.dtype:
            return functional.rms_norm(rows.float(), weight.shape, weight, self.config.norm_epsilon).to(rows.dtype)
        return functional.rms_norm(rows, (weight.shape[0],), weight, self.config.norm_epsilon)
