"""The forward pass of Llama, Mistral, Qwen2 and Qwen3; attention itself is the caller's."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as functional
from torch import Tensor

from engine.linear import Linear
from engine.model_config import ModelConfig
from engine.native.row_operations import add_rms_norm, rotate, silu_multiply
from engine.rotary import Rotary
from engine.weights import DecoderWeights, LayerWeights

# (layer, query [T, heads, head_size], key [T, kv_heads, head_size], value, as key) -> [T, heads, head_size].
# It writes key and value to the cache and attends; the tensors are its own to keep until the layer ends.
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "swish": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
}


class Decoder:
    """A decoder-only transformer over a flat list of tokens that may belong to many rows.

    Call it under `torch.inference_mode()`. It keeps nothing between calls.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights):
        """`weights` becomes the decoder's own: its matrices are reordered for the native kernel where that runs."""
        self.config = config
        self.weights = weights
        self._rotary = Rotary(config.rope, config.head_size, weights.device)
        self._activate = _ACTIVATIONS[config.activation]
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
        cosine, sine = self._rotary.angles(positions)
        addend = None
        last = self.config.layers - 1
        for index, layer in enumerate(self.weights.layers):
            normed = self._add_norm(hidden, addend, layer.attention_norm)
            attended = self._attention(index, layer, normed, cosine, sine, attend)
            if index == last and needed_rows is not None:
                attended, hidden = attended[needed_rows], hidden[needed_rows]
            addend = self._mlp(layer, self._add_norm(hidden, layer.output(attended), layer.mlp_norm))
        return self._add_norm(hidden, addend, self.weights.final_norm)

    @property
    def has_partial_logits(self) -> bool:
        """Whether the head's rows can be picked: a tied head has them in the embedding, others only reordered."""
        return self.config.tied_embeddings

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
        return head(hidden, torch.float32)

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

    def _mlp(self, layer: LayerWeights, normed: Tensor) -> Tensor:
        gate_up = layer.gate_up(normed)
        if self.config.activation in ("silu", "swish"):
            return layer.down(silu_multiply(gate_up))
        gate, up = gate_up.chunk(2, dim=-1)
        return layer.down(self._activate(gate).mul_(up))

    def _add_norm(self, hidden: Tensor, addend: Tensor | None, weight: Tensor) -> Tensor:
        """Add `addend` to `hidden` in place, and norm the sum."""
        return add_rms_norm(hidden, addend, weight, self.config.norm_epsilon)

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm over the last dimension (Zhang and Sennrich, 2019): fp32 inside, the dtype of `rows` outside."""
        return functional.rms_norm(rows, (weight.shape[0],), weight, self.config.norm_epsilon)
