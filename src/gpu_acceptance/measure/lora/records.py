"""One dialogue from one JSON object: in chat format, or as public data sets have it (ShareGPT, ToolACE, APIGen, xLAM, Glaive, TRL).

Sources, read 2026-11: messages and weights: learn.microsoft.com, "Fine-tuning and tool calling"; roles of
ShareGPT and ms-swift, and calls in a row as one answer: agent_chat of NeMo AutoModel; arguments that are null or missing: langfuse#10452,
OpenRouterTeam/ai-sdk-provider#310; identifiers of nine characters: ml-explore/mlx-lm#1375.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from gpu_acceptance.base.strict_json import StrictJsonError, parse, parse_all
from gpu_acceptance.measure.lora.calls import Call, Dialogue, DroppedError, Message, Role, call_from, find_calls
from gpu_acceptance.measure.lora.functions import offered_in, schema_of, tools_of, without_nulls
from gpu_acceptance.measure.lora.pythonic import literal_of

_ROLES: dict[str, Role] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("tool", "function", "ipython", "observation", "function_response", "tool_response"), "tool"),
}
_CALLING = ("function_call", "tool_call")  # roles whose whole content is a call
_MESSAGES, _TOOLS = ("messages", "conversations", "conversation"), ("tools", "functions", "tools_json")
_MEDIA = ("images", "image", "videos", "video", "audios", "audio")  # beside the messages, as ms-swift and TRL have them
_CONTENTS = ("content", "value", "refusal")
_THOUGHTS, _WEIGHTS = ("reasoning_content", "reasoning", "thinking"), ("train_detail", "weight", "train", "loss")
_SPEAKERS: dict[str, Role] = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
_SPEAKER = re.compile(rf"(?:^|<\|endoftext\|>)[ \t]*({'|'.join(_SPEAKERS)}):", re.MULTILINE)
_NAMED = re.compile(r'"name"\s*:\s*"([^"]+)"')
_SYSTEM, _END = "SYSTEM:", "<|endoftext|>"
_RESPONSE = ("<tool_response>", "</tool_response>")


def dialogue_of(record: dict[str, Any], line: int) -> Dialogue:
    """Parse one object by the format that its keys tell. Raises DroppedError."""
    if record.get("label") is False:
        raise DroppedError("an answer that is labelled as a bad one")
    if any(record.get(key) for key in _MEDIA):
        raise DroppedError("content that is no text")
    if any(record.get(key) is not None for key in _MESSAGES):
        return from_chat(record, line)
    if isinstance(record.get("prompt"), list) and isinstance(record.get("completion"), list):
        return from_parts(record, line)
    if record.keys() >= {"system", "chat"}:
        return from_glaive(record, line)
    if record.keys() >= {"query", "answers", "tools"}:
        return from_xlam(record, line)
    raise DroppedError("an object of no known format")


def from_chat(record: dict[str, Any], line: int) -> Dialogue:
    """Parse messages with roles, in the format of chat APIs or of ShareGPT. Raises DroppedError."""
    listed = _value(_first(record, _MESSAGES), "messages that are no list of objects")
    if not isinstance(listed, list) or not all(isinstance(message, dict) for message in listed):
        raise DroppedError("messages that are no list of objects")
    messages = [message for told in listed for message in _chat_messages(told)]
    system, _ = _content(record.get("system"), "system")
    if system.strip() and not any(message.role == "system" for message in messages):
        messages.insert(0, Message("system", system))
    offered = _value(_first(record, _TOOLS), "tools that are no list")
    if not offered and messages and messages[0].role == "system":
        offered, content = offered_in(messages[0].content)
        messages[:1] = [Message("system", content)] if content else []
    if not isinstance(offered or [], list):
        raise DroppedError("tools that are no list")
    return _learnable(tools_of([_value(one, "a function without a name is offered") for one in offered or []]), messages, line)


def from_parts(record: dict[str, Any], line: int) -> Dialogue:
    """Parse messages before and after the place from which on is learned, as TRL has them. Raises DroppedError."""
    before = [{**one, "weight": 0} if isinstance(one, dict) and one.get("role") == "assistant" else one for one in record["prompt"]]
    return from_chat({**record, "messages": [*before, *record["completion"]]}, line)


def from_xlam(record: dict[str, Any], line: int) -> Dialogue:
    """Parse a question, the right calls or words where no function fits, and the functions. Raises DroppedError."""
    answers, answer = record["answers"], {"role": "assistant", "content": record["answers"]}
    if not isinstance(answers, str) or answers.lstrip().startswith(("[", "{")):
        answer = {"role": "assistant", "tool_calls": _objects(answers, "answers")}
    tools = [{**one, "parameters": schema_of(one.get("parameters"))} for one in _objects(record["tools"], "tools")]
    return from_chat({"messages": [{"role": "user", "content": record["query"]}, answer], "tools": tools}, line)


def _objects(told: Any, name: str) -> list[dict[str, Any]]:
    value = _value(told, f"{name} that are no list")
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise DroppedError(f"{name} that are no list")
    return value


def from_glaive(record: dict[str, Any], line: int) -> Dialogue:
    """Parse an object of glaive-function-calling-v2. Raises DroppedError."""
    system, chat = record["system"], record["chat"]
    if not isinstance(system, str) or not isinstance(chat, str):
        raise DroppedError("system or chat that is no text")
    words, brace, functions = system.strip().removeprefix(_SYSTEM).partition("{")
    try:
        offered = parse_all(brace + functions)
    except StrictJsonError:
        raise DroppedError("functions that are no JSON") from None
    content = words.strip(" \t\r\n-")
    messages = [Message("system", content)] if content else []
    before, *parts = _SPEAKER.split(chat)
    if before.strip():
        raise DroppedError("a text before the first speaker")
    for name, said in zip(parts[::2], parts[1::2], strict=True):
        role, content = _SPEAKERS[name], said.strip().removesuffix(_END).strip()
        messages.append(_with_calls(Message(role, content)) if role == "assistant" else Message(role, content))
    return _learnable(tools_of(offered), messages, line)


def _first(record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the value of the first of these keys that has one, if possible one that is not empty."""
    values = [record[key] for key in keys if record.get(key) is not None]
    return next((value for value in values if value not in ("", [], {})), values[0] if values else None)


def _value(told: Any, fault: str) -> Any:
    """Return a value, also from its text in JSON or as Python would write it; a blank text has none."""
    if not isinstance(told, str):
        return told
    try:
        return parse(told) if told.strip() else None
    except StrictJsonError:
        with contextlib.suppress(ValueError):  # as str() of Python writes a list
            return literal_of(told.strip())
        raise DroppedError(fault) from None


# --- messages ------------------------------------------------------------------------------------------------------------------


def _chat_messages(told: dict[str, Any]) -> Iterator[Message]:
    """Yield the message of one object; an object whose content has results of functions is several."""
    name = _first(told, ("role", "from"))
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise DroppedError("a role other than system, user, assistant, tool")
    content, parts = _content(_first(told, _CONTENTS), role)
    yield from (_result(part) for part in parts if part["type"] == "tool_result")
    thoughts = [part.get("thinking") for part in parts if part["type"] == "thinking"]
    calls = tuple(map(_chat_call, [*(part for part in parts if part["type"] == "tool_use"), *_listed_calls(told)]))
    if calls and role != "assistant":
        raise DroppedError("calls that are not of an assistant")
    message = Message(
        role,
        content,
        calls,
        thought=_text(_first(told, _THOUGHTS)) or "\n".join(map(_text, thoughts)),
        is_learned=_is_learned(_first(told, _WEIGHTS)),
        call_id=_id(told.get("tool_call_id")),
        name=_text(told.get("name")),
    )
    if role == "assistant":
        message = _with_calls(message, is_call=name in _CALLING)
        if name in _CALLING and not message.calls:
            raise DroppedError("a call that is no JSON")
    if role == "tool":
        yield from _results(message)
    elif content or not any(part["type"] == "tool_result" for part in parts):
        yield message


def _content(told: Any, role: Role) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a content, and its parts that are calls or results. Raises DroppedError."""
    if isinstance(told, str | None):
        return told or "", []
    is_parts = isinstance(told, list) and all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in told)
    if role == "tool" and not (is_parts and told):
        return json.dumps(told, ensure_ascii=False), []
    allowed = {"assistant": {"text", "tool_use", "thinking"}, "user": {"text", "tool_result"}}.get(role, {"text"})
    if not is_parts or not all(part["type"] in allowed for part in told):
        raise DroppedError("content that is no text")
    texts = [part.get("text") for part in told if part["type"] == "text"]
    if not all(isinstance(text, str) for text in texts):
        raise DroppedError("content that is no text")
    return "\n".join(texts), [part for part in told if part["type"] != "text"]


def _result(part: dict[str, Any]) -> Message:
    content, _ = _content(part.get("content"), "tool")
    return Message("tool", content, call_id=_id(part.get("tool_use_id")))


def _text(told: Any) -> str:
    return told if isinstance(told, str) else ""


def _id(told: Any) -> str:
    """Return an identifier, which some files number."""
    if told is None or isinstance(told, str):
        return told or ""
    if isinstance(told, int) and not isinstance(told, bool):
        return str(told)
    raise DroppedError("an identifier that is no text")


def _is_learned(weight: Any) -> bool:
    if weight is None or (isinstance(weight, bool | int | float) and weight in (0, 1)):
        return weight is None or bool(weight)
    raise DroppedError("a weight other than 0 and 1")


def _results(message: Message) -> Iterator[Message]:
    """Yield the results of one message, of which Hermes has several, one between marks after the other."""
    begin, end = _RESPONSE
    before, *parts = message.content.strip().split(begin)
    if before or not parts or not all(part.rstrip().endswith(end) and part.count(end) == 1 for part in parts):
        yield message
        return
    for part in parts:
        yield replace(message, content=part.replace(end, "").strip(), call_id=message.call_id if len(parts) == 1 else "")


def _with_calls(message: Message, *, is_call: bool = False) -> Message:
    """Return the message with the calls that its text makes. Raises DroppedError."""
    found = find_calls(message.content, is_call=is_call)
    if found.problem and message.is_learned:
        raise DroppedError("a call in the text that cannot be read")
    if not found.calls:
        return message
    if message.calls and message.calls != found.calls:
        raise DroppedError("calls in the text and others beside it")
    return replace(message, content=found.content, calls=message.calls or found.calls)


# --- calls ---------------------------------------------------------------------------------------------------------------------


def _listed_calls(told: dict[str, Any]) -> list[Any]:
    calls = _value(told.get("tool_calls"), "calls that are no list") or []
    if not isinstance(calls, list):
        raise DroppedError("calls that are no list")
    single = told.get("function_call")
    if not single or (isinstance(single, dict) and all(value is None for value in single.values())):  # as Arrow fills structs up
        return [_value(one, "a call without a function's name") for one in calls]
    if calls:
        raise DroppedError("calls in tool_calls and in function_call")
    return [{"function": single}]


def _chat_call(told: Any) -> Call:
    function = told.get("function", told) if isinstance(told, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise DroppedError("a call without a function's name")
    identifier = _id(told.get("id"))
    try:
        return replace(call_from(function), id=identifier)
    except ValueError:
        raise DroppedError("arguments that are no object") from None


# --- a whole dialogue ----------------------------------------------------------------------------------------------------------


def _learnable(tools: Sequence[dict[str, Any]], messages: Sequence[Message], line: int) -> Dialogue:
    """Check a dialogue. Raises DroppedError."""
    messages = _joined(messages)
    spoken = [message for message in messages if message.role != "system"]
    offered, pairs = {tool["function"]["name"] for tool in tools}, list(pairwise(spoken))
    faults = {
        "a system message that is not the first": any(message.role == "system" for message in messages[1:]),
        "no user who begins": not spoken or spoken[0].role != "user",
        "no answer": all(message.role != "assistant" for message in spoken),
        "no answer with a weight": not any(message.role == "assistant" and message.is_learned for message in spoken),
        "an empty message": any(not one.content.strip() and not one.calls and one.role != "tool" for one in spoken),
        "two answers, and nothing between them": any(before.role == after.role == "assistant" for before, after in pairs),
        "a function answers that was not called": any(
            after.role == "tool" and before.role != "tool" and not before.calls for before, after in pairs
        ),
        "a call in a form that is not known": any(
            _may_call(one.content, offered) for one in messages if one.role == "assistant" and one.is_learned and not one.calls
        ),
        "a call of a function that is not offered": any(
            call.name not in offered for message in messages if message.is_learned for call in message.calls
        ),
    }
    for reason, is_faulty in faults.items():
        if is_faulty:
            raise DroppedError(reason)
    return Dialogue(tuple(tools), tuple(_identified(messages, tools)), line)


def _may_call(content: str, offered: set[str]) -> bool:
    """Return True for a text that has an offered function as ToolACE or as JSON would call it, perhaps in a fence of Markdown."""
    if re.search('"(arguments|parameters)"', content) and not offered.isdisjoint(_NAMED.findall(content)):
        return True
    text = content.strip().removeprefix("[").lstrip()
    return content.lstrip().startswith("[") and any(
        text.startswith(name) and text.removeprefix(name).lstrip().startswith("(") for name in offered
    )


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Return the messages, of which an answer and calls after it, with nothing said between them, are one answer."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        if last and message.calls and last.role == message.role and not message.content and last.is_learned == message.is_learned:
            thought = "\n".join(filter(None, (last.thought, message.thought)))
            found[-1] = replace(last, calls=last.calls + message.calls, thought=thought)
        else:
            found.append(message)
    return found


def _identified(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Iterator[Message]:
    """Yield the messages with a name and an identifier for each call and its result, and without nulls that stand for nothing.

    An identifier that the file does not give is nine letters and digits, which templates of Mistral ask for.
    """
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
    number, waiting = 0, list[Call]()
    for message in messages:
        if message.role == "assistant":
            calls = []
            for call in message.calls:
                arguments = without_nulls(dict(call.arguments), schemas.get(call.name))
                calls.append(replace(call, arguments=arguments, id=call.id or f"call{number:05d}"))
                number += 1
            waiting = list(calls)
            yield replace(message, calls=tuple(calls))
        elif message.role == "tool" and waiting:
            of = waiting.pop(next((place for place, call in enumerate(waiting) if call.id == message.call_id), 0))
            yield replace(message, call_id=message.call_id or of.id, name=message.name or of.name)
        else:
            yield message
