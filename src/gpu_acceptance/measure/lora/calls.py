"""Dialogues with function calls, the calls in generated text, and their score against the expected ones."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from gpu_acceptance.base.strict_json import StrictJsonError, parse

Role = Literal["system", "user", "assistant", "tool"]
_HASHES = 2**64
MOST_TEXT = 2**17  # characters of an answer
MOST_CALLS = 64
_FENCES = (("<tool_call>", "</tool_call>"), ("<functioncall>", "</functioncall>"))
_END = re.compile(r"<\|(?:im_end|endoftext|end_of_text|eot_id|eom_id)\|>|</s>")  # end marks that a tokenizer may show
_BEGIN = "<|python_tag|>"  # as Llama 3.1 marks a call
_QUOTED = re.compile(r"""\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*'(.*)'\s*\}""", re.DOTALL)


class DialogueError(ValueError):
    """A file, or a set of dialogues, that is not learnable: names the place, the fault, and what is allowed."""


@dataclass(frozen=True)
class Call:
    """A function and its arguments, as values of JSON."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """A message of one role; only an assistant calls functions, with or without a content."""

    role: Role
    content: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Dialogue:
    """At least one answer of an assistant, and a user before it."""

    # {"type": "function", "function": {"name", "description", "parameters"}}, as chat templates take them
    tools: tuple[dict[str, Any], ...]
    messages: tuple[Message, ...]
    line: int  # of the file, from 1 on

    @property
    def first_answer(self) -> int:
        """The place of the first answer in `messages`; the prompt is before it."""
        return next(place for place, message in enumerate(self.messages) if message.role == "assistant")


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as `apply_chat_template(messages, tools=list(dialogue.tools) or None)` of transformers takes them."""
    plain = []
    for message in messages:
        one: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.calls:
            functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.calls]
            one["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        plain.append(one)
    return plain


def split(dialogues: Sequence[Dialogue], part: float) -> tuple[list[Dialogue], list[Dialogue]]:
    """Split dialogues into those to train and those held out, about `part` of them. Raises DialogueError where a side has no call.

    The side depends on a hash of the words up to the first answer: one prompt is never on both sides, with any spacing and any functions.
    """
    assert 0 < part < 1, part
    sides: tuple[list[Dialogue], list[Dialogue]] = ([], [])
    for dialogue in dialogues:
        prompt = dialogue.messages[: dialogue.first_answer]
        words = "\n".join(" ".join(f"{message.role} {message.content}".split()) for message in prompt)
        number = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8])
        sides[number < part * _HASHES].append(dialogue)
    for name, side in zip(("to train", "held out"), sides, strict=True):
        if not any(message.calls for dialogue in side for message in dialogue.messages):
            seen = f"{len(dialogues):,} dialogues, {len(side):,} of them {name}"
            raise DialogueError(f"{seen}, and no call in those: more dialogues are needed")
    return sides


@dataclass(frozen=True)
class Found:
    """The calls of one text, in their order; or the fault of a text that tries to call."""

    calls: tuple[Call, ...] = ()
    problem: str = ""

    @property
    def is_attempt(self) -> bool:
        """True if the text tries to call, well or badly."""
        return bool(self.calls or self.problem)


class _NoCallError(ValueError):
    """A text that tries to call, and is not a valid call."""


def find_calls(text: str) -> Found:
    """Parse all calls of a text. If one of several cannot be parsed, the result has no calls but a problem. Never raises."""
    if len(text) > MOST_TEXT:
        return Found(problem=f"longer than {MOST_TEXT} characters")
    text = _END.split(text, maxsplit=1)[0].strip().removeprefix(_BEGIN).strip()
    fences = next(((begin, end) for begin, end in _FENCES if begin in text or end in text), None)
    is_meant = text.startswith("{") and '"name"' in text and ('"arguments"' in text or '"parameters"' in text)
    try:
        calls = tuple(map(_call, _fenced(text, *fences) if fences else [text] * is_meant))
    except _NoCallError as error:
        return Found(problem=str(error))
    return Found(calls) if len(calls) <= MOST_CALLS else Found(problem=f"more than {MOST_CALLS} calls")


def _fenced(text: str, begin: str, end: str) -> list[str]:
    """Return the texts between the fences. The last one may be open, where a special token ended the answer."""
    before, *parts = text.split(begin)
    blocks = [part.partition(end) for part in parts]
    if any(end in outside for outside in (before, *(after for _, _, after in blocks))):
        raise _NoCallError(f"{end} without {begin}")
    return [inside for inside, _, _ in blocks]


def _call(text: str) -> Call:
    if quoted := _QUOTED.fullmatch(text.strip()):
        name, inner = quoted.groups()
        try:
            value: Any = {"name": _parsed(name), "arguments": _parsed(inner)}
        except _NoCallError:  # an apostrophe inside is plain, or after a backslash, which JSON does not allow
            value = {"name": _parsed(name), "arguments": _parsed(inner.replace("\\'", "'"))}
    else:
        value = _parsed(text.strip())
    if not isinstance(value, dict):
        raise _NoCallError("a call that is no object")
    keys = value.keys() & {"arguments", "parameters"}
    if not isinstance(value.get("name"), str) or not value["name"] or len(keys) != 1:
        raise _NoCallError("an object without a name, or without arguments")
    return Call(value["name"], arguments_of(value[keys.pop()]))


def arguments_of(value: Any) -> dict[str, Any]:
    """Return the arguments, from an object or from its text in JSON. Raises ValueError."""
    found = _parsed(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise _NoCallError("arguments that are no object")
    return found


def _parsed(text: str) -> Any:
    try:
        return parse(text)
    except StrictJsonError as error:
        raise _NoCallError(f"no JSON: {error}") from None


class ScoreError(ValueError):
    """There is nothing to score: no call was expected, or none was generated."""


@dataclass(frozen=True)
class Tally:
    """Counts of prompts. An answer calls if it tries to, well or badly; calls that cannot be parsed are counted apart."""

    num_prompts: int
    num_expected: int  # prompts whose right answer is a call; the next four count among them
    num_rightly_called: int
    num_parseable: int
    num_right_function: int  # the expected functions, equally often, in any order
    num_right_arguments: int  # the expected calls, with their arguments
    num_called: int  # of all prompts, as the rest
    num_parsed: int
    num_right: int  # exactly the expected calls; or no attempt to call, where no call is expected


def score(found: Tally) -> dict[str, float]:
    """Return figures from 0 to 1 by name: the first three of prompts whose right answer is a call, `right` of all prompts.

    Precision, recall and F1 are of the choice to call at all. Raises ScoreError where no call was expected, or none was generated.
    """
    if not found.num_expected:
        raise ScoreError(f"none of {found.num_prompts:,} prompts expects a call: there is nothing to score")
    if not found.num_parsed:
        attempts = f"{found.num_called:,} of {found.num_prompts:,} answers try to call"
        raise ScoreError(f"no call could be parsed, {attempts}; {found.num_expected:,} calls were expected: there is nothing to score")
    return {
        "parseable": found.num_parseable / found.num_expected,
        "right_function": found.num_right_function / found.num_expected,
        "right_arguments": found.num_right_arguments / found.num_expected,
        "precision": found.num_rightly_called / found.num_called,
        "recall": found.num_rightly_called / found.num_expected,
        "f1": 2 * found.num_rightly_called / (found.num_called + found.num_expected),
        "right": found.num_right / found.num_prompts,
    }


def tally(expected: Sequence[Message], generated: Sequence[str]) -> Tally:
    """Count the answers `generated[i]`, where `expected[i]` is right. All counts may be 0, for a model that was not trained yet."""
    counts: Counter[str] = Counter()
    for message, text in zip(expected, generated, strict=True):
        found = find_calls(text)
        is_right = Counter(map(_canonical, message.calls)) == Counter(map(_canonical, found.calls))
        counts["num_called"] += found.is_attempt
        counts["num_parsed"] += bool(found.calls)
        counts["num_right"] += is_right if message.calls else not found.is_attempt
        if message.calls:
            counts["num_expected"] += 1
            counts["num_rightly_called"] += found.is_attempt
            counts["num_parseable"] += bool(found.calls)
            counts["num_right_function"] += Counter(call.name for call in message.calls) == Counter(call.name for call in found.calls)
            counts["num_right_arguments"] += is_right
    counts["num_prompts"] = len(generated)
    return Tally(*(counts[field.name] for field in fields(Tally)))


def _canonical(call: Call) -> str:
    """Return an equal text for equal calls, in any order of arguments; 2.0 equals 2, but true does not equal 1."""
    return json.dumps([call.name, _plain(dict(call.arguments))], sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
