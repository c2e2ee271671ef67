import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelError
from engine.model_config import ModelConfig
from engine.weights import load_weights, random_weights
from tests.engine.tiny_models import save_tiny_model


def load(folder, dtype=torch.float32):
    return load_weights(folder, ModelConfig.from_folder(folder), dtype)


def edit(folder, change):
    """Rewrite model.safetensors with its dict of tensors changed."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_fused_matrices_hold_the_parts_in_order(tmp_path):
    model = save_tiny_model("llama-biases-llama3", tmp_path)
    layer = load(tmp_path).layers[1]
    theirs = model.model.layers[1]
    attention = theirs.self_attn
    qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    biases = torch.cat([attention.q_proj.bias, attention.k_proj.bias, attention.v_proj.bias])
    assert torch.equal(layer.qkv.weight, qkv)
    assert torch.equal(layer.qkv.bias, biases)
    assert torch.equal(layer.gate_up.weight, torch.cat([theirs.mlp.gate_proj.weight, theirs.mlp.up_proj.weight]))
    assert torch.equal(layer.down.bias, theirs.mlp.down_proj.bias)


def test_sharded_folder_equals_single_file(tmp_path):
    save_tiny_model("qwen3", tmp_path / "one")
    save_tiny_model("qwen3", tmp_path / "many", max_shard_size="60KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    one, many = load(tmp_path / "one"), load(tmp_path / "many")
    assert torch.equal(one.head.weight, many.head.weight)
    for left, right in zip(one.layers, many.layers, strict=True):
        assert torch.equal(left.qkv.weight, right.qkv.weight)
        assert torch.equal(left.query_norm, right.query_norm)


def test_missing_shard_is_named(tmp_path):
    save_tiny_model("qwen3", tmp_path, max_shard_size="60KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[0]
    shard.unlink()
    with pytest.raises(ModelError, match=shard.name):
        load(tmp_path)


def test_index_may_not_name_files_elsewhere(tmp_path):
    save_tiny_model("qwen3", tmp_path)
    index = {"weight_map": {"model.norm.weight": "../other.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="outside its folder"):
        load(tmp_path)


def test_tied_embeddings_share_memory_and_untied_do_not(tmp_path):
    save_tiny_model("llama-tied", tmp_path / "tied")
    save_tiny_model("qwen3", tmp_path / "untied")
    tied, untied = load(tmp_path / "tied"), load(tmp_path / "untied")
    assert tied.head.weight.data_ptr() == tied.embedding.data_ptr()
    assert not torch.equal(untied.head.weight, untied.embedding)


def test_tied_head_stored_as_well_is_no_surplus(tmp_path):
    save_tiny_model("llama-tied", tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    load(tmp_path)


def test_missing_tensor_is_named(tmp_path):
    save_tiny_model("llama-tied", tmp_path)
    edit(tmp_path, lambda tensors: tensors.pop("model.layers.2.mlp.up_proj.weight"))
    with pytest.raises(ModelError, match=r"missing.*model\.layers\.2\.mlp\.up_proj\.weight"):
        load(tmp_path)


def test_surplus_tensor_is_named(tmp_path):
    save_tiny_model("llama-tied", tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}))
    with pytest.raises(ModelError, match=r"no place for.*q_norm"):
        load(tmp_path)


def test_other_shape_is_named(tmp_path):
    save_tiny_model("llama-tied", tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({"model.norm.weight": torch.ones(9)}))
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \(9,\).*\(48,\)"):
        load(tmp_path)


def test_cut_file_is_named(tmp_path):
    save_tiny_model("llama-tied", tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match="can't be read as safetensors"):
        load(tmp_path)


def test_random_weights_are_repeatable(tmp_path):
    save_tiny_model("qwen3", tmp_path)
    config = ModelConfig.from_folder(tmp_path)
    one, two = random_weights(config, torch.float32, seed=3), random_weights(config, torch.float32, seed=3)
    assert torch.equal(one.layers[2].gate_up.weight, two.layers[2].gate_up.weight)
    assert not torch.equal(one.embedding, random_weights(config, torch.float32, seed=4).embedding)
    assert one.final_norm.mean() > 0.9
