"""A line of messages with roles, as services for chat completion take them, and chat templates.

{"tools": [{"type": "function", "function": {...}}],
 "messages": [{"role": "user", "content": "..."}, {"role": "assistant", "tool_calls": [...]}, {"role": "tool", "content": "..."}]}
"""

from typing import Any, cast

from gpu_acceptance.measure.lora.calls import arguments_of
from gpu_acceptance.measure.lora.dialogue import ROLES, Call, Dialogue, Message, Role
from gpu_acceptance.measure.lora.learnable import DroppedError, learnable, tools


def from_chat(told: dict[str, Any], line: int) -> Dialogue:
    """Arguments are an object, or its text in JSON. Raises DroppedError."""
    messages, offered = told["messages"], told.get("tools") or []
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise DroppedError("messages that are no list of objects")
    if not isinstance(offered, list):
        raise DroppedError("tools that are no list")
    return learnable(tools(offered), [_message(message) for message in messages], line)


def _message(told: dict[str, Any]) -> Message:
    role, content, calls = told.get("role"), told.get("content"), told.get("tool_calls") or []
    if role not in ROLES:
        raise DroppedError(f"a role other than {', '.join(ROLES)}")
    if not isinstance(content, str | None):
        raise DroppedError("content that is no text")
    if not isinstance(calls, list) or (calls and role != "assistant"):
        raise DroppedError("calls that are no list, or not of an assistant")
    return Message(cast(Role, role), content or "", tuple(map(_call, calls)))


def _call(told: Any) -> Call:
    function = told.get("function") if isinstance(told, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise DroppedError("a call without a function's name")
    try:
        return Call(function["name"], arguments_of(function.get("arguments")))
    except ValueError:
        raise DroppedError("arguments that are no object") from None
