"""Function calls in what a model, or a data set, has written. The text is untrusted: nothing that it holds raises.

Three ways of writing them, each of the chat templates of a family of models:
- `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one after the other: Hermes, Qwen.
- `<functioncall> {"name": ..., "arguments": '{...}'}`: the data set glaive-function-calling-v2, its arguments a JSON text in single quotes.
- `{"name": ..., "parameters": {...}}` and nothing else: Llama 3.1.
"""

import re
from dataclasses import dataclass
from typing import Any

from gpu_acceptance.base.strict_json import StrictJsonError, parse
from gpu_acceptance.measure.lora.dialogue import Call

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
