"""Dialogues as tokens by a chat template, and packed into rows of one length."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gpu_acceptance.measure.lora.samples import Share
from gpu_acceptance.measure.train.data import Batch
from gpu_acceptance.measure.train.step import Part

IGNORED = -100  # a target that counts nothing, as torch has it
_SEED = 0  # of the order


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TemplateError(ValueError):
    """A template by which nobody can tell what the assistant says."""


@dataclass(frozen=True, eq=False)
class Talk:
    """Messages and the functions that are offered, as chat templates take them. Known by being the same object."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    line: int  # of the file it came from


@dataclass(frozen=True)
class Tokens:
    """A whole dialogue."""

    ids: tuple[int, ...]
    learned: tuple[bool, ...]  # what the assistant says, up to the mark that ends it
    num_said: int  # tokens of what the assistant says, where that is cut by itself: those learned must be about as many


class Scribe:
    """Writes dialogues by the template of this tokenizer, which must be a fast one: those tell where in a text a token is.

    For a model that knows so many tokens: another one would end in its embedding, which costs a GPU the whole process.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", vocabulary: int) -> None:
        self.tokenizer, self._vocabulary = tokenizer, vocabulary
        self.tokens = cache(self._tokens)  # a dialogue is trained as often as there are epochs

    def prompt(self, talk: Talk) -> list[int]:
        """What the assistant is asked, where `talk` ends before its answer."""
        return self._ids(self._text(talk, len(talk.messages), is_asked=True))

    def _tokens(self, talk: Talk) -> Tokens:
        """Raises TemplateError."""
        text = self._text(talk, len(talk.messages))
        spans = [self._span(talk, place, text) for place, message in enumerate(talk.messages) if message["role"] == "assistant"]
        found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        learned = tuple(any(begin <= first < end for begin, end in spans) for first, _ in found["offset_mapping"])
        if not any(learned):
            raise TemplateError(f"line {talk.line}: the chat template writes none of what its assistant says")
        if (largest := max(found["input_ids"])) >= self._vocabulary:
            raise TemplateError(
                f"line {talk.line}: token {largest:,}, and the model has {self._vocabulary:,}: the tokenizer is of another model"
            )
        return Tokens(tuple(found["input_ids"]), learned, sum(len(self._ids(text[begin:end])) for begin, end in spans))

    def _span(self, talk: Talk, place: int, text: str) -> tuple[int, int]:
        """Where in the text the answer stands that is at this place."""
        asked, answered = self._text(talk, place, is_asked=True), self._text(talk, place + 1).rstrip()
        if not (answered.startswith(asked) and text.startswith(answered)):
            raise TemplateError(
                f"line {talk.line}: message {place + 1}, an answer, does not follow what comes before it as the chat template writes that: "
                "what the assistant says cannot be told from its prompt; wanted: a template that writes a dialogue in order"
            )
        return len(asked), len(answered)

    def _text(self, talk: Talk, num_messages: int, *, is_asked: bool = False) -> str:
        messages, tools = list(talk.messages[:num_messages]), list(talk.tools) or None
        return str(self.tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=is_asked))

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass
class Packed:
    """One sequence, and what is in it."""

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
        """Tokens and positions [2, sequence], and targets [sequence]. What fills it up is a dialogue of its own that nobody learns."""
        num_missing = sequence - len(self.ids)
        ids, positions = self.ids + [padding] * num_missing, self.positions + list(range(num_missing))
        return torch.tensor([ids, positions]), torch.tensor(self.targets + [IGNORED] * num_missing)

    @property
    def num_learned(self) -> int:
        return sum(target != IGNORED for target in self.targets)


class Fitting:
    """Dialogues that fit into a sequence; those that do not are left out, and counted."""

    def __init__(self, scribe: Scribe, sequence: int) -> None:
        self._scribe, self._sequence = scribe, sequence
        self.num_seen = self.num_too_long = 0

    def of(self, talks: Sequence[Talk], order: Iterable[int]) -> Iterator[Tokens]:
        """Raises TemplateError where none of all fits."""
        for number in order:
            tokens = self._scribe.tokens(talks[number])
            self.num_seen += 1
            if len(tokens.ids) <= self._sequence:
                yield tokens
                continue
            self.num_too_long += 1
            if self.num_too_long == self.num_seen >= len(talks):
                raise TemplateError(f"none of {len(talks):,} dialogues fits into {self._sequence:,} tokens; raise lora_model.sequence")


def pack(dialogues: Iterable[Tokens], sequence: int) -> Iterator[Packed]:
    """In their order, a new sequence where the next does not fit; each must fit into one by itself."""
    packed = Packed()
    for tokens in dialogues:
        if len(packed.ids) + len(tokens.ids) > sequence:
            yield packed
            packed = Packed()
        packed.add(tokens)
    if packed.ids:
        yield packed


def shuffled(num: int) -> Iterator[int]:
    """Numbers below `num` without end, in another order each time around, the same on all ranks."""
    draw = random.Random(_SEED)  # noqa: S311 - nothing here is a secret
    while True:
        yield from draw.sample(range(num), num)


def batches(packed: Sequence[Packed], batch_size: int, sequence: int, padding: int) -> list[Batch]:
    """Inputs [2, B, sequence], which are tokens and positions, and targets [B, sequence]; the last may be smaller."""
    filled = [one.filled(sequence, padding) for one in packed]
    groups = [filled[begin : begin + batch_size] for begin in range(0, len(filled), batch_size)]
    return [(torch.stack([inputs for inputs, _ in group], 1), torch.stack([targets for _, targets in group])) for group in groups]


def steps(parts: Sequence[Batch], share: Share) -> list[list[Part]]:
    """Of `share.num_parts` batches each, those of this rank; weighted so that the mean over ranks is that over all tokens of a step.

    For a loss that is a sum over tokens.
    """
    own: list[list[Part]] = []
    for begin in range(0, len(parts), share.num_parts):
        step = parts[begin : begin + share.num_parts]
        num_learned = sum(int((targets != IGNORED).sum()) for _, targets in step)
        own.append([(weight * share.num_parts / num_learned, step[part]) for part, weight in share.parts])
    return own
