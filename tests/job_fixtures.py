"""A small job over a tiny random model: real weights and tokenizer, seconds to run."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

SCHEMA = {
    "type": "object",
    "properties": {
        "verdict": {"enum": ["true", "false", "not mentioned"]},
        "quote": {"type": "string", "maxLength": 6},
    },
    "required": ["verdict", "quote"],
    "additionalProperties": False,
}
CHAT_TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_model_folder(tmp_path_factory):
    """A random Llama with a byte tokenizer, a chat template and a context of 600 tokens."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    from tests.engine.tiny_models import byte_tokenizer

    folder = tmp_path_factory.mktemp("tiny-model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=600, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    model.save_pretrained(folder)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def write_rows(path, rows):
    """A long-layout Parquet file; `rows` are dictionaries."""
    columns = {name: [row.get(name) for row in rows] for name in {key: None for row in rows for key in row}}
    pq.write_table(pa.table(columns), path)


def sample_rows(documents=4, questions=5):
    """Shuffled rows of documents with a common opening."""
    rows = [
        {
            "doc_id": f"d{d}",
            "document": f"The common opening of all documents. This one is number {d}, "
            + f"and says {d * 7}. " * (3 + d),
            "question_id": f"q{q}",
            "question": f"What does it say about {'abcdefgh'[q]}{q}?",
        }
        for d in range(documents)
        for q in range(questions)
    ]
    return rows[1::3] + rows[0::3] + rows[2::3]


def write_job(folder, model_folder, rows, name="job.toml", **sections):
    """Write a job over the tiny model into a folder, in fp32, with settings by section; the path of its file."""
    if rows is not None:
        write_rows(folder / "rows.parquet", rows)
    (folder / "verdict.json").write_text(json.dumps(SCHEMA))
    settings = {
        "job": {"name": "test"},
        "input": {"documents": "rows.parquet"},
        "prompt": {"system": "Answer."},
        "answer": {"schema": "verdict.json"},
        "model": {"path": str(model_folder), "dtype": "float32"},
        "sampling": {"max_tokens": 60},
        "output": {"database": "answers.duckdb"},
    }
    for section, values in sections.items():
        settings.setdefault(section, {}).update(values)
    lines = []
    for section, values in settings.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    (folder / name).write_text("\n".join(lines))
    return folder / name


@pytest.fixture
def make_job(tmp_path, tiny_model_folder):
    """make_job(rows, **settings by section) -> path of a job file in tmp_path over the tiny model, in fp32."""

    def make(rows, name="job.toml", **sections):
        return write_job(tmp_path, tiny_model_folder, rows, name, **sections)

    return make
