"""Dialogues in which functions are called: what can be learnt from, and the split into training and test."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)
_HASHES = 2**64


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
