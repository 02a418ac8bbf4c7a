"""Function calls in what a model generated, and their score against the calls that were due."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_acceptance.base.strict_json import StrictJsonError, parse
from gpu_acceptance.measure.lora.dialogue import Call, Message

MOST_TEXT = 2**17  # characters of an answer
MOST_CALLS = 64
_FENCES = (("<tool_call>", "</tool_call>"), ("<functioncall>", "</functioncall>"))
_END = re.compile(r"<\|(?:im_end|endoftext|end_of_text|eot_id|eom_id)\|>|</s>")  # what a tokenizer may show of the end of an answer
_BEGIN = "<|python_tag|>"  # as Llama 3.1 marks a call
_QUOTED = re.compile(r"""\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*'(.*)'\s*\}""", re.DOTALL)


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
