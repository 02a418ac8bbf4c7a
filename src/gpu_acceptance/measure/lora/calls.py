"""Dialogues in which functions are called, the calls in what a model generated, and their score against those that were due."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

from gpu_acceptance.base.strict_json import StrictJsonError, parse

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)
_HASHES = 2**64
MOST_TEXT = 2**17  # characters of an answer
MOST_CALLS = 64
_FENCES = (("<tool_call>", "</tool_call>"), ("<functioncall>", "</functioncall>"))
_END = re.compile(r"<\|(?:im_end|endoftext|end_of_text|eot_id|eom_id)\|>|</s>")  # what a tokenizer may show of the end of an answer
_BEGIN = "<|python_tag|>"  # as Llama 3.1 marks a call
_QUOTED = re.compile(r"""\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*'(.*)'\s*\}""", re.DOTALL)


class DialogueError(ValueError):
    """A file, or a set of dialogues, that cannot be learned from: where, what was seen, what is allowed."""


@dataclass(frozen=True)
class Call:
    """A function and its arguments, as JSON has them."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """What one side says; only an assistant calls functions, and may say something with it."""

    role: Role
    content: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Dialogue:
    """At least one answer of an assistant, and a user before it."""

    tools: tuple[
        dict[str, Any], ...
    ]  # {"type": "function", "function": {"name", "description", "parameters"}}, as chat templates take them
    messages: tuple[Message, ...]
    line: int  # of the file, from 1 on

    @property
    def first_answer(self) -> int:
        """Its place in `messages`; what is before it is the prompt."""
        return next(place for place, message in enumerate(self.messages) if message.role == "assistant")


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """As `apply_chat_template(for_template(messages), tools=list(dialogue.tools) or None)` of transformers takes them."""
    return [_for_template(message) for message in messages]


def _for_template(message: Message) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.calls]
        plain["tool_calls"] = [{"type": "function", "function": function} for function in functions]
    return plain


class DroppedError(ValueError):
    """Nothing can be learned from a line of good JSON: the reason, the same for all that are alike."""


def learnable(tools: Sequence[dict[str, Any]], messages: Sequence[Message], line: int) -> Dialogue:
    """Raises DroppedError."""
    spoken = [message for message in messages if message.role != "system"]
    if any(message.role == "system" for message in messages[1:]):
        raise DroppedError("a system message that is not the first")
    if not spoken or spoken[0].role != "user":
        raise DroppedError("no user who begins")
    if not any(message.role == "assistant" for message in spoken):
        raise DroppedError("no answer")
    for one in spoken:
        if not one.content.strip() and not one.calls and one.role != "tool":
            raise DroppedError("an empty message")
    for before, after in pairwise(spoken):
        _refuse_pair(before, after)
    offered = {tool["function"]["name"] for tool in tools}
    if any(call.name not in offered for message in messages for call in message.calls):
        raise DroppedError("a call of a function that is not offered")
    return Dialogue(tuple(tools), tuple(messages), line)


def _refuse_pair(before: Message, after: Message) -> None:
    if before.role == after.role == "assistant":
        raise DroppedError("two answers, and nothing between them")
    if after.role == "tool" and before.role != "tool" and not before.calls:
        raise DroppedError("a function answers that was not called")


def tool(told: Any) -> dict[str, Any]:
    """One function that is offered, as chat templates take it: from that, or from what is inside. Raises DroppedError."""
    function = told.get("function", told) if isinstance(told, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise DroppedError("a function without a name is offered")
    return {"type": "function", "function": function}


def tools(told: Sequence[Any]) -> list[dict[str, Any]]:
    """Raises DroppedError."""
    found = [tool(one) for one in told]
    if len({one["function"]["name"] for one in found}) < len(found):
        raise DroppedError("two functions of one name are offered")
    return found


def split(dialogues: Sequence[Dialogue], part: float) -> tuple[list[Dialogue], list[Dialogue]]:
    """To train, and held out: about `part` of them, in their order. Raises DialogueError where a side has no call.

    The hash is of the words up to the first answer, so that one prompt is never on both sides, however it is spaced and whichever
    functions are offered with it.
    """
    assert 0 < part < 1, part
    sides: tuple[list[Dialogue], list[Dialogue]] = ([], [])
    for dialogue in dialogues:
        sides[_hash(dialogue) < part * _HASHES].append(dialogue)
    for name, side in zip(("to train", "held out"), sides, strict=True):
        if not any(message.calls for dialogue in side for message in dialogue.messages):
            raise DialogueError(
                f"{len(dialogues):,} dialogues, {len(side):,} of them {name}, and no call in those: more dialogues are needed"
            )
    return sides


def _hash(dialogue: Dialogue) -> int:
    said = "\n".join(" ".join(f"{message.role} {message.content}".split()) for message in dialogue.messages[: dialogue.first_answer])
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:8])


@dataclass(frozen=True)
class Found:
    """The calls of one text, in their order; or why what is meant for one is none."""

    calls: tuple[Call, ...] = ()
    problem: str = ""

    @property
    def is_attempt(self) -> bool:
        """Whether the text means to call, well or badly."""
        return bool(self.calls or self.problem)


class _NoCallError(ValueError):
    """What is meant for a call is none."""


def find_calls(text: str) -> Found:
    """All or none: where one of several cannot be parsed, the text has no calls but a problem. Never raises."""
    if len(text) > MOST_TEXT:
        return Found(problem=f"longer than {MOST_TEXT} characters")
    try:
        calls = _calls(_END.split(text, maxsplit=1)[0].strip().removeprefix(_BEGIN).strip())
    except _NoCallError as error:
        return Found(problem=str(error))
    return Found(calls) if len(calls) <= MOST_CALLS else Found(problem=f"more than {MOST_CALLS} calls")


def _calls(text: str) -> tuple[Call, ...]:
    for begin, end in _FENCES:
        if begin in text or end in text:
            return tuple(map(_call, _fenced(text, begin, end)))
    is_meant = text.startswith("{") and '"name"' in text and ('"arguments"' in text or '"parameters"' in text)
    return (_call(text),) if is_meant else ()


def _fenced(text: str, begin: str, end: str) -> list[str]:
    """What stands between the fences; the last one may be open, as an answer leaves it whose end is a special token."""
    before, *parts = text.split(begin)
    blocks = [part.partition(end) for part in parts]
    if any(end in outside for outside in (before, *(after for _, _, after in blocks))):
        raise _NoCallError(f"{end} without {begin}")
    return [inside for inside, _, _ in blocks]


def _call(text: str) -> Call:
    value = _object(text.strip())
    keys = value.keys() & {"arguments", "parameters"}
    if not isinstance(value.get("name"), str) or not value["name"] or len(keys) != 1:
        raise _NoCallError("an object without a name, or without arguments")
    return Call(value["name"], arguments_of(value[keys.pop()]))


def arguments_of(value: Any) -> dict[str, Any]:
    """From an object, or from its text in JSON. Raises ValueError."""
    found = _parsed(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise _NoCallError("arguments that are no object")
    return found


def _object(text: str) -> dict[str, Any]:
    if quoted := _QUOTED.fullmatch(text):
        return {"name": _parsed(quoted[1]), "arguments": _unquoted(quoted[2])}
    value = _parsed(text)
    if not isinstance(value, dict):
        raise _NoCallError("a call that is no object")
    return value


def _unquoted(text: str) -> Any:
    """An apostrophe inside is written as it is, or after a backslash, which no JSON allows."""
    try:
        return _parsed(text)
    except _NoCallError:
        return _parsed(text.replace("\\'", "'"))


def _parsed(text: str) -> Any:
    try:
        return parse(text)
    except StrictJsonError as error:
        raise _NoCallError(f"no JSON: {error}") from None


class ScoreError(ValueError):
    """There is nothing to score: what was expected or generated holds no call."""


@dataclass(frozen=True)
class Tally:
    """Counts of prompts. An answer calls where it means to, well or badly; what cannot be parsed is told apart."""

    num_prompts: int
    num_expected: int  # prompts that are to be answered with calls; so are the next five counted of
    num_rightly_called: int
    num_parseable: int
    num_right_function: int  # the same functions as often, in any order
    num_right_arguments: int  # and each with its arguments
    num_called: int  # of all prompts, as all that follow
    num_parsed: int
    num_right: int  # answered with exactly the right calls; with none, and nothing that is meant for one, where none is right


@dataclass(frozen=True)
class Score:
    """Figures from 0 to 1; precision, recall and F1 are of the choice to call at all."""

    tally: Tally
    parseable: float  # of the prompts that are to be answered with calls, as the next two
    right_function: float
    right_arguments: float
    precision: float
    recall: float
    f1: float
    right: float  # of all prompts


def score(found: Tally) -> Score:
    """Raises ScoreError where no call was expected, or none came: that is no score."""
    if not found.num_expected:
        raise ScoreError(f"none of {found.num_prompts:,} prompts is to be answered with a call: there is nothing to score")
    if not found.num_parsed:
        attempts = f"{found.num_called:,} of {found.num_prompts:,} answers seem meant for one"
        raise ScoreError(f"no call could be parsed, and {attempts}; {found.num_expected:,} calls were expected: there is nothing to score")
    return Score(
        tally=found,
        parseable=found.num_parseable / found.num_expected,
        right_function=found.num_right_function / found.num_expected,
        right_arguments=found.num_right_arguments / found.num_expected,
        precision=found.num_rightly_called / found.num_called,
        recall=found.num_rightly_called / found.num_expected,
        f1=2 * found.num_rightly_called / (found.num_called + found.num_expected),
        right=found.num_right / found.num_prompts,
    )


def tally(expected: Sequence[Message], generated: Sequence[str]) -> Tally:
    """Of `generated[i]`, where `expected[i]` is right. All may be 0, as of a model that was not trained yet."""
    answers = [_Answer(message.calls, find_calls(text)) for message, text in zip(expected, generated, strict=True)]
    wanted = [one for one in answers if one.expected]
    return Tally(
        num_prompts=len(answers),
        num_expected=len(wanted),
        num_rightly_called=sum(one.found.is_attempt for one in wanted),
        num_parseable=sum(bool(one.found.calls) for one in wanted),
        num_right_function=sum(one.has_right_functions for one in wanted),
        num_right_arguments=sum(one.has_right_calls for one in wanted),
        num_called=sum(one.found.is_attempt for one in answers),
        num_parsed=sum(bool(one.found.calls) for one in answers),
        num_right=sum(one.has_right_calls if one.expected else not one.found.is_attempt for one in answers),
    )


@dataclass(frozen=True)
class _Answer:
    expected: tuple[Call, ...]
    found: Found

    @property
    def has_right_functions(self) -> bool:
        return Counter(call.name for call in self.expected) == Counter(call.name for call in self.found.calls)

    @property
    def has_right_calls(self) -> bool:
        return Counter(map(_canonical, self.expected)) == Counter(map(_canonical, self.found.calls))


def _canonical(call: Call) -> str:
    """The same for the same call: whatever the order of its arguments, and 2.0 for 2, but never true for 1."""
    return json.dumps([call.name, _plain(dict(call.arguments))], sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
