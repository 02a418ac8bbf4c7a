"""Dialogues as tokens by a chat template, and packed into rows of one length."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from gpu_acceptance.measure.lora.calls import Dialogue
from gpu_acceptance.measure.lora.template import Template, Written
from gpu_acceptance.measure.lora.tuning import Share
from gpu_acceptance.measure.train.data import Batch
from gpu_acceptance.measure.train.step import Part

IGNORED = -100  # torch's target that counts nothing
_SEED = 0  # of the order

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class FitError(ValueError):
    """Dialogues, or a tokenizer, that do not fit the model."""


@dataclass(frozen=True)
class Tokens:
    """A whole dialogue, or a part of it that has a prompt of its own."""

    ids: list[int]
    targets: list[int]  # the next token, where that is of the assistant's part, up to its end mark
    num_said: int  # tokens of the assistant's part, tokenized by itself: about as many must be learned


class Scribe:
    """Writes dialogues by the template, with this tokenizer, a fast one: only those give the place of a token in a text.

    `vocabulary`: of the model. A larger token would fail in its embedding, which costs a GPU the whole process. `sequence`: most tokens.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template: Template, vocabulary: int, sequence: int) -> None:
        self.tokenizer, self._template, self._vocabulary, self._sequence = tokenizer, template, vocabulary, sequence
        self._known: dict[int, list[Tokens]] = {}  # by line: a dialogue is trained once in each epoch
        self.num_seen = self.num_too_long = 0  # dialogues

    def fitting(self, dialogues: Sequence[Dialogue], order: Iterable[int], num_new: int = 0) -> Iterator[tuple[Dialogue, list[Tokens]]]:
        """Yield dialogues that fit, in this order, with the tokens of their parts; others are counted.

        `num_new`: most tokens of an answer that is generated; the prompt must leave room for it. Raises FitError, also where none fits.
        """
        is_any = False
        for num_seen, number in enumerate(order, start=1):
            dialogue = dialogues[number]
            if dialogue.line not in self._known:
                self._known[dialogue.line] = self.tokens(dialogue)
            parts = self._known[dialogue.line]
            fits = all(len(part.ids) <= self._sequence for part in parts)
            fits = fits and not (num_new and len(self.prompt(dialogue)) + num_new > self._sequence)
            is_any, self.num_seen, self.num_too_long = is_any or fits, self.num_seen + 1, self.num_too_long + (not fits)
            if fits:
                yield dialogue, parts
            elif not is_any and num_seen >= len(dialogues):
                room = f" with an answer of {num_new:,} after its prompt" if num_new else ""
                less = " or lower lora_model.num_new_tokens" if num_new else ""
                none = f"none of {len(dialogues):,} dialogues fits into {self._sequence:,} tokens"
                raise FitError(f"{none}{room}; raise lora_model.sequence{less}")

    def prompt(self, dialogue: Dialogue) -> list[int]:
        """Return the tokens of a dialogue up to its first answer that is learned."""
        return self._ids(self._template.prompt(dialogue))

    def tokens(self, dialogue: Dialogue) -> list[Tokens]:
        """Return the tokens of each part of a dialogue. Raises FitError."""
        return [self._tokens(part, dialogue.line) for part in self._template.written(dialogue)]

    def _tokens(self, part: Written, line: int) -> Tokens:
        ids, places = self._placed(part.text, [0])
        if any(first < begin < end for begin, _ in part.spans for first, end in places):
            ids, places = self._placed(part.text, [0, *(begin for begin, _ in part.spans)])
        are_learned = [any(begin <= first < end for begin, end in part.spans) for first, _ in places]
        if (largest := max(ids)) >= self._vocabulary:
            seen = f"token {largest:,}, and the model has {self._vocabulary:,}"
            raise FitError(f"line {line}: {seen}: the tokenizer is of another model")
        targets = [token if is_learned else IGNORED for token, is_learned in zip(ids[1:], are_learned[1:], strict=True)]
        return Tokens(ids, [*targets, IGNORED], sum(len(self._ids(part.text[begin:end])) for begin, end in part.spans))

    def _placed(self, text: str, begins: Sequence[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Return tokens and their places. None crosses a place of `begins`: a model goes on from the tokens of its prompt."""
        ids, places = list[int](), list[tuple[int, int]]()
        for begin, end in pairwise([*begins, len(text)]):
            found = self.tokenizer(text[begin:end], add_special_tokens=False, return_offsets_mapping=True)
            ids += found["input_ids"]
            places += [(begin + first, begin + last) for first, last in found["offset_mapping"]]
        return ids, places

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def pack(dialogues: Iterable[Tokens], sequence: int) -> Iterator[list[Tokens]]:
    """Pack dialogues in their order, and begin a new row where the next does not fit; each must fit into one by itself."""
    row, size = list[Tokens](), 0
    for tokens in dialogues:
        if size + len(tokens.ids) > sequence:
            yield row
            row, size = [], 0
        row.append(tokens)
        size += len(tokens.ids)
    if row:
        yield row


def filled(row: Sequence[Tokens], sequence: int, padding: int) -> Batch:
    """Return tokens and positions [2, sequence], and targets [sequence]. Padding is a dialogue of its own that is not learned."""
    missing = sequence - sum(len(tokens.ids) for tokens in row)
    parts = [*row, Tokens([padding] * missing, [IGNORED] * missing, 0)]
    positions = [place for tokens in parts for place in range(len(tokens.ids))]
    inputs = torch.tensor([[token for tokens in parts for token in tokens.ids], positions])
    return inputs, torch.tensor([target for tokens in parts for target in tokens.targets])


def shuffled(num: int) -> Iterator[int]:
    """Yield numbers below `num` without end, in another order each time around, the same on all ranks."""
    draw = random.Random(_SEED)  # noqa: S311 - nothing here is a secret
    while True:
        yield from draw.sample(range(num), num)


def batches(rows: Sequence[Sequence[Tokens]], batch_size: int, sequence: int, padding: int) -> list[Batch]:
    """Return inputs [2, B, sequence], which are tokens and positions, and targets [B, sequence]; the last may be smaller."""
    found = [filled(row, sequence, padding) for row in rows]
    groups = [found[begin : begin + batch_size] for begin in range(0, len(found), batch_size)]
    return [(torch.stack([inputs for inputs, _ in group], 1), torch.stack([targets for _, targets in group])) for group in groups]


def num_learned(batches: Iterable[Batch]) -> int:
    """Count the tokens that are learned."""
    return sum(int((targets != IGNORED).sum()) for _, targets in batches)


def steps(parts: Sequence[Batch], share: Share) -> list[list[Part]]:
    """Return this rank's batches of each `share.num_parts`, weighted so that the mean over ranks is that over all tokens of a step.

    For a loss that is a sum over tokens.
    """
    own: list[list[Part]] = []
    for begin in range(0, len(parts), share.num_parts):
        step = parts[begin : begin + share.num_parts]
        own.append([(weight * share.num_parts / num_learned(step), step[part]) for part, weight in share.parts])
    return own
