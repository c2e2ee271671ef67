import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.decoder import Decoder
from engine.model_config import ModelConfig
from engine.tokenizer import load_tokenizer
from engine.weights import load_weights
from tests.engine.tiny_models import TINY_CONFIGS, PlainAttention, converted_smollm2, save_tiny_model

PROMPT = "Question: which city is the capital of France, and how many people live there?\nAnswer:"


@pytest.fixture(autouse=True)
def one_thread():
    """Steps of one token are many tiny products: two threads wait for each other as soon as the machine is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def decoder_of(folder, dtype=torch.float32):
    config = ModelConfig.from_folder(folder)
    return Decoder(config, load_weights(folder, config, dtype))


def run(decoder, token_ids, attend, start=0):
    """Logits of every token of one sequence, whose first `start` tokens `attend` has seen."""
    positions = torch.arange(start, start + len(token_ids))
    with torch.inference_mode():
        return decoder.logits(decoder.forward(torch.tensor(token_ids), positions, attend))


@pytest.mark.parametrize("name", TINY_CONFIGS)
def test_logits_are_those_of_transformers(name, tmp_path):
    model = save_tiny_model(name, tmp_path)
    decoder = decoder_of(tmp_path)
    token_ids = torch.randint(3, 320, (90,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = model(torch.tensor([token_ids])).logits[0]
    whole = run(decoder, token_ids, PlainAttention(decoder.config))
    assert whole.dtype == torch.float32
    torch.testing.assert_close(whole, expected, atol=1e-4, rtol=1e-4)

    attend = PlainAttention(decoder.config)
    pieces = [run(decoder, token_ids[:50], attend)]
    pieces += [run(decoder, token_ids[at : at + 1], attend, at) for at in range(50, 90)]
    torch.testing.assert_close(torch.cat(pieces), expected, atol=1e-4, rtol=1e-4)


def test_the_tiny_models_exercise_their_variants(tmp_path):
    """A window or scaling that had no effect would make the parity above empty."""
    for name in ("mistral-window", "qwen2-windows", "qwen3-layer-types", "gemma3"):
        save_tiny_model(name, tmp_path / name)
        assert any(ModelConfig.from_folder(tmp_path / name).windows)
    for name, kind in (("llama-biases-llama3", "llama3"), ("qwen2-yarn", "yarn"), ("llama-linear", "linear")):
        save_tiny_model(name, tmp_path / name)
        assert ModelConfig.from_folder(tmp_path / name).rope.kind == kind


def test_bf16_is_close_to_fp32(tmp_path):
    save_tiny_model("qwen3", tmp_path)
    exact, fast = decoder_of(tmp_path), decoder_of(tmp_path, torch.bfloat16)
    token_ids = list(range(3, 40))
    expected = run(exact, token_ids, PlainAttention(exact.config))
    rounded = run(fast, token_ids, PlainAttention(fast.config))
    assert (rounded - expected).abs().max() < 0.05 * expected.abs().max()


def test_smollm2_answers_as_in_transformers():
    """Our greedy answer, token by token, has transformers' logits, and its likeliest token at every place."""
    folder = converted_smollm2()[0].folder
    decoder = decoder_of(folder)
    tokenizer = load_tokenizer(folder)
    token_ids = tokenizer.encode(PROMPT, add_special_tokens=False)
    attend = PlainAttention(decoder.config)
    pieces = [run(decoder, token_ids, attend)]
    ours: list[int] = []
    while len(ours) < 64:
        ours.append(likeliest(pieces[-1][-1]))
        pieces.append(run(decoder, ours[-1:], attend, len(token_ids) + len(ours) - 1))

    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids + ours])).logits[0]
    torch.testing.assert_close(torch.cat(pieces), expected, atol=2e-3, rtol=1e-4)
    assert [likeliest(logits) for logits in expected[len(token_ids) - 1 : -1]] == ours
    # The converted weights are a working model, not only the same one on both sides.
    assert "Paris" in tokenizer.decode(ours)


def likeliest(logits, stop_id=2):
    """The token of a greedy answer that may not stop."""
    return int(logits.index_fill(0, torch.tensor(stop_id), -torch.inf).argmax())
