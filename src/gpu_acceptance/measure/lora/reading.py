"""Dialogues from files, in chat format and in that of glaive-function-calling-v2."""

import hashlib
import re
import shlex
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast, get_args

from gpu_acceptance.base.strict_json import StrictJsonError, parse, parse_first, text_of
from gpu_acceptance.measure.lora.calls import Call, Dialogue, DialogueError, Message, Role, arguments_of, find_calls

_ROLES: tuple[str, ...] = get_args(Role)
_SPEAKERS: dict[str, Role] = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
_SPEAKER = re.compile(rf"(?:^|<\|endoftext\|>)[ \t]*({'|'.join(_SPEAKERS)}):", re.MULTILINE)
_SYSTEM, _END, _CALL = "SYSTEM:", "<|endoftext|>", "<functioncall>"
MOST_LINE_BYTES = 2**20
MOST_BYTES = 2**29  # read within a minute
WANTED = 'one object a line, {"messages": [...], "tools": [...]} or {"system": ..., "chat": ...} of glaive-function-calling-v2'


class DroppedError(ValueError):
    """A line of valid JSON that is not learnable; equal faults have equal texts."""


def from_glaive(record: dict[str, Any], line: int) -> Dialogue:
    """Parse a line of glaive-function-calling-v2. Raises DroppedError."""
    system, chat = record["system"], record["chat"]
    if not isinstance(system, str) or not isinstance(chat, str):
        raise DroppedError("system or chat that is no text")
    words, brace, functions = system.strip().removeprefix(_SYSTEM).partition("{")
    text, place, offered = (brace + functions).rstrip(), 0, []
    while place < len(text):  # objects that follow one another
        try:
            value, place = parse_first(text, place)
        except StrictJsonError:
            raise DroppedError("functions that are no JSON") from None
        offered.append(value)
    content = words.strip(" \t\r\n-")
    messages = [Message("system", content)] if content else []
    before, *parts = _SPEAKER.split(chat)
    if before.strip():
        raise DroppedError("a text before the first speaker")
    for name, said in zip(parts[::2], parts[1::2], strict=True):
        role, content = _SPEAKERS[name], said.strip().removesuffix(_END).strip()
        calls: tuple[Call, ...] = ()
        if role == "assistant" and _CALL in content:
            content, mark, call = content.partition(_CALL)
            content, calls = content.strip(), find_calls(mark + call).calls
            if not calls:
                raise DroppedError("a call that is no JSON")
        messages.append(Message(role, content, calls))
    return _learnable(_tools(offered), messages, line)


def from_chat(record: dict[str, Any], line: int) -> Dialogue:
    """Parse a line in chat format. Arguments are an object, or its text in JSON. Raises DroppedError."""
    messages, offered = record["messages"], record.get("tools") or []
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise DroppedError("messages that are no list of objects")
    if not isinstance(offered, list):
        raise DroppedError("tools that are no list")
    return _learnable(_tools(offered), [_chat_message(message) for message in messages], line)


def _chat_message(told: dict[str, Any]) -> Message:
    role, content, calls = told.get("role"), told.get("content"), told.get("tool_calls") or []
    if role not in _ROLES:
        raise DroppedError(f"a role other than {', '.join(_ROLES)}")
    if not isinstance(content, str | None):
        raise DroppedError("content that is no text")
    if not isinstance(calls, list) or (calls and role != "assistant"):
        raise DroppedError("calls that are no list, or not of an assistant")
    return Message(cast(Role, role), content or "", tuple(map(_chat_call, calls)))


def _chat_call(told: Any) -> Call:
    function = told.get("function") if isinstance(told, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise DroppedError("a call without a function's name")
    try:
        return Call(function["name"], arguments_of(function.get("arguments")))
    except ValueError:
        raise DroppedError("arguments that are no object") from None


def _learnable(tools: Sequence[dict[str, Any]], messages: Sequence[Message], line: int) -> Dialogue:
    """Check a dialogue. Raises DroppedError."""
    spoken = [message for message in messages if message.role != "system"]
    offered, pairs = {tool["function"]["name"] for tool in tools}, list(pairwise(spoken))
    faults = {
        "a system message that is not the first": any(message.role == "system" for message in messages[1:]),
        "no user who begins": not spoken or spoken[0].role != "user",
        "no answer": all(message.role != "assistant" for message in spoken),
        "an empty message": any(not one.content.strip() and not one.calls and one.role != "tool" for one in spoken),
        "two answers, and nothing between them": any(before.role == after.role == "assistant" for before, after in pairs),
        "a function answers that was not called": any(
            after.role == "tool" and before.role != "tool" and not before.calls for before, after in pairs
        ),
        "a call of a function that is not offered": any(call.name not in offered for message in messages for call in message.calls),
    }
    for reason, is_faulty in faults.items():
        if is_faulty:
            raise DroppedError(reason)
    return Dialogue(tuple(tools), tuple(messages), line)


def _tools(offered: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the offered functions as chat templates take them, from that form or from its inner object. Raises DroppedError."""
    found: list[dict[str, Any]] = []
    for one in offered:
        function = one.get("function", one) if isinstance(one, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise DroppedError("a function without a name is offered")
        found.append({"type": "function", "function": function})
    if len({one["function"]["name"] for one in found}) < len(found):
        raise DroppedError("two functions of one name are offered")
    return found


@dataclass(frozen=True)
class Read:
    """The content of a file of dialogues."""

    dialogues: tuple[Dialogue, ...]
    dropped: Counter[str]  # reason -> lines of valid JSON that are not learnable
    num_lines: int  # without blank ones
    num_calls: int
    sha256: str  # of the file, in hexadecimal


def read(path: Path) -> Read:
    """Read a file. Raises DialogueError, with the line, for a file that is not JSON lines, has no dialogue, or no call."""
    digest = hashlib.sha256()
    dialogues: list[Dialogue] = []
    dropped: Counter[str] = Counter()
    for number, line in _lines(path, digest.update):
        told = _object(path, number, line)
        try:
            if "messages" in told:
                dialogues.append(from_chat(told, number))
            elif "system" in told and "chat" in told:
                dialogues.append(from_glaive(told, number))
            else:
                raise DroppedError("neither messages, nor system and chat")
        except DroppedError as error:
            dropped[str(error)] += 1
    num_calls = sum(len(message.calls) for dialogue in dialogues for message in dialogue.messages)
    num_lines = len(dialogues) + dropped.total()
    if not dialogues:
        raise DialogueError(f"{path}: {num_lines:,} lines, and no dialogue to learn from{_reasons(dropped)}; wanted: {WANTED}")
    if not num_calls:
        raise DialogueError(f"{path}: no call in {len(dialogues):,} dialogues{_reasons(dropped)}: nothing to learn about calling functions")
    return Read(tuple(dialogues), dropped, num_lines, num_calls, digest.hexdigest())


def _lines(path: Path, update: Callable[[bytes], None]) -> Iterator[tuple[int, bytes]]:
    """Yield numbers and contents of lines that are not blank, of a regular file only: opening a pipe would never end."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise DialogueError(f"{path}: not a file; wanted on every node: {WANTED}")
        if found.st_size > MOST_BYTES:
            raise DialogueError(f"{path}: {found.st_size:,} bytes; wanted: at most {MOST_BYTES:,}, a part of it will do")
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MOST_LINE_BYTES + 1):
                number += 1
                if len(line) > MOST_LINE_BYTES:
                    raise DialogueError(f"{path}, line {number}: longer than {MOST_LINE_BYTES:,} bytes; wanted: {WANTED}")
                update(line)
                if line.strip():
                    yield number, line
    except OSError as error:
        raise DialogueError(f"{path}: cannot be read: {error.strerror}; wanted on every node: {WANTED}") from None


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    if line.lstrip().startswith(b"["):
        raise DialogueError(
            f"{path}, line {number}: a list; wanted: {WANTED}; from one list: jq -c '.[]' {shlex.quote(path.name)} > lines.jsonl"
        )
    try:
        told = parse(text_of(line))
    except StrictJsonError as error:
        raise DialogueError(f"{path}, line {number}: {error}; wanted: {WANTED}") from None
    if not isinstance(told, dict):
        raise DialogueError(f"{path}, line {number}: no object; wanted: {WANTED}")
    return told


def _reasons(dropped: Counter[str]) -> str:
    told = ", ".join(f"{reason} ({number:,})" for reason, number in dropped.most_common())
    return f": {told}" if told else ""
