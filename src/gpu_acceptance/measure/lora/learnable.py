"""What a dialogue must be for a model to learn calls from it. Data sets hold others: those are dropped, and counted by reason."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from gpu_acceptance.measure.lora.dialogue import Dialogue, Message


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
