"""How much memory the KV of a model takes. Plain arithmetic: planning uses it without torch."""

from engine.model_config import ModelConfig

SCALE_BYTES = 4
"""Values of one byte come with an fp32 scale for each token and KV head, see `engine.kv_quantization`."""


def kv_value_bytes(kv_dtype: str, model_value_bytes: int) -> int:
    """Bytes of a cached value: `kv_dtype` is "auto", which is as the model computes, or a format of 8 bits."""
    return model_value_bytes if kv_dtype == "auto" else 1


def kv_page_bytes(config: ModelConfig, page_size: int, bytes_per_value: int) -> int:
    """Bytes of one page: keys and values of every layer and KV head, `page_size` tokens."""
    head_bytes = config.head_size * bytes_per_value + (SCALE_BYTES if bytes_per_value == 1 else 0)
    return 2 * config.layers * config.kv_heads * head_bytes * page_size


def kv_pages_in(memory_bytes: int, config: ModelConfig, page_size: int, bytes_per_value: int) -> int:
    """How many whole pages fit into `memory_bytes` beside the null page; may be below 1."""
    return memory_bytes // kv_page_bytes(config, page_size, bytes_per_value) - 1
