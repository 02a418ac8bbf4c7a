"""A dialogue in tokens, by the template of a checkpoint: those that its assistant says are to be learned, and no others."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

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
