r"""A line of the public data set glaive-function-calling-v2 of Glaive AI: two texts, with the names of the speakers in them.

{"system": "SYSTEM: You are ... functions. Use them if required -\n{...}\n\n{...}", "chat": "USER: ...\n\n\nASSISTANT: <functioncall>
{\"name\": \"...\", \"arguments\": '{...}'} <|endoftext|>\n\n\nFUNCTION RESPONSE: {...}\n\n\nASSISTANT: ... <|endoftext|>"}
"""

import re
from typing import Any

from gpu_acceptance.base.strict_json import StrictJsonError, parse_first
from gpu_acceptance.measure.lora.calls import find_calls
from gpu_acceptance.measure.lora.dialogue import Dialogue, Message, Role
from gpu_acceptance.measure.lora.learnable import DroppedError, learnable, tools

_SPEAKERS: dict[str, Role] = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
_SPEAKER = re.compile(rf"(?:^|<\|endoftext\|>)[ \t]*({'|'.join(_SPEAKERS)}):", re.MULTILINE)
_SYSTEM, _END, _CALL = "SYSTEM:", "<|endoftext|>", "<functioncall>"


def from_glaive(told: dict[str, Any], line: int) -> Dialogue:
    """Raises DroppedError."""
    system, chat = told["system"], told["chat"]
    if not isinstance(system, str) or not isinstance(chat, str):
        raise DroppedError("system or chat that is no text")
    words, brace, functions = system.strip().removeprefix(_SYSTEM).partition("{")
    said = words.strip(" \t\r\n-")
    first = [Message("system", said)] if said else []
    return learnable(tools(_objects(brace + functions)), [*first, *_messages(chat)], line)


def _objects(text: str) -> list[Any]:
    """One after the other."""
    found, place, text = [], 0, text.rstrip()
    while place < len(text):
        try:
            value, place = parse_first(text, place)
        except StrictJsonError:
            raise DroppedError("functions that are no JSON") from None
        found.append(value)
    return found


def _messages(chat: str) -> list[Message]:
    before, *parts = _SPEAKER.split(chat)
    if before.strip():
        raise DroppedError("a text before the first speaker")
    return [_message(_SPEAKERS[name], text) for name, text in zip(parts[::2], parts[1::2], strict=True)]


def _message(role: Role, text: str) -> Message:
    content = text.strip().removesuffix(_END).strip()
    if role != "assistant" or _CALL not in content:
        return Message(role, content)
    words, mark, call = content.partition(_CALL)
    found = find_calls(mark + call)
    if not found.calls:
        raise DroppedError("a call that is no JSON")
    return Message(role, words.strip(), found.calls)
