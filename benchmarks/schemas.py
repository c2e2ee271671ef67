"""Measures grammar libraries on the schema corpus: what they accept, what they get wrong, and how fast they are.

    python benchmarks/schemas.py                       # ours, llguidance alone, outlines-core's own builder
    python benchmarks/schemas.py --xgrammar PYTHON     # and xgrammar, by the Python of a venv that has it

Prints a Markdown table, and below it the ids of schemas with a fault. Every schema is measured in a forked child with
a limit on time and memory, because outlines-core aborts its process when it can't allocate. Unsound: the masks let a
stub finish an answer, or take an invalid instance, that jsonschema rejects. Complete: the masks take a valid instance,
compact, its keys in schema order, of the corpus; instances with keys that the schema doesn't declare don't count.
Times are of the processor, all threads together, so that other work on the machine counts little.
"""

import argparse
import json
import os
import pickle
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jsonschema import Draft202012Validator

from engine.model_config import ModelConfig
from engine.model_source import resolve_model
from engine.tokenizer import load_tokenizer
from grammars import TokenVocabulary, compile_schema
from tests.grammars.instances import UndeclaredKey, in_schema_order

CORPUS = ROOT.parent / "shared" / "data" / "schemas" / "corpus.jsonl"
COMPILE_SECONDS = 20
SECONDS = 60  # for all else about a schema
MEMORY_BYTES = 8 << 30
SAMPLES, SAMPLE_TOKENS, MASK_ROWS = 6, 300, 64


class Grammar:
    """What is measured, over one backend: `start()` makes a state with `mask`, `take`, `back`, `may_stop`, `forced`."""

    def __init__(self, system: str, schema: Any, vocabulary: TokenVocabulary) -> None:
        self.system = system
        self.vocabulary = vocabulary
        if system in ("ours", "llguidance"):
            self.grammar = compile_schema(schema, vocabulary, backend="auto" if system == "ours" else "llguidance")
            self.backend = self.grammar.backend
        elif system == "outlines-core":
            from outlines_core import Index
            from outlines_core.json_schema import build_regex_from_schema

            self.backend = "index"
            self.grammar = Index(build_regex_from_schema(json.dumps(schema)), vocabulary.outlines)
        else:
            import xgrammar

            self.stop = next(token for token in range(vocabulary.size) if token not in vocabulary.tokens)
            if "xgrammar" not in vocabulary.other_forms:
                texts = [vocabulary.tokens.get(token, b"<special %d>" % token) for token in range(vocabulary.size)]
                info = xgrammar.TokenizerInfo(texts, stop_token_ids=[self.stop])
                vocabulary.other_forms["xgrammar"] = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
            compiler = vocabulary.other_forms["xgrammar"]
            self.backend = "xgrammar"
            self.grammar = compiler.compile_json_schema(json.dumps(schema), any_whitespace=False, separators=(",", ":"))

    def start(self) -> "State":
        """A new answer."""
        return State(self)


class State:
    """One answer."""

    def __init__(self, owner: Grammar) -> None:
        self.owner = owner
        self.size = owner.vocabulary.size
        self.words = np.zeros(-(-(self.size + 64) // 32), dtype=np.int32)
        if owner.system == "outlines-core":
            from outlines_core import Guide

            self.state: Any = Guide(owner.grammar)
        elif owner.system == "xgrammar":
            import torch
            import xgrammar

            self.state = xgrammar.GrammarMatcher(owner.grammar)
            self.torch_words = torch.from_numpy(self.words[: -(-self.size // 32)]).view(1, -1)
        else:
            self.state = owner.grammar.start()

    def mask(self) -> None:
        """Write the mask into `words`."""
        if self.owner.system == "outlines-core":
            self.state.write_mask_into(self.words.ctypes.data, self.words.size, 4)
        elif self.owner.system == "xgrammar":
            self.state.fill_next_token_bitmask(self.torch_words)
        else:
            self.state.write_mask(self.words)

    def allowed(self) -> np.ndarray:
        """Ids of the tokens allowed next, the ones that stop left out."""
        self.mask()
        ids = np.unpackbits(self.words.view(np.uint8), bitorder="little")[: self.size].nonzero()[0]
        return ids[ids != self.owner.stop] if self.owner.system == "xgrammar" else ids

    def take(self, token: int) -> bool:
        """Advance, or say that the token isn't allowed."""
        try:
            if self.owner.system == "outlines-core":
                self.state.advance(token, return_tokens=False)
            elif self.owner.system == "xgrammar":
                return bool(self.state.accept_token(token))
            else:
                self.state.advance(token)
        except ValueError:
            return False
        return True

    @property
    def may_stop(self) -> bool:
        """True if the answer may end here."""
        if self.owner.system == "outlines-core":
            return self.owner.vocabulary.size + 2 in self.state.get_tokens()
        if self.owner.system == "xgrammar":
            self.mask()
            return bool(self.words[self.owner.stop // 32] >> self.owner.stop % 32 & 1)
        return bool(self.state.may_stop)

    def forced_bytes(self) -> int:
        """Bytes of the text that must come next."""
        tokens = self.owner.vocabulary.tokens
        if self.owner.system == "outlines-core":
            ids = self.allowed()
            return len(tokens[int(ids[0])]) if ids.size == 1 else 0
        if self.owner.system == "xgrammar":
            return len(self.state.find_jump_forward_string().encode())
        return sum(len(tokens[token]) for token in self.state.forced_tokens())


def is_valid(schema: Any, value: Any) -> bool:
    """jsonschema's judgement; what it can't judge is left out."""
    try:
        return bool(Draft202012Validator(schema).is_valid(value))
    except (re.error, RecursionError):
        return True


def accepts(grammar: Grammar, text: str) -> bool:
    """True if the masks take the text, in the longest tokens."""
    state = grammar.start()
    return all(state.take(token) for token in grammar.vocabulary.spell(text.encode())) and state.may_stop


def sample(grammar: Grammar, number: int) -> bytes | None:
    """A random answer that tends to close; None if it didn't end."""
    rng = random.Random(number)
    state, text = grammar.start(), b""
    for place in range(SAMPLE_TOKENS):
        ids = state.allowed()
        wish = 0.25 if place < 40 else 0.9
        if state.may_stop and (not ids.size or rng.random() < wish):
            return text
        if not ids.size:
            return None
        pick = int(ids[rng.randrange(ids.size)])
        if rng.random() < wish:
            closing = [token for token in ids.tolist() if grammar.vocabulary.tokens.get(token, b" ")[-1:] in b'"}]']
            pick = int(rng.choice(closing)) if closing else pick
        if pick not in grammar.vocabulary.tokens or not state.take(pick):
            return None
        text += grammar.vocabulary.tokens[pick]
    return None


def compact(value: Any) -> str:
    """Compact JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def measure(system: str, record: dict[str, Any], vocabulary: TokenVocabulary) -> dict[str, Any]:
    """Everything about one schema."""
    schema = record["schema"]
    started = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, COMPILE_SECONDS)
    try:
        grammar = Grammar(system, schema, vocabulary)
    except (ValueError, RuntimeError, TypeError) as refusal:
        return {"refused": str(refusal)[:200]}
    found: dict[str, Any] = {"seconds": time.process_time() - started, "backend": grammar.backend, "faults": []}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    for number in range(SAMPLES):
        text = sample(grammar, number)
        if text is None:
            continue
        try:
            good = is_valid(schema, json.loads(text))
        except ValueError:
            good = False
        if not good:
            found["faults"].append(text.decode(errors="replace")[:200])
    for value in record["invalid"]:
        if not is_valid(schema, value) and accepts(grammar, compact(value)):
            found["faults"].append(f"accepts {compact(value)[:200]}")
    found["valid"] = found["written"] = found["bytes"] = found["forced"] = 0
    for value in record["valid"]:
        try:
            text_wanted = compact(in_schema_order(value, schema))
        except UndeclaredKey:
            continue
        found["valid"] += 1
        found["written"] += accepts(grammar, text_wanted)
        covered = 0
        state = grammar.start()
        for token in vocabulary.spell(text_wanted.encode()):
            length = len(vocabulary.tokens[token])
            covered = max(covered, state.forced_bytes())
            found["bytes"] += length
            found["forced"] += min(covered, length)
            covered = max(0, covered - length)
            if not state.take(token):
                break
    return found


def in_child(system: str, record: dict[str, Any], vocabulary: TokenVocabulary) -> dict[str, Any]:
    """`measure` in a forked child with limits."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + MEMORY_BYTES, resource.RLIM_INFINITY))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            result = measure(system, record, vocabulary)
        except BaseException as failure:
            result = {"refused": f"{type(failure).__name__}: {failure}"}
        with os.fdopen(writer, "wb") as stream:
            pickle.dump(result, stream)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        content = stream.read()
    os.waitpid(child, 0)
    return pickle.loads(content) if content else {"refused": "too slow or too large"}


def mask_microseconds(system: str, records: list[dict[str, Any]], vocabulary: TokenVocabulary) -> tuple[float, float]:
    """p50 and p99 of the time for the masks of 64 rows over the answer schemas, each row at its own place."""
    grammars = [Grammar(system, record["schema"], vocabulary) for record in records]
    texts = [vocabulary.spell(compact(record["valid"][0]).encode()) for record in records]
    times = []
    for lap in range(3):  # the first fills caches
        rows = [(grammars[row % len(grammars)].start(), texts[row % len(texts)]) for row in range(MASK_ROWS)]
        for place in range(max(map(len, texts))):
            started = time.process_time()
            for state, _ in rows:
                state.mask()
            if lap:
                times.append((time.process_time() - started) * 1e6)
            for row, (state, tokens) in enumerate(rows):
                if place >= len(tokens) or not state.take(tokens[place]):
                    rows[row] = (grammars[row % len(grammars)].start(), [])
    return statistics.median(times), sorted(times)[int(len(times) * 0.99)]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xgrammar", metavar="PYTHON", help="python of a venv with xgrammar")
    parser.add_argument("--system", help="only this one")
    parser.add_argument("--every", type=int, default=1, help="only every N-th schema")
    arguments = parser.parse_args()
    source = resolve_model("smollm2-135m-instruct")
    size = ModelConfig.from_folder(source.folder).vocabulary_size
    vocabulary = TokenVocabulary.from_tokenizer(load_tokenizer(source.folder), size)
    # Built once, before the forks.
    assert vocabulary.outlines is not None
    assert compile_schema({}, vocabulary, backend="llguidance")
    if arguments.system is not None:
        Grammar(arguments.system, {}, vocabulary)
    with CORPUS.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    answers = [record for record in records if record["source"] == "qa"]
    real = [record for record in records if record["source"].startswith("maskbench/")][:: arguments.every]
    if arguments.system is None:
        print(f"{len(real)} real schemas; masks over {len(answers)} answer schemas.\n")
        print(
            "| | accepted | unsound | complete | compile p50 / p95 / max s | masks for 64 rows p50 / p99 µs | forced |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    faults = {}
    systems = [arguments.system] if arguments.system else ["ours", "llguidance", "outlines-core"]
    for system in systems:
        results = {record["id"]: in_child(system, record, vocabulary) for record in real}
        done = {name: result for name, result in results.items() if "refused" not in result}
        seconds = sorted(result["seconds"] for result in done.values())
        total = {key: sum(result[key] for result in done.values()) for key in ("valid", "written", "bytes", "forced")}
        faults[system] = {name: result["faults"] for name, result in done.items() if result["faults"]}
        median, high = mask_microseconds(system, answers, vocabulary)
        backends = [result["backend"] for result in done.values()]
        shares = f" ({backends.count('index')} index, {backends.count('llguidance')} llguidance)"
        print(
            f"| {system} | {len(done)}{shares if system == 'ours' else ''} | {len(faults[system])} "
            f"| {total['written']} of {total['valid']}, {total['written'] / max(total['valid'], 1):.1%} "
            f"| {statistics.median(seconds):.3f} / {seconds[int(len(seconds) * 0.95)]:.2f} / {seconds[-1]:.1f} "
            f"| {median:.0f} / {high:.0f} | {total['forced'] / max(total['bytes'], 1):.1%} |",
            flush=True,
        )
        if system == "ours":
            missed = [name for name, result in done.items() if result["written"] < result["valid"]]
            refused = [name for name, result in results.items() if "refused" in result]
            faults["ours, refused"], faults["ours, an instance missed"] = refused, missed
    if arguments.xgrammar:
        site = Path(np.__file__).parents[1]
        command = [arguments.xgrammar, __file__, "--system", "xgrammar", "--every", str(arguments.every)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(site)}, check=False)
    for system, found in faults.items():
        if found:
            print(f"\n{system}: {', '.join(found)}")


if __name__ == "__main__":
    main()
