"""Strict models of data from outside, and messages of them on a pipe: one line of JSON each.

An unknown key, a NaN or a number in quotes is an error, not a guess.
"""

import json
import os
import re
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from gpu_acceptance.base.text import MAX_TEXT, one_line

CLOSED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_OF_A_VALUE = {("bool",), ("int",), ("constrained-int",), ("float",), ("str",)}  # how pydantic names the members of `Value`
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Index = Annotated[int, Field(ge=0)]

MAX_LINE_BYTES = 4 << 20
M = TypeVar("M", bound=BaseModel)


class Model(BaseModel):
    """Frozen, strict, and closed: an unknown key, a NaN or a number in quotes is an error, not a guess."""

    model_config = ConfigDict(frozen=True, **CLOSED)


class BetweenProcesses(BaseModel):
    """Base of messages: frozen, strict and closed. NaN and infinity are allowed, because a rank may have measured them."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


class Message(BetweenProcesses):
    """Base of messages that share a channel. `type`, by which a reader tells them apart, is the name of the class: `fence_ready`."""

    type: str = ""

    def __init_subclass__(cls, **how: Any) -> None:
        super().__init_subclass__(**how)
        cls.type = re.sub(r"(?<=.)(?=[A-Z])", "_", cls.__name__).lower()
        cls.__annotations__ = {**cls.__annotations__, "type": Literal[cls.type]}


def encode(model: BaseModel) -> str:
    """Return the model as one line of JSON; characters that UTF-8 cannot carry become escapes, so that no text stops a record."""
    try:
        return model.model_dump_json()
    except PydanticSerializationError:
        return json.dumps(_encodable(model.model_dump(mode="python")))


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return str.encode(value, "utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [_encodable(entry) for entry in value]
    return value


def first_problem(error: ValidationError) -> str:
    """Return one line for what is wrong; another schema version explains all else, so it is named first."""
    problems = error.errors(include_url=False)
    for problem in problems:
        if problem["loc"][-1:] == ("schema_version",) and problem["type"] == "literal_error":
            return f"schema_version is {one_line(repr(problem['input']))}; this version reads {problem['ctx']['expected']}"
    first = problems[0]
    alike = [one for one in problems if one["loc"][:-1] == first["loc"][:-1] and one["loc"][-1:] in _OF_A_VALUE]
    is_value = len(alike) > 1  # the input matches none of the types of one value
    where = one_line(".".join(str(part) for part in (first["loc"][:-1] if is_value else first["loc"])))
    others = len(problems) - max(1, len(alike))
    more = f" (and {others} more)" if others else ""
    if is_value:
        return f"{where}: Input should be a finite number, a text, true or false, not {one_line(repr(first['input']))[:80]}{more}"
    if first["type"] == "json_invalid":
        return f"not JSON: {one_line(first['msg'].removeprefix('Invalid JSON: '))}"
    if first["type"] == "missing":
        return f"{where} is missing{more}"
    if first["type"] in {"extra_forbidden", "unexpected_keyword_argument"}:  # of a model; of a dataclass
        return f"unknown key {where}{more}"
    at = f"{where}: " if where else ""
    return f"{at}{one_line(first['msg'])}, not {one_line(repr(first['input']))[:80]}{more}"


class ChannelError(ValueError):
    """The other side sent something that is no message, or too much of it."""


class LineReader(Generic[M]):
    """Cuts what arrives on a pipe into messages of these kinds."""

    def __init__(self, fd: int, kinds: TypeAdapter[M], max_bytes: int = MAX_LINE_BYTES) -> None:
        self.fd = fd
        self._kinds: TypeAdapter[M] = kinds
        self._max_bytes = max_bytes
        self._pending = b""

    def read(self) -> list[M] | None:
        """Return the messages that one read completes; None at the end of the stream.

        Blocks as the pipe does. Raises ChannelError.
        """
        try:
            data = os.read(self.fd, min(1 << 16, self._max_bytes))
        except BlockingIOError:
            return []
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        if len(self._pending) > self._max_bytes:
            raise ChannelError(f"a line of more than {self._max_bytes} bytes")
        messages = []
        for line in lines:
            try:
                messages.append(self._kinds.validate_json(line))
            except ValidationError as error:
                raise ChannelError(f"{line[:100]!r} ({first_problem(error)})") from None
        return messages


def encode_line(message: BaseModel) -> bytes:
    """Return a message as `LineReader` reads it."""
    return encode(message).encode() + b"\n"
