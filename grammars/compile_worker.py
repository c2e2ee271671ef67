"""The process that compiles: requests come on stdin, results go to stdout. Run as `python -m grammars.compile_worker`.

A message is its length (8 bytes) and its content. The first is the vocabulary, each one after it a request (JSON);
the answer is what `grammar_file` makes of the grammar or the refusal. The process ends with its input, or when a
request takes more than its seconds; where memory runs out, it is aborted.
"""

import ctypes
import json
import resource
import signal
import sys
from typing import BinaryIO

from .compile import compile_schema
from .errors import InvalidSchema, UnsupportedSchema
from .grammar_file import dump_grammar, dump_refusal
from .vocabulary import TokenVocabulary

_PR_SET_PDEATHSIG = 1


def read_message(stream: BinaryIO) -> bytes | None:
    """The next message; None at the end of the stream, also where it ends inside a message."""
    length = stream.read(8)
    if len(length) < 8:
        return None
    content = stream.read(int.from_bytes(length, "little"))
    return content if len(content) == int.from_bytes(length, "little") else None


def framed(content: bytes) -> bytes:
    """A message with its length before it."""
    return len(content).to_bytes(8, "little") + content


def vocabulary_message(vocabulary: TokenVocabulary) -> bytes:
    """The vocabulary as the first message."""
    tokens = [[token_id, text.hex()] for token_id, text in vocabulary.tokens.items()]
    return json.dumps([vocabulary.size, tokens]).encode()


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; it closes the input
    _die_with_parent()
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    first = read_message(stdin)
    if first is None:
        return
    size, tokens = json.loads(first)
    vocabulary = TokenVocabulary({token_id: bytes.fromhex(text) for token_id, text in tokens}, size)
    while (message := read_message(stdin)) is not None:
        request = json.loads(message)
        _limit_memory(request["memory_bytes"])
        signal.alarm(request["seconds"] + 5)  # should the parent be gone, and the kernel not tell
        try:
            grammar = compile_schema(
                json.loads(request["schema"]), vocabulary, backend=request["backend"], lenient=request["lenient"]
            )
            result = dump_grammar(grammar)
        except (InvalidSchema, UnsupportedSchema) as refusal:
            result = dump_refusal(refusal)
        signal.alarm(0)
        stdout.write(framed(result))
        stdout.flush()


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, however it dies; Linux alone can."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _limit_memory(more_bytes: int) -> None:
    with open("/proc/self/statm", encoding="ascii") as statm:
        present = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (present + more_bytes, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
