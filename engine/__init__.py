"""A radix-cached LLM engine for CPU and GPU."""
