"""From hidden states to accepted tokens: masks along drafts, one draw a row, and how far each draft was right."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Sequenced
from dataclasses import dataclass

import numpy as np
import torch

from engine.device_stream import Fetched
from engine.drafts import Drafter
from engine.log_probabilities import same_text_masks, token_log_probabilities
from engine.request import FinishReason, SamplingParameters
from engine.runner import Runner
from engine.sampler import mask_words, sample
from engine.sequence import Sequence

SameText = Sequenced[Mapping[int, Sequenced[int]]]
"""What `GrammarState.same_text` said of each row."""

FEW_CHOICES = 128
"""Rows that allow at most this many tokens get partial logits."""


@dataclass
class DrawCounts:
    """`drawn` tokens were added to answers; `drafted` were guessed, of which `accepted` were right.

    `mask_seconds` went to masks, `log_probability_seconds` to say how likely tokens were.
    """

    drawn: int = 0
    drafted: int = 0
    accepted: int = 0
    mask_seconds: float = 0.0
    log_probability_seconds: float = 0.0


@dataclass(frozen=True)
class LaunchedDraw:
    """A draw whose tokens are on their way; `allowed_counts` [rows] says how many tokens each row allowed."""

    sequences: Sequenced[Sequence]
    allowed_counts: np.ndarray
    drawn: Fetched  # tokens [rows], and their log-probabilities if they were asked for
    complete: Callable[[np.ndarray, np.ndarray], None] | None = None  # checks and mends both once they are here


class TokenDraw:
    """Draws the next tokens of sequences. `drafter` None: one token a step, except where only one is allowed."""

    def __init__(self, runner: Runner, stop_token_ids: Sequenced[int], drafter: Drafter | None) -> None:
        self._runner = runner
        self._stop_token_ids = frozenset(stop_token_ids)
        self._drafter = drafter
        self.counts = DrawCounts()

    def launch(self, sequences: Sequenced[Sequence], hidden: torch.Tensor) -> LaunchedDraw:
        """Launch what draws the next tokens of sequences; `finish` hears what they are.

        `hidden` [rows, hidden_size]: for each sequence, in order, the row that predicts its next token and then one
        row after each token of its draft.
        """
        started = time.monotonic()
        masks, allowed_counts, same = self._masks(sequences, self._runner.vocabulary_size)
        self.counts.mask_seconds += time.monotonic() - started
        parameters = [sequence.request.sampling for sequence in sequences for _ in range(1 + len(sequence.draft))]
        indices = [len(sequence.output) + offset for sequence in sequences for offset in range(1 + len(sequence.draft))]
        is_asked = any(sequence.log_probabilities is not None for sequence in sequences)
        same_text = same if is_asked else None
        if _draws_on_device(hidden):
            return self._launch_on_device(sequences, hidden, masks, allowed_counts, parameters, indices, same_text)
        arrays = self._sample(hidden, masks, allowed_counts, parameters, indices, same_text)
        drawn = self._runner.stream.fetch([torch.from_numpy(array) for array in arrays])
        return LaunchedDraw(sequences, allowed_counts, drawn)

    def finish(self, launched: LaunchedDraw) -> list[FinishReason | None]:
        """Append the drawn tokens to each sequence's output; says which sequences have ended, and why.

        Waits for the device. The sequences' drafts are used up and new ones proposed.
        """
        sequences, allowed_counts = launched.sequences, launched.allowed_counts
        tokens, *weighed = launched.drawn.wait()
        log_probabilities = weighed[0].astype(np.float64) if weighed else np.zeros(len(tokens))
        if launched.complete is not None:
            launched.complete(tokens, log_probabilities)
        log_probabilities[allowed_counts == 1] = 0.0  # a choice of one is certain, whatever its logit
        reasons = []
        row = 0
        for sequence in sequences:
            length_before = len(sequence.output)
            rows = slice(row, row + 1 + len(sequence.draft))
            drawn = list(zip(tokens[rows].tolist(), log_probabilities[rows].tolist(), strict=True))
            reasons.append(self._accept(sequence, drawn, allowed_counts[rows], len(sequences)))
            self.counts.drawn += len(sequence.output) - length_before
            row = rows.stop
        return reasons

    def _launch_on_device(
        self,
        sequences: Sequenced[Sequence],
        hidden: torch.Tensor,
        masks: np.ndarray | None,
        allowed_counts: np.ndarray,
        parameters: Sequenced[SamplingParameters],
        indices: Sequenced[int],
        same_text: SameText | None,
    ) -> LaunchedDraw:
        """One token a row, and unless `same_text` is None how likely it was, in one fetch: nothing is waited for."""
        from engine.triton.log_probabilities import launch_log_probabilities  # Triton is there on Linux only
        from engine.triton.sampler import check_numbers, launch_sampling

        logits = self._runner.logits(hidden)
        device_masks = None if masks is None else self._runner.stream.send(masks)
        results = [launch_sampling(logits, device_masks, parameters, indices)]
        if same_text is not None:
            results.append(launch_log_probabilities(logits, device_masks, results[0]))

        def complete(tokens: np.ndarray, log_probabilities: np.ndarray) -> None:
            check_numbers(tokens)
            if same_text is not None:  # only where drawn tokens have others of their text, the device is asked again
                log_probabilities -= _share_of_text(logits, masks, None, tokens, tokens, same_text)

        return LaunchedDraw(sequences, allowed_counts, self._runner.stream.fetch(results), complete)

    def _sample(
        self,
        hidden: torch.Tensor,
        masks: np.ndarray | None,
        allowed_counts: np.ndarray,
        parameters: Sequenced[SamplingParameters],
        indices: Sequenced[int],
        same_text: SameText | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """One token a row, and how likely its text was; 0 if `same_text` is None.

        Rows with few choices need the logits of those choices only, not of the vocabulary.
        """
        few = (
            np.flatnonzero(allowed_counts <= FEW_CHOICES) if self._runner.has_partial_logits else np.empty(0, np.int64)
        )
        if masks is None or len(few) == 0:
            return self._draw(self._runner.logits(hidden), masks, None, parameters, indices, same_text)
        tokens = np.empty(len(allowed_counts), dtype=np.int64)
        log_probabilities = np.zeros(len(allowed_counts))
        many = np.flatnonzero(allowed_counts > FEW_CHOICES)
        for rows, choices in ((few, _tokens_in(np.bitwise_or.reduce(masks[few], axis=0))), (many, None)):
            if len(rows) == 0 or (choices is not None and len(choices) == 0):
                continue
            tokens[rows], log_probabilities[rows] = self._draw(
                self._runner.logits(hidden[torch.from_numpy(rows)], choices),
                masks[rows],
                choices,
                [parameters[row] for row in rows.tolist()],
                [indices[row] for row in rows.tolist()],
                None if same_text is None else [same_text[row] for row in rows.tolist()],
            )
        return tokens, log_probabilities

    def _draw(
        self,
        logits: torch.Tensor,
        masks: np.ndarray | None,
        choices: np.ndarray | None,
        parameters: Sequenced[SamplingParameters],
        indices: Sequenced[int],
        same_text: SameText | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `_sample`, from `logits` of `choices`, or of all tokens; `masks` are of all tokens."""
        masks_here = masks if masks is None or choices is None else _narrow(masks, choices)
        drawn = np.array(sample(logits, masks_here, parameters, indices), dtype=np.int64)
        tokens = drawn if choices is None else choices[drawn]
        if same_text is None:
            return tokens, np.zeros(len(tokens))
        started = time.monotonic()
        log_probabilities = token_log_probabilities(logits, masks_here, drawn)
        log_probabilities -= _share_of_text(logits, masks, choices, drawn, tokens, same_text)
        self.counts.log_probability_seconds += time.monotonic() - started
        return tokens, log_probabilities

    def _masks(
        self, sequences: Sequenced[Sequence], vocabulary_size: int
    ) -> tuple[np.ndarray | None, np.ndarray, SameText]:
        """Packed masks of all rows (None if no sequence has a grammar), and how many tokens each row allows.

        And which of them come to the same text, for sequences that want to know how likely their tokens are.
        """
        rows = sum(1 + len(sequence.draft) for sequence in sequences)
        same_text: list[Mapping[int, Sequenced[int]]] = [{}] * rows
        if all(sequence.grammar is None for sequence in sequences):
            return None, np.full(rows, vocabulary_size), same_text
        masks = np.full((rows, mask_words(vocabulary_size)), -1, dtype=np.int32)
        row = 0
        for sequence in sequences:
            if sequence.grammar is None:
                row += 1 + len(sequence.draft)
                continue
            tokens_left = sequence.max_output_tokens - len(sequence.output)
            for place, token in enumerate([*sequence.draft, None]):
                self._write_mask(sequence, masks[row], tokens_left - place)
                if sequence.log_probabilities is not None:
                    same_text[row] = sequence.grammar.same_text()
                row += 1
                if token is not None:
                    sequence.grammar.advance(token)
            sequence.grammar.roll_back(len(sequence.draft))
        return masks, np.bitwise_count(masks.view(np.uint32)).sum(axis=1), same_text

    def _write_mask(self, sequence: Sequence, words: np.ndarray, tokens_left: int) -> None:
        assert sequence.grammar is not None
        sequence.grammar.write_mask(words, tokens_left)
        if sequence.grammar.may_stop:
            for token_id in self._stop_token_ids:
                words.view(np.uint8)[token_id // 8] |= 1 << token_id % 8

    def _accept(
        self, sequence: Sequence, drawn: Sequenced[tuple[int, float]], allowed_counts: np.ndarray, running: int
    ) -> FinishReason | None:
        """Append drawn tokens, with their log-probabilities, as long as each confirms the draft of the next one."""
        draft, sequence.draft = sequence.draft, []
        accepted = 0
        reason = None
        for place, (token, log_probability) in enumerate(drawn):
            if allowed_counts[place] == 0:
                reason = FinishReason.NO_TOKEN
                break
            sequence.forced_tokens += int(allowed_counts[place] == 1 and token not in self._stop_token_ids)
            reason = self._append(sequence, token, log_probability)
            if place == len(draft) or token != draft[place]:
                break
            accepted += 1
            if reason is not None:
                break
        sequence.computed = sequence.length - 1  # the KV of what was drafted wrongly is written over
        self.counts.drafted += len(draft)
        self.counts.accepted += accepted
        if reason is None:
            reason = self._append_certain(sequence)
        if self._drafter is not None:
            self._drafter.learn(sequence, len(draft), accepted)
            if reason is None:
                sequence.draft = self._drafter.propose(sequence, running)
        return reason

    def _append(self, sequence: Sequence, token: int, log_probability: float) -> FinishReason | None:
        if sequence.log_probabilities is not None:
            sequence.log_probabilities.append(log_probability)
        if token in self._stop_token_ids:
            return FinishReason.STOP
        sequence.output.append(token)
        if sequence.grammar is not None:
            sequence.grammar.advance(token)
            if sequence.grammar.must_stop:
                return FinishReason.STOP
        if len(sequence.output) < sequence.max_output_tokens:
            return None
        # A complete answer that could have gone on is no cut one.
        is_complete = sequence.grammar is not None and sequence.grammar.may_stop
        return FinishReason.STOP if is_complete else FinishReason.LENGTH

    def _append_certain(self, sequence: Sequence) -> FinishReason | None:
        """Append tokens for as long as the grammar allows exactly one: no logits are needed to know them."""
        grammar = sequence.grammar
        while grammar is not None and (token := grammar.only_token) is not None:
            sequence.forced_tokens += 1
            reason = self._append(sequence, token, 0.0)
            if reason is not None:
                return reason
        return None


def _share_of_text(
    logits: torch.Tensor,
    masks: np.ndarray | None,
    choices: np.ndarray | None,
    drawn: np.ndarray,
    tokens: np.ndarray,
    same_text: SameText,
) -> np.ndarray:
    """Log-probability of each row's token among those that come to the same text; 0 for one that stands alone.

    `drawn` are the places of `tokens` in `choices`, if `logits` are of those only.
    """
    if masks is None or not any(same_text):
        return np.zeros(len(tokens))
    same = same_text_masks(masks, tokens, same_text)
    several = np.bitwise_count(same.view(np.uint32)).sum(axis=1) > 1  # of one, rounding would be left
    if not several.any():
        return np.zeros(len(tokens))
    same_here = same if choices is None else _narrow(same, choices)
    return np.where(several, token_log_probabilities(logits, same_here, drawn), 0.0)


def _draws_on_device(hidden: torch.Tensor) -> bool:
    return hidden.is_cuda


def _tokens_in(words: np.ndarray) -> np.ndarray:
    """Token ids, ascending, whose bits are set in a packed mask row."""
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))


def _narrow(masks: np.ndarray, choices: np.ndarray) -> np.ndarray:
    """Packed masks over `choices` in place of the vocabulary."""
    bits = masks[:, choices // 32] >> (choices % 32) & 1
    padded = np.zeros((len(masks), mask_words(len(choices)) * 32), dtype=np.uint8)
    padded[:, : len(choices)] = bits
    return np.packbits(padded, axis=1, bitorder="little").view(np.int32)
