"""How much memory the KV of a model takes. Plain arithmetic: planning uses it without torch."""

from engine.model_config import ModelConfig


def kv_page_bytes(config: ModelConfig, page_size: int, bytes_per_value: int) -> int:
    """Bytes of one page: keys and values of every layer and KV head, `page_size` tokens."""
    return 2 * config.layers * config.kv_heads * config.head_size * page_size * bytes_per_value


def kv_pages_in(memory_bytes: int, config: ModelConfig, page_size: int, bytes_per_value: int) -> int:
    """How many whole pages fit into `memory_bytes` beside the null page; may be below 1."""
    return memory_bytes // kv_page_bytes(config, page_size, bytes_per_value) - 1
