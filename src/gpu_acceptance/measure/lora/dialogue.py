"""A dialogue with function calls, whatever file it came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)


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
