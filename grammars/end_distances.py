"""How many tokens an answer still needs from each state of an index, so that no answer is cut where it could end."""

from outlines_core import Index

from .vocabulary import TokenVocabulary

LONGEST_TOKEN = 32
"""Longer tokens are not tried on the way to the end; the figures stay upper bounds."""


class EndDistances:
    """For every state, the fewest tokens that spell one shortest text to the end of the answer.

    From a state of distance d > 0 some token leads to a state of distance d - 1: the text is fixed a state, so what
    is left of it is the next state's text. A row that only takes tokens whose next state can still reach the end
    within its remaining tokens therefore always ends in time.
    """

    def __init__(self, tokens: dict[int, int]) -> None:
        self.tokens = tokens
        self.most = max(tokens.values(), default=0)

    @classmethod
    def of(cls, index: Index, first: int, vocabulary: TokenVocabulary) -> "EndDistances":
        """Measure all states that can be reached from `first`. Single bytes reach them all."""
        step = index.get_next_state
        single_bytes = [(bytes([byte]), token_id) for byte, token_id in vocabulary.single_bytes.items()]
        before: dict[int, dict[int, bytes]] = {first: {}}
        ends = []
        open_states = [first]
        for state in open_states:
            if step(state, vocabulary.end_id) is not None:
                ends.append(state)
            for text, token_id in single_bytes:
                following = step(state, token_id)
                if following is None:
                    continue
                if following not in before:
                    before[following] = {}
                    open_states.append(following)
                before[following].setdefault(state, text)
        # Breadth first from the ends: `way` holds the byte of the shortest text and the state after it.
        way: dict[int, tuple[bytes, int] | None] = dict.fromkeys(ends)
        order = list(ends)
        for state in order:
            for previous, text in before[state].items():
                if previous not in way:
                    way[previous] = (text, state)
                    order.append(previous)
        longest = min(vocabulary.longest, LONGEST_TOKEN)
        tokens: dict[int, int] = {}
        for state in order:
            tokens[state] = _fewest(state, way, tokens, longest, vocabulary)
        return cls(tokens)


def _fewest(
    state: int,
    way: dict[int, tuple[bytes, int] | None],
    tokens: dict[int, int],
    longest: int,
    vocabulary: TokenVocabulary,
) -> int:
    text, fewest = b"", 0
    at = way[state]
    while at is not None and len(text) < longest:
        text += at[0]
        if text in vocabulary.usable and (not fewest or tokens[at[1]] + 1 < fewest):
            fewest = tokens[at[1]] + 1
        at = way[at[1]]
    return fewest
