"""Models for tests: tiny random ones of every family, the converted default model, and a plain attention."""

import atexit
import contextlib
import functools
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from engine.embedded_model import EMBEDDED_NAME
from engine.model_config import ModelConfig
from engine.model_source import ModelFolder, resolve_model

_SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32}

TINY_CONFIGS = {
    "llama-tied": lambda: LlamaConfig(**_SHAPE, tie_word_embeddings=True),
    "llama-biases-llama3": lambda: LlamaConfig(
        **_SHAPE, head_dim=12, attention_bias=True, mlp_bias=True, rope_parameters=dict(_LLAMA3)
    ),
    "llama-linear": lambda: LlamaConfig(
        **_SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}
    ),
    "mistral-window": lambda: MistralConfig(**_SHAPE, head_dim=16, sliding_window=7),
    "mistral-gelu": lambda: MistralConfig(**_SHAPE, sliding_window=None, hidden_act="gelu_pytorch_tanh"),
    "qwen2-windows": lambda: Qwen2Config(
        **_SHAPE, use_sliding_window=True, sliding_window=5, max_window_layers=1, tie_word_embeddings=True
    ),
    "qwen2-yarn": lambda: Qwen2Config(**_SHAPE, rope_parameters=dict(_YARN)),
    "qwen3": lambda: Qwen3Config(**_SHAPE, head_dim=16),
    "gemma3": lambda: Gemma3TextConfig(
        **{**_SHAPE, "num_hidden_layers": 4},
        head_dim=16,
        query_pre_attn_scalar=24,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention"] * 2,
        final_logit_softcapping=3.0,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
    "gemma3-defaults": lambda: Gemma3TextConfig(**{**_SHAPE, "num_hidden_layers": 6}, head_dim=32, sliding_window=200),
    "qwen3-layer-types": lambda: Qwen3Config(
        **_SHAPE,
        head_dim=16,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
}


def tiny_transformers_model(name: str) -> Any:
    """The transformers model of TINY_CONFIGS[name] in fp32, every parameter random (norms and biases too)."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(TINY_CONFIGS[name](), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save_tiny_model(name: str, folder: Path, **options: Any) -> Any:
    """Write the tiny model and a byte tokenizer to `folder`; returns the transformers model."""
    model = tiny_transformers_model(name)
    model.save_pretrained(folder, **options)
    byte_tokenizer().save_pretrained(folder)
    return model


def byte_tokenizer(surplus_tokens: int = 0) -> PreTrainedTokenizerFast:
    """Ids 0 to 2 are <pad>, <s>, </s>, then one id a byte, then `surplus_tokens` unused ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<pad>", "<s>", "</s>", *alphabet, *(f"<unused{index}>" for index in range(surplus_tokens))]
    backend = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


class PlainAttention:
    """An `attend` for one sequence: keeps every key and value, and masks by position and window. fp32, unhurried."""

    def __init__(self, config: ModelConfig):
        self.config = config
        self.keys: list[list[Tensor]] = [[] for _ in range(config.layers)]
        self.values: list[list[Tensor]] = [[] for _ in range(config.layers)]

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As `engine.decoder.Attend`; the queries are the newest tokens of the sequence."""
        config = self.config
        self.keys[layer].append(key.clone())
        self.values[layer].append(value.clone())
        shared = config.heads // config.kv_heads
        keys = torch.cat(self.keys[layer]).repeat_interleave(shared, dim=1)
        values = torch.cat(self.values[layer]).repeat_interleave(shared, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * config.attention_scale
        key_positions = torch.arange(keys.shape[0])
        distance = key_positions[-query.shape[0] :, None] - key_positions
        hidden = distance < 0
        if (window := config.windows[layer]) is not None:
            hidden |= distance >= window
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(dim=-1), values)


@contextlib.contextmanager
def no_network() -> Iterator[list[Any]]:
    """Inside, every try to connect or to look up a host fails and is noted in the list."""
    attempts: list[Any] = []

    def refuse(*arguments: Any, **_: Any) -> None:
        attempts.append(arguments)
        raise OSError("no network in this test")

    with (
        mock.patch.object(socket.socket, "connect", refuse),
        mock.patch.object(socket.socket, "connect_ex", refuse),
        mock.patch.object(socket, "getaddrinfo", refuse),
    ):
        yield attempts


@functools.cache
def converted_smollm2() -> tuple[ModelFolder, Path, list[Any]]:
    """The default model, converted afresh once a test run: (model, cache folder, connections tried meanwhile)."""
    cache = Path(tempfile.mkdtemp(prefix="docqa-test-cache-"))
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    with mock.patch.dict(os.environ, {"DOCQA_CACHE": str(cache)}), no_network() as attempts:
        return resolve_model(EMBEDDED_NAME), cache, attempts
