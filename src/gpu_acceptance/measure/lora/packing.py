"""Dialogues as tokens by a chat template, and packed into rows of one length."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpu_acceptance.measure.lora.calls import Dialogue, for_template
from gpu_acceptance.measure.lora.samples import Share
from gpu_acceptance.measure.train.data import Batch
from gpu_acceptance.measure.train.step import Part

IGNORED = -100  # torch's target that counts nothing
_SEED = 0  # of the order

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TemplateError(ValueError):
    """A chat template by which the assistant's part of a text cannot be found."""


@dataclass(frozen=True)
class Tokens:
    """A whole dialogue."""

    ids: tuple[int, ...]
    learned: tuple[bool, ...]  # True for the assistant's part, up to its end mark
    num_said: int  # tokens of the assistant's part, tokenized by itself: about as many must be learned


class Scribe:
    """Writes dialogues by the template of this tokenizer, which must be a fast one: only those give the place of a token in a text.

    `vocabulary`: of the model. A larger token would fail in its embedding, which costs a GPU the whole process.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", vocabulary: int) -> None:
        self.tokenizer, self._vocabulary = tokenizer, vocabulary
        self._known: dict[int, Tokens] = {}  # by line: a dialogue is trained once in each epoch

    def prompt(self, dialogue: Dialogue) -> list[int]:
        """Return the tokens of a dialogue up to its first answer."""
        return self._ids(self._text(dialogue, dialogue.first_answer, is_asked=True))

    def tokens(self, dialogue: Dialogue) -> Tokens:
        """Return the tokens of a whole dialogue. Raises TemplateError."""
        if dialogue.line not in self._known:
            self._known[dialogue.line] = self._tokens(dialogue)
        return self._known[dialogue.line]

    def _tokens(self, dialogue: Dialogue) -> Tokens:
        text = self._text(dialogue, len(dialogue.messages))
        spans = [self._span(dialogue, place, text) for place, message in enumerate(dialogue.messages) if message.role == "assistant"]
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        learned = tuple(any(begin <= first < end for begin, end in spans) for first, _ in found["offset_mapping"])
        if not any(learned):
            raise TemplateError(f"line {dialogue.line}: the chat template writes no text of its assistant")
        if (largest := max(found["input_ids"])) >= self._vocabulary:
            seen = f"token {largest:,}, and the model has {self._vocabulary:,}"
            raise TemplateError(f"line {dialogue.line}: {seen}: the tokenizer is of another model")
        return Tokens(tuple(found["input_ids"]), learned, sum(len(self._ids(text[begin:end])) for begin, end in spans))

    def _span(self, dialogue: Dialogue, place: int, text: str) -> tuple[int, int]:
        """Return begin and end, in the text, of the answer at this place."""
        asked, answered = self._text(dialogue, place, is_asked=True), self._text(dialogue, place + 1).rstrip()
        if not (answered.startswith(asked) and text.startswith(answered)):
            raise TemplateError(
                f"line {dialogue.line}: the chat template does not write message {place + 1}, an answer, after the messages before it: "
                "the answer cannot be told from its prompt; wanted: a template that writes a dialogue in order"
            )
        return len(asked), len(answered)

    def _text(self, dialogue: Dialogue, num_messages: int, *, is_asked: bool = False) -> str:
        messages, tools = for_template(dialogue.messages[:num_messages]), list(dialogue.tools) or None
        return str(self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=is_asked))

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass
class Packed:
    """One sequence of dialogues."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)  # the next token, where that is to be learned
    num_said: int = 0  # of its dialogues

    def add(self, tokens: Tokens) -> None:
        self.ids += tokens.ids
        self.positions += range(len(tokens.ids))
        nexts = zip(tokens.ids[1:], tokens.learned[1:], strict=True)
        self.targets += [token if is_learned else IGNORED for token, is_learned in nexts] + [IGNORED]
        self.num_said += tokens.num_said

    def filled(self, sequence: int, padding: int) -> tuple[Tensor, Tensor]:
        """Return tokens and positions [2, sequence], and targets [sequence]. Padding is a dialogue of its own that is not learned."""
        num_missing = sequence - len(self.ids)
        ids, positions = self.ids + [padding] * num_missing, self.positions + list(range(num_missing))
        return torch.tensor([ids, positions]), torch.tensor(self.targets + [IGNORED] * num_missing)


class Fitting:
    """Dialogues that fit into a sequence; others are left out, and counted."""

    def __init__(self, scribe: Scribe, sequence: int) -> None:
        self._scribe, self._sequence = scribe, sequence
        self.num_seen = self.num_too_long = 0

    def of(self, dialogues: Sequence[Dialogue], order: Iterable[int]) -> Iterator[Tokens]:
        """Yield the tokens of dialogues in this order. Raises TemplateError where none of them fits."""
        for number in order:
            tokens = self._scribe.tokens(dialogues[number])
            self.num_seen += 1
            if len(tokens.ids) <= self._sequence:
                yield tokens
                continue
            self.num_too_long += 1
            if self.num_too_long == self.num_seen >= len(dialogues):
                raise TemplateError(f"none of {len(dialogues):,} dialogues fits into {self._sequence:,} tokens; raise lora_model.sequence")


def pack(dialogues: Iterable[Tokens], sequence: int) -> Iterator[Packed]:
    """Pack dialogues in their order, and begin a new sequence where the next does not fit; each must fit into one by itself."""
    packed = Packed()
    for tokens in dialogues:
        if len(packed.ids) + len(tokens.ids) > sequence:
            yield packed
            packed = Packed()
        packed.add(tokens)
    if packed.ids:
        yield packed


def shuffled(num: int) -> Iterator[int]:
    """Yield numbers below `num` without end, in another order each time around, the same on all ranks."""
    draw = random.Random(_SEED)  # noqa: S311 - nothing here is a secret
    while True:
        yield from draw.sample(range(num), num)


def batches(packed: Sequence[Packed], batch_size: int, sequence: int, padding: int) -> list[Batch]:
    """Return inputs [2, B, sequence], which are tokens and positions, and targets [B, sequence]; the last may be smaller."""
    filled = [one.filled(sequence, padding) for one in packed]
    groups = [filled[begin : begin + batch_size] for begin in range(0, len(filled), batch_size)]
    return [(torch.stack([inputs for inputs, _ in group], 1), torch.stack([targets for _, targets in group])) for group in groups]


def steps(parts: Sequence[Batch], share: Share) -> list[list[Part]]:
    """Return this rank's batches of each `share.num_parts`, weighted so that the mean over ranks is that over all tokens of a step.

    For a loss that is a sum over tokens.
    """
    own: list[list[Part]] = []
    for begin in range(0, len(parts), share.num_parts):
        step = parts[begin : begin + share.num_parts]
        num_learned = sum(int((targets != IGNORED).sum()) for _, targets in step)
        own.append([(weight * share.num_parts / num_learned, step[part]) for part, weight in share.parts])
    return own
