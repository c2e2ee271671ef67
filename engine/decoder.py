"""The forward pass of Llama, Mistral, Qwen2 and Qwen3; attention itself is the caller's."""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as functional
from torch import Tensor

from engine.model_config import ModelConfig
from engine.rotary import Rotary, rotate
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
        """`weights` becomes the decoder's own: on a CPU its bf16 matrices are reordered in place for speed."""
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

    def forward(self, token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states after the final norm, [T, hidden_size], of tokens `token_ids` [T] at `positions` [T] (int64).

        `attend` is called once a layer, in order.
        """
        hidden = functional.embedding(token_ids, self.weights.embedding)
        cosine, sine = self._rotary.angles(positions)
        for index, layer in enumerate(self.weights.layers):
            hidden += self._attention(index, layer, self._norm(hidden, layer.attention_norm), cosine, sine, attend)
            hidden += self._mlp(layer, self._norm(hidden, layer.mlp_norm))
        return self._norm(hidden, self.weights.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """fp32 [n, vocabulary_size] for rows of `forward`'s result, `hidden` [n, hidden_size].

        Pass only the rows that need a token: the head is the model's widest product.
        """
        return self.weights.head(hidden).float()

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
        return layer.output(attended.reshape(tokens, self._query_size))

    def _mlp(self, layer: LayerWeights, normed: Tensor) -> Tensor:
        gate, up = layer.gate_up(normed).chunk(2, dim=-1)
        return layer.down(self._activate(gate).mul_(up))

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        """RMSNorm over the last dimension (Zhang and Sennrich, 2019): fp32 inside, the dtype of `rows` outside."""
        return functional.rms_norm(rows, (weight.shape[0],), weight, self.config.norm_epsilon)
