"""Dialogues with function calls, and the calls in generated text."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gpu_acceptance.base.strict_json import StrictJsonError, parse, parse_all, parse_first
from gpu_acceptance.measure.lora import pythonic

Role = Literal["system", "user", "assistant", "tool"]
_HASHES = 2**64
MOST_TEXT = 2**17  # characters of an answer
MOST_CALLS = 64
_FENCES = (
    ("<tool_call>", "</tool_call>"),  # Hermes, Qwen
    ("<functioncall>", "</functioncall>"),  # Glaive
    ("<function_call>", "</function_call>"),
    ("<|tool_call|>", "<|/tool_call|>"),  # Phi-4-mini; without its end: Granite 3
    ("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron
    ("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2
    ("<|fn_start|>", "<|fn_end|>"),  # StarfleetAI/function-calling
)
_MISTRAL, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"  # Llama 3.1 for functions of one's own
_THINK, _THOUGHT = "<think>", "</think>"
_END = re.compile(r"<\|(?:im_end|endoftext|end_of_text|eot_id|eom_id|end)\|>|</s>|<end_of_turn>")  # end marks that a tokenizer may show
_BEGIN = "<|python_tag|>"  # as Llama 3.1 marks a call
_QUOTED = re.compile(r"""\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*'(.*)'\s*\}""", re.DOTALL)
_ARGUMENTS_IN = ("arguments", "parameters", "args", "input")  # the last three: Llama, LangChain, parts of a content
_BESIDE = {"name", "id", "index", "type"}  # what a call without arguments may have


class DialogueError(ValueError):
    """A file, or a set of dialogues, that is not learnable: names the place, the fault, and what is allowed."""


class DroppedError(ValueError):
    """A line or an object of a file that is not learnable, and why."""


@dataclass(frozen=True)
class Call:
    """A function and its arguments, as values of JSON."""

    name: str
    arguments: Mapping[str, Any]
    id: str = field(default="", compare=False)


@dataclass(frozen=True)
class Message:
    """A message of one role; only an assistant calls functions, with or without a content."""

    role: Role
    content: str
    calls: tuple[Call, ...] = ()
    thought: str = ""  # of an assistant, beside its content
    is_learned: bool = True  # an answer that its file gives the weight 0 is not
    call_id: str = field(default="", compare=False)  # of the call whose result this is
    name: str = field(default="", compare=False)  # of the function whose result this is, or of who speaks


@dataclass(frozen=True)
class Dialogue:
    """At least one answer of an assistant, and a user before it."""

    # {"type": "function", "function": {"name", "description", "parameters"}}, as chat templates take them
    tools: tuple[dict[str, Any], ...]
    messages: tuple[Message, ...]
    line: int  # of the file, or the number of the object in a list, from 1 on

    @property
    def answers(self) -> list[int]:
        """The places of all answers in `messages` that are learned."""
        return [place for place, message in enumerate(self.messages) if message.role == "assistant" and message.is_learned]


def for_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as `apply_chat_template(messages, tools=list(dialogue.tools) or None)` of transformers takes them."""
    plain = []
    for message in messages:
        one: dict[str, Any] = {"role": message.role, "content": message.content}
        more = {"reasoning_content": message.thought, "tool_call_id": message.call_id, "name": message.name}
        one |= {key: text for key, text in more.items() if text}
        if message.calls:
            one["tool_calls"] = [
                {
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                    **({"id": call.id} if call.id else {}),
                }
                for call in message.calls
            ]
        plain.append(one)
    return plain


def split(dialogues: Sequence[Dialogue], part: float) -> tuple[list[Dialogue], list[Dialogue]]:
    """Split dialogues into those to train and those held out, about `part` of them. Raises DialogueError where a side has no call.

    The side depends on a hash of the words up to the first answer: one prompt is never on both sides, with any spacing and any functions.
    """
    assert 0 < part < 1, part
    sides: tuple[list[Dialogue], list[Dialogue]] = ([], [])
    for dialogue in dialogues:
        first = next(place for place, message in enumerate(dialogue.messages) if message.role == "assistant")
        prompt = dialogue.messages[:first]
        words = "\n".join(" ".join(f"{message.role} {message.content}".split()) for message in prompt)
        number = int.from_bytes(hashlib.sha256(words.encode()).digest()[:8])
        sides[number < part * _HASHES].append(dialogue)
    for name, side in zip(("to train", "held out"), sides, strict=True):
        if not any(dialogue.messages[place].calls for dialogue in side for place in dialogue.answers):
            seen = f"{len(dialogues):,} dialogues, {len(side):,} of them {name}"
            raise DialogueError(f"{seen}, and no call in those: more dialogues are needed")
    return sides


@dataclass(frozen=True)
class Form:
    """Marks of an answer, learned from one that a chat template wrote."""

    begin: str = ""  # before the objects of its calls, where that is none of the known forms
    end: str = ""  # after each answer


@dataclass(frozen=True)
class Found:
    """The calls of one text, in their order, and what else it says; or the fault of a text that tries to call."""

    calls: tuple[Call, ...] = ()
    problem: str = ""
    content: str = ""  # before and after the calls

    @property
    def is_attempt(self) -> bool:
        """True if the text tries to call, well or badly."""
        return bool(self.calls or self.problem)


class _NoCallError(ValueError):
    """A text that tries to call, and is not a valid call."""


def find_calls(text: str, form: Form | None = None, *, is_call: bool = False) -> Found:
    """Parse all calls of a text. If one of several cannot be parsed, the result has no calls but a problem. Never raises.

    `is_call`: an object or a list in it, with nothing around, is meant for calls, whatever keys it has.
    """
    if len(text) > MOST_TEXT:
        return Found(problem=f"longer than {MOST_TEXT} characters")
    begin, end = (form.begin, form.end) if form else ("", "")
    text = text.split(end, 1)[0] if end else text
    thought, text = split_thought(_END.split(text, maxsplit=1)[0].strip())
    text = text.removeprefix(_BEGIN).strip()
    try:
        calls, content = _found(text, begin, is_call=is_call)
    except _NoCallError as error:
        return Found(problem=str(error))
    if len(calls) > MOST_CALLS:
        return Found(problem=f"more than {MOST_CALLS} calls")
    return Found(tuple(calls), content=f"{thought}{content}".strip())


def split_thought(text: str) -> tuple[str, str]:
    """Return the thought at the beginning of an answer, with its marks, and the rest. A prompt may have opened it already."""
    thought, mark, rest = text.partition(_THOUGHT)
    if not text.startswith(_THINK) and (not mark or any(begin in thought for begin, _ in _FENCES)):
        return "", text
    said = rest.lstrip()  # empty where the thought does not end
    return text[: len(text) - len(said)], said


def _found(text: str, begin: str, *, is_call: bool) -> tuple[list[Call], str]:
    """Return the calls of an answer, and its text beside them, which is all of it where it does not call."""
    if begin and begin in text:
        before, _, rest = text.partition(begin)
        return list(_objects(rest)), before
    if fences := next((fence for fence in _FENCES if fence[0] in text or fence[1] in text), None):
        blocks, content = _fenced(text, *fences)
        return [call for block in blocks for call in _block(block)], content
    if _MISTRAL in text:
        before, *blocks = text.split(_MISTRAL)
        return [call for block in blocks for call in _after_mark(block)], before
    if _FUNCTION in text:
        before, *blocks = text.split(_FUNCTION)
        return [_tagged(block) for block in blocks], before
    is_meant = is_call or ('"name"' in text and ('"arguments"' in text or '"parameters"' in text))
    if is_meant and text.startswith(("{", "[")):
        return _block(text), ""
    if not pythonic.begins(text):
        return [], text
    try:
        return _pythonic(text)
    except _NoCallError:
        if pythonic.ends(text):
            raise
        return [], text


def _fenced(text: str, begin: str, end: str) -> tuple[list[str], str]:
    """Return the texts between the fences, and the rest. The last one may be open, where a special token ended the answer."""
    before, *parts = text.split(begin)
    blocks = [part.partition(end) for part in parts]
    outside = [before, *(after for _, _, after in blocks)]
    if any(end in one for one in outside):
        raise _NoCallError(f"{end} without {begin}")
    return [inside for inside, _, _ in blocks], "\n".join(one.strip() for one in outside if one.strip())


def _objects(text: str) -> Iterator[Call]:
    """Yield a call for each object in the text, whatever stands between them."""
    place = text.find("{")
    if place < 0:
        raise _NoCallError("a mark of calls, and no call after it")
    while place >= 0:
        try:
            value, end = parse_first(text, place)
        except StrictJsonError as error:
            raise _NoCallError(f"no JSON: {error}") from None
        yield _call_of(value)
        place = text.find("{", end)


def _block(text: str) -> list[Call]:
    """Return the calls of objects that follow one another, or of a list of them, in JSON or as Python would write them."""
    text = text.strip()
    if pythonic.begins(text):
        calls, rest = _pythonic(text)
        if rest:
            raise _NoCallError("more after the list of calls")
        return calls
    if not text.startswith("["):
        return _in_a_row(text)
    calls = [_call_of(one) for one in _parsed_or_literal(text)]
    if not calls:
        raise _NoCallError("a list of no calls")
    return calls


def _in_a_row(text: str) -> list[Call]:
    try:
        values = parse_all(text)
    except StrictJsonError:
        return [_call(text)]
    return list(map(_call_of, values)) or [_call(text)]


def _pythonic(text: str) -> tuple[list[Call], str]:
    try:
        calls, rest = pythonic.calls_in(text)
    except ValueError as error:
        raise _NoCallError(str(error)) from None
    return [Call(*call) for call in calls], rest


def _after_mark(text: str) -> list[Call]:
    """Return the calls after a mark of Mistral: a list, or since its version 11 a name, perhaps an identifier, and arguments."""
    name, mark, arguments = text.partition(_ARGUMENTS)
    if not mark:
        return _block(text)
    return [Call(name.partition(_ID)[0].strip(), arguments_of(arguments.strip()))]


def _tagged(text: str) -> Call:
    name, mark, rest = text.partition(">")
    inside, _, after = rest.partition(_FUNCTION_END)
    if not mark or after.strip():
        raise _NoCallError("a call that does not end")
    return Call(name.strip(), arguments_of(inside.strip()))


def _call(text: str) -> Call:
    if quoted := _QUOTED.fullmatch(text.strip()):
        name, inner = quoted.groups()
        try:
            value: Any = {"name": _parsed(name), "arguments": _parsed(inner)}
        except _NoCallError:  # an apostrophe inside is plain, or after a backslash, which JSON does not allow
            value = {"name": _parsed(name), "arguments": _parsed(inner.replace("\\'", "'"))}
    else:
        value = _parsed_or_literal(text.strip())
    return _call_of(value)


def _call_of(value: Any) -> Call:
    if not isinstance(value, dict):
        raise _NoCallError("a call that is no object")
    return call_from(value["function"] if isinstance(value.get("function"), dict) else value)


def call_from(told: Mapping[str, Any]) -> Call:
    """Return the call of an object with a name and arguments, of which there may be none. Raises ValueError."""
    name, keys = told.get("name"), [key for key in _ARGUMENTS_IN if told.get(key) is not None]
    if not isinstance(name, str) or not name:
        raise _NoCallError("a call without a function's name")
    unknown = {key for key, value in told.items() if value is not None} - _BESIDE
    if len(keys) > 1 or (unknown and not told.keys() & set(_ARGUMENTS_IN)):
        raise _NoCallError("arguments that are no object")
    return Call(name, arguments_of(told[keys[0]]) if keys else {})


def arguments_of(value: Any) -> dict[str, Any]:
    """Return the arguments, from an object or from its text in JSON; a blank text and null are none. Raises ValueError."""
    found = _parsed(value.strip() or "null") if isinstance(value, str) else value
    if not isinstance(found, dict | None):
        raise _NoCallError("arguments that are no object")
    return found or {}


def _parsed_or_literal(text: str) -> Any:
    """Return a value in JSON, or as Python would write it, as the card of hermes-function-calling-v1 does."""
    try:
        return _parsed(text)
    except _NoCallError:
        try:
            return pythonic.literal_of(text)
        except ValueError:
            pass
        raise


def _parsed(text: str) -> Any:
    try:
        return parse(text)
    except StrictJsonError as error:
        raise _NoCallError(f"no JSON: {error}") from None
