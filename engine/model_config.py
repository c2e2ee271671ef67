"""What the decoder needs to know of a model: its `config.json`, checked once, and which files hold its weights."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError

SUPPORTED_FAMILIES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "gemma3_text": "Gemma 3 (text only)",
}
SUPPORTED_ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh")
SUPPORTED_ROPE_KINDS = ("default", "linear", "llama3", "yarn")

# The configuration classes of transformers give these when config.json leaves the key out.
_HEAD_SIZES = {"qwen3": 128, "gemma3_text": 256}
_MISTRAL_WINDOW = 4096
_GEMMA_WINDOW = 4096
_GEMMA_WINDOW_PATTERN = 6  # every sixth layer sees everything
_GEMMA_THETAS = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """How positions become angles. `engine.rotary` says what each kind does with these numbers.

    `cosine_scale` multiplies cosine and sine alike (yarn's attention factor; 1.0 otherwise).
    """

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    original_context_length: int = 0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    cosine_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and variants of one decoder-only model.

    `windows` and `ropes` have one entry a layer. A window of None attends to everything before a token, a number W to
    the last W keys, the token's own among them. A soft cap c turns values x into c tanh(x / c). `stored_dtype` is what
    config.json says of the weights ("bfloat16", ...).
    """

    architecture: str
    vocabulary_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate_size: int
    norm_epsilon: float
    attention_scale: float
    windows: tuple[int | None, ...]
    ropes: tuple[RopeConfig, ...]
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    context_length: int
    activation: str
    stored_dtype: str
    embedding_scale: float = 1.0
    sandwich_norms: bool = False  # attention and MLP are normed before and after
    norm_offset: float = 0.0  # added to the stored weights of every norm
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None

    @property
    def rope(self) -> RopeConfig:
        """The rotary positions of the layers that see everything: those of the last layer."""
        return self.ropes[-1]

    @classmethod
    def from_folder(cls, folder: Path | str) -> "ModelConfig":
        """Read `config.json` of a Hugging Face folder. Raises ModelError if it is missing or not supported."""
        path = Path(folder) / "config.json"
        return cls.from_dict(read_json_object(path), where=str(path))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "config.json") -> "ModelConfig":
        """Check `values`, the content of a `config.json`; `where` names it in messages."""
        architecture = values.get("model_type")
        if architecture not in SUPPORTED_FAMILIES:
            families = ", ".join(SUPPORTED_FAMILIES.values())
            raise ModelError(
                f"{where}: model_type {architecture!r} is not supported; choose a model of these families: {families}."
            )
        _refuse_other_heads_and_quantisation(values, where)
        reader = _Reader(values, where)
        hidden_size = reader.positive_integer("hidden_size")
        heads = reader.positive_integer("num_attention_heads")
        kv_heads = reader.positive_integer("num_key_value_heads", default=heads)
        if heads % kv_heads:
            raise ModelError(
                f"{where}: num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads}); "
                "the file is damaged or belongs to another model."
            )
        head_size = reader.positive_integer("head_dim", default=_HEAD_SIZES.get(architecture, hidden_size // heads))
        if head_size % 2:
            raise ModelError(f"{where}: head_dim is {head_size}, but rotary positions need an even one.")
        layers = reader.positive_integer("num_hidden_layers")
        context_length = reader.positive_integer("max_position_embeddings")
        is_gemma = architecture == "gemma3_text"
        activation_key = "hidden_activation" if is_gemma else "hidden_act"
        activation = values.get(activation_key) or ("gelu_pytorch_tanh" if is_gemma else "silu")
        if activation not in SUPPORTED_ACTIVATIONS:
            raise ModelError(
                f"{where}: {activation_key} {activation!r} is not supported; it must be one of "
                f"{', '.join(SUPPORTED_ACTIVATIONS)}."
            )
        attention_bias = bool(values.get("attention_bias", False))
        if is_gemma and values.get("use_bidirectional_attention"):
            raise ModelError(f"{where}: use_bidirectional_attention makes this no model that writes text.")
        scalar = reader.number("query_pre_attn_scalar", default=256) if is_gemma else head_size
        return cls(
            architecture=architecture,
            vocabulary_size=reader.positive_integer("vocab_size"),
            hidden_size=hidden_size,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_size=head_size,
            intermediate_size=reader.positive_integer("intermediate_size"),
            norm_epsilon=reader.number("rms_norm_eps", default=1e-6),
            attention_scale=scalar**-0.5,
            windows=_windows(values, architecture, layers, context_length, where),
            ropes=_ropes(values, architecture, layers, context_length, where),
            # Qwen2 always has biases on q, k and v and never on the output; Mistral never has any.
            qkv_bias=architecture == "qwen2" or (attention_bias and architecture != "mistral"),
            output_bias=attention_bias and architecture in ("llama", "qwen3", "gemma3_text"),
            mlp_bias=bool(values.get("mlp_bias", False)) and architecture == "llama",
            qk_norm=architecture in ("qwen3", "gemma3_text"),
            tied_embeddings=bool(values.get("tie_word_embeddings", is_gemma)),
            context_length=context_length,
            activation=activation,
            stored_dtype=str(values.get("dtype") or values.get("torch_dtype") or "float32"),
            embedding_scale=hidden_size**0.5 if is_gemma else 1.0,
            sandwich_norms=is_gemma,
            norm_offset=1.0 if is_gemma else 0.0,
            attention_soft_cap=reader.optional_number("attn_logit_softcapping") if is_gemma else None,
            logit_soft_cap=reader.optional_number("final_logit_softcapping") if is_gemma else None,
        )


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file at `path`; ModelError names the file if there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; point model.path at a complete Hugging Face model folder.") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} can't be read as JSON ({error}); download the model again.") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds no JSON object; download the model again.")
    return values


def safetensors_files(folder: Path | str) -> list[Path]:
    """The weight files of a Hugging Face folder: those its index names, else `model.safetensors`.

    Other safetensors beside them (adapters, Mistral's `consolidated`) are not the model's. Raises ModelError.
    """
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelError(f"{index} has no weight_map; download the model again.")
        names = sorted({str(name) for name in weight_map.values()})
        if any(Path(name).name != name for name in names):
            raise ModelError(f"{index} names files outside its folder; download the model again.")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelError(f"{folder} lacks {name_some(missing)}, named in its index; download the model again.")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    raise ModelError(f"{folder} has no model.safetensors and no model.safetensors.index.json; convert it to these.")


def name_some(names: list[str], limit: int = 5) -> str:
    """The first names of a list for a message, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


class _Reader:
    """Reads numbers out of a config and names key and file when they are wrong."""

    def __init__(self, values: Mapping[str, Any], where: str):
        self.values = values
        self.where = where

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ModelError(
                f"{self.where}: {key} must be a positive number, not {self.values.get(key)!r}; check the model's files."
            )
        return value

    def optional_number(self, key: str) -> float | None:
        return None if self.values.get(key) is None else self.number(key)

    def positive_integer(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if value != int(value):
            raise ModelError(f"{self.where}: {key} must be a whole number, not {value!r}; check the model's files.")
        return int(value)


def _refuse_other_heads_and_quantisation(values: Mapping[str, Any], where: str) -> None:
    names = values.get("architectures") or []
    if names and not any(str(name).endswith("ForCausalLM") for name in names):
        raise ModelError(f"{where}: {names[0]} can't write text; choose a model whose architecture is ...ForCausalLM.")
    quantization = values.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else "unknown"
        raise ModelError(
            f"{where}: the weights are quantised ({method}), which is not supported; use the model's bf16 or fp16 "
            "folder, or a GGUF file of it."
        )


def _windows(
    values: Mapping[str, Any], architecture: str, layers: int, context_length: int, where: str
) -> tuple[int | None, ...]:
    """The sliding window of each layer, by the rules of the configuration classes of transformers."""
    window = None
    if architecture == "mistral":
        window = values.get("sliding_window", _MISTRAL_WINDOW)
    elif architecture == "gemma3_text":
        window = values.get("sliding_window", _GEMMA_WINDOW)
    elif architecture in ("qwen2", "qwen3") and values.get("use_sliding_window", False):
        window = values.get("sliding_window", 4096)
    # A window as long as the context hides nothing: without it the cheaper unwindowed path is taken.
    if window is None or window >= context_length:
        return (None,) * layers
    if not isinstance(window, int) or window < 1:
        raise ModelError(f"{where}: sliding_window must be a positive whole number, not {window!r}.")
    if architecture == "mistral":
        return (window,) * layers
    kinds = _layer_types(values, architecture, layers, where)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _layer_types(values: Mapping[str, Any], architecture: str, layers: int, where: str) -> list[str]:
    """Which layers slide, of the families where some do: given, or Qwen's later layers, or all but Gemma's nth."""
    layer_types = values.get("layer_types")
    if layer_types is None:
        if architecture == "gemma3_text":
            pattern = _Reader(values, where).positive_integer("sliding_window_pattern", default=_GEMMA_WINDOW_PATTERN)
            slides = [(layer + 1) % pattern != 0 for layer in range(layers)]
        else:
            first_windowed = values.get("max_window_layers", 28)
            slides = [layer >= first_windowed for layer in range(layers)]
        return ["sliding_attention" if slide else "full_attention" for slide in slides]
    if len(layer_types) != layers or set(layer_types) - {"sliding_attention", "full_attention"}:
        raise ModelError(
            f"{where}: layer_types must name sliding_attention or full_attention for each of the {layers} layers."
        )
    return list(layer_types)


def _ropes(
    values: Mapping[str, Any], architecture: str, layers: int, context_length: int, where: str
) -> tuple[RopeConfig, ...]:
    """The rotary settings of each layer: one for all, but Gemma's sliding layers have their own.

    Gemma's are `rope_parameters` by kind of layer (transformers 5), or `rope_theta` with `rope_scaling` and
    `rope_local_base_freq` (before).
    """
    if architecture != "gemma3_text":
        return (_rope(values, context_length, where),) * layers
    given = values.get("rope_parameters") or {}
    by_kind = {}
    for kind, theta_key in (("full_attention", "rope_theta"), ("sliding_attention", "rope_local_base_freq")):
        parameters = given.get(kind) if isinstance(given, dict) else given
        if parameters is not None and not isinstance(parameters, dict):
            raise ModelError(f"{where}: rope_parameters must have an object for {kind}, not {parameters!r}.")
        settings = dict(parameters or {})
        if parameters is None and kind == "full_attention":
            settings.update(values.get("rope_scaling") or {})
        if settings.get("rope_theta") is None:
            settings["rope_theta"] = values.get(theta_key) or _GEMMA_THETAS[kind]
        by_kind[kind] = _rope({"rope_parameters": settings}, context_length, where)
    return tuple(by_kind[kind] for kind in _layer_types(values, architecture, layers, where))


def _rope(values: Mapping[str, Any], context_length: int, where: str) -> RopeConfig:
    """Rotary settings from `rope_parameters` (transformers 5) or `rope_theta` with `rope_scaling` (before)."""
    settings: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        part = values.get(key)
        if part is not None and not isinstance(part, dict):
            raise ModelError(f"{where}: {key} must be an object or null, not {part!r}.")
        settings.update(part or {})
    if settings.get("rope_theta") is None:
        settings["rope_theta"] = values.get("rope_theta")
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if kind not in SUPPORTED_ROPE_KINDS:
        reason = "its angles change with the length of the text, so cached keys could not be reused"
        raise ModelError(
            f"{where}: rope_type {kind!r} is not supported"
            + (f" ({reason})" if kind in ("dynamic", "longrope", "su") else "")
            + f"; supported are {', '.join(SUPPORTED_ROPE_KINDS)}."
        )
    if (settings.get("partial_rotary_factor") or values.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ModelError(f"{where}: partial_rotary_factor is not supported; the whole head must be rotated.")
    reader = _Reader(settings, where)
    theta = reader.number("rope_theta", default=10_000.0)
    if kind == "default":
        return RopeConfig(theta=theta)
    original = reader.positive_integer(
        "original_max_position_embeddings", default=values.get("original_max_position_embeddings") or context_length
    )
    factor = reader.number("factor", default=context_length / original if kind == "yarn" else None)
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            kind=kind,
            factor=factor,
            original_context_length=original,
            low_frequency_factor=reader.number("low_freq_factor"),
            high_frequency_factor=reader.number("high_freq_factor"),
        )
    if kind == "linear":
        return RopeConfig(theta=theta, kind=kind, factor=factor)
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=factor,
        original_context_length=original,
        beta_fast=reader.number("beta_fast", default=32.0),
        beta_slow=reader.number("beta_slow", default=1.0),
        truncate=bool(settings.get("truncate", True)),
        cosine_scale=_yarn_cosine_scale(settings, factor),
    )


def _yarn_cosine_scale(settings: Mapping[str, Any], factor: float) -> float:
    """Yarn's attention factor: 0.1 ln(s) + 1 (Peng et al., YaRN, section 3.4), or as the config overrides it."""

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    given = settings.get("attention_factor")
    if given is not None:
        return float(given)
    weight, weight_all = settings.get("mscale"), settings.get("mscale_all_dim")
    return scale(weight) / scale(weight_all) if weight and weight_all else scale(1.0)
