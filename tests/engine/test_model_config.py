import pytest

from engine.errors import ModelError
from engine.model_config import ModelConfig, RopeConfig
from tests.engine.tiny_models import TINY_CONFIGS

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}


def config(**changes):
    return ModelConfig.from_dict({**LLAMA, **changes})


def test_llama_fields_and_defaults():
    read = config()
    assert (read.heads, read.kv_heads, read.head_size, read.layers) == (8, 2, 8, 4)
    assert read.attention_scale == pytest.approx(8**-0.5)
    assert read.windows == (None,) * 4
    assert not any((read.qkv_bias, read.output_bias, read.mlp_bias, read.qk_norm, read.tied_embeddings))
    assert read.rope == RopeConfig(theta=10_000.0)
    assert config(num_key_value_heads=None).kv_heads == 8


def test_biases_follow_the_family():
    assert config(attention_bias=True).output_bias
    assert config(mlp_bias=True).mlp_bias
    qwen2 = config(model_type="qwen2")
    assert qwen2.qkv_bias
    assert not qwen2.output_bias
    assert config(model_type="qwen3").qk_norm


def test_head_size_of_qwen3_defaults_to_its_class():
    assert config(model_type="qwen3").head_size == 128
    assert config(model_type="qwen3", head_dim=32).head_size == 32


def test_windows():
    assert config(model_type="mistral", sliding_window=1024).windows == (1024,) * 4
    assert config(model_type="mistral", sliding_window=None).windows == (None,) * 4
    assert config(model_type="mistral", sliding_window=4096).windows == (None,) * 4, "as long as the context"
    qwen = {"model_type": "qwen2", "sliding_window": 512, "max_window_layers": 3}
    assert config(**qwen, use_sliding_window=True).windows == (None, None, None, 512)
    assert config(**qwen, use_sliding_window=False).windows == (None,) * 4
    kinds = ["sliding_attention", "full_attention"] * 2
    assert config(**qwen, use_sliding_window=True, layer_types=kinds).windows == (512, None, 512, None)
    with pytest.raises(ModelError, match="layer_types"):
        config(**qwen, use_sliding_window=True, layer_types=["other"] * 4)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("default", {}),
        ("linear", {"factor": 2.0}),
        ("yarn", {"factor": 4.0, "original_max_position_embeddings": 1024, "beta_fast": 16}),
        ("llama3", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    ],
)
def test_rope_old_and_new_spelling_agree(kind, more):
    new = config(rope_parameters={"rope_type": kind, "rope_theta": 5e5, **more})
    scaling = None if kind == "default" else {"type": kind, **more}
    old = config(rope_theta=5e5, rope_scaling=scaling)
    assert old.rope == new.rope
    assert new.rope.theta == 5e5
    assert new.rope.kind == kind


def test_yarn_scale():
    assert config(rope_scaling={"type": "yarn", "factor": 4.0}).rope.cosine_scale == pytest.approx(1.138629)
    given = config(rope_scaling={"type": "yarn", "factor": 4.0, "attention_factor": 1.5})
    assert given.rope.cosine_scale == 1.5


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "mrope"])
def test_other_rope_kinds_are_refused(kind):
    with pytest.raises(ModelError, match=f"{kind}.*supported are default, linear, llama3, yarn"):
        config(rope_scaling={"type": kind, "factor": 2.0})


def test_partial_rotary_is_refused():
    with pytest.raises(ModelError, match="partial_rotary_factor"):
        config(partial_rotary_factor=0.5)


def test_unknown_family_lists_the_supported():
    with pytest.raises(ModelError, match=r"'gpt2'.*Llama, Mistral, Qwen2, Qwen3"):
        config(model_type="gpt2")


def test_auto_map_of_a_known_family_is_ignored():
    assert config(auto_map={"AutoModelForCausalLM": "evil.Model"}) == config()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size must be a positive number"),
        ({"num_hidden_layers": 2.5}, "whole number"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"head_dim": 7}, "even"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "can't write text"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
    ],
)
def test_mistakes_name_the_key(changes, message):
    with pytest.raises(ModelError, match=message):
        config(**changes)


def test_missing_and_damaged_file(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="can't be read as JSON"):
        ModelConfig.from_folder(tmp_path)


def test_gemma_3_in_its_old_and_new_spelling():
    gemma = {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "num_hidden_layers": 12,
        "head_dim": 16,
        "sliding_window": 512,
        "query_pre_attn_scalar": 64,
    }
    old = config(**gemma, rope_theta=2e6, rope_local_base_freq=5e3, rope_scaling={"rope_type": "linear", "factor": 8.0})
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    parameters = {
        "full_attention": {"rope_type": "linear", "rope_theta": 2e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
    }
    assert config(**gemma, layer_types=kinds * 2, rope_parameters=parameters) == old
    assert old.windows == ((512,) * 5 + (None,)) * 2
    assert [rope.theta for rope in old.ropes] == ([5e3] * 5 + [2e6]) * 2
    assert old.rope == RopeConfig(theta=2e6, kind="linear", factor=8.0)
    assert old.attention_scale == 0.125
    assert old.embedding_scale == 8.0
    assert old.tied_embeddings
    assert old.activation == "gelu_pytorch_tanh"
    assert (old.attention_soft_cap, old.logit_soft_cap) == (None, None)
    capped = config(**gemma, attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    assert (capped.attention_soft_cap, capped.logit_soft_cap) == (50.0, 30.0)
    assert [rope.theta for rope in capped.ropes[4:6]] == [1e4, 1e6]
    with pytest.raises(ModelError, match="use_bidirectional_attention"):
        config(**gemma, use_bidirectional_attention=True)


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_files_of_transformers_are_read(name, tmp_path):
    theirs = TINY_CONFIGS[name]()
    theirs.save_pretrained(tmp_path)
    ours = ModelConfig.from_folder(tmp_path)
    assert ours.architecture == theirs.model_type
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    parameters = theirs.rope_parameters
    assert ours.rope.theta == parameters.get("full_attention", parameters)["rope_theta"]
    assert ours.context_length == 128
