"""Dialogues that are made: requests in few words, each a call of one function or none.

All that is asked for stands in the request, so that a small model learns to copy it into the call.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST = 10_000  # prompts that differ
_PART_WITHOUT_CALL = 0.28
_PART_THAT_GOES_ON = 0.25  # with what the function answers, and a last word
_NUM_OFFERED = 2  # functions in each dialogue

_CITIES = ("Basel", "Bergen", "Cadiz", "Delft", "Genoa", "Kyoto", "Lagos", "Lima", "Malmo", "Oslo", "Porto", "Quito", "Riga", "Turin")
_PEOPLE = ("Ada", "Alan", "Barbara", "Donald", "Edsger", "Emmy", "Grace", "John", "Kurt", "Lise", "Marie", "Niels", "Otto", "Sofia")
_THINGS = ("apples", "bread", "candles", "cheese", "coffee", "flour", "honey", "lemons", "milk", "olives", "paper", "rice", "salt", "tea")
_ROOMS = ("attic", "bedroom", "cellar", "garage", "hall", "kitchen", "library", "office", "studio", "workshop")
_SONGS = ("autumn", "dawn", "harbour", "lantern", "meadow", "midnight", "river", "sparrow", "thunder", "winter")


@dataclass(frozen=True)
class _Function:
    description: str
    values: Mapping[str, Sequence[str] | range]  # by the name of the parameter; a short choice is an enumeration
    phrases: tuple[str, ...]


_FUNCTIONS = {
    "set_alarm": _Function(
        "Wakes a person",
        {"person": _PEOPLE, "hour": range(24), "day": ("today", "tomorrow")},
        ("wake {person} {day} at {hour}", "set an alarm for {person} at {hour} {day}", "{day} at {hour} please wake {person}"),
    ),
    "set_heating": _Function(
        "Heats or cools a room",
        {"room": _ROOMS, "degrees": range(12, 28), "mode": ("heat", "cool")},
        (
            "{mode} the {room} to {degrees} degrees",
            "I want {degrees} degrees in the {room} so {mode} it",
            "please {mode} to {degrees} in the {room}",
        ),
    ),
    "order": _Function(
        "Orders goods",
        {"thing": _THINGS, "number": range(1, 40), "size": ("small", "medium", "large")},
        (
            "order {number} {size} packs of {thing}",
            "we need {thing} so get {number} {size} packs",
            "buy {size} packs of {thing} and make it {number}",
        ),
    ),
    "book_train": _Function(
        "Books a train",
        {"destination": _CITIES, "seats": range(1, 9), "day": ("today", "tomorrow")},
        (
            "book {seats} seats to {destination} {day}",
            "we are {seats} and go to {destination} {day}",
            "{day} we want a train to {destination} for {seats}",
        ),
    ),
    "send_note": _Function(
        "Sends a note",
        {"person": _PEOPLE, "about": _THINGS, "urgency": ("low", "normal", "high")},
        ("send {person} a note about {about} with {urgency} urgency", "tell {person} about the {about} and urgency is {urgency}"),
    ),
    "weather": _Function(
        "Forecasts the weather",
        {"city": _CITIES, "days": range(1, 15), "unit": ("celsius", "fahrenheit")},
        ("weather in {city} for {days} days in {unit}", "how is {city} in the next {days} days in {unit}"),
    ),
    "play": _Function(
        "Plays a song",
        {"song": _SONGS, "room": _ROOMS, "volume": range(1, 31)},
        ("play {song} in the {room} at volume {volume}", "I want to hear {song} at {volume} in the {room}"),
    ),
    "share_cost": _Function(
        "Shares a cost",
        {"payer": _PEOPLE, "amount": range(2, 100), "thing": _THINGS},
        ("{payer} paid {amount} for {thing}", "the {thing} did cost {payer} {amount}", "share the {amount} that {payer} gave for {thing}"),
    ),
}
_TALK: Mapping[str, Sequence[str]] = {"city": _CITIES, "person": _PEOPLE, "thing": _THINGS, "room": _ROOMS, "song": _SONGS}
_PHRASES_OF_TALK = (
    "do you think that {person} likes {thing} from {city}",
    "did {person} ever hear {song} in {city}",
    "is there good {thing} in the {room} of {person}",
    "why did {person} call it {song} and not {thing}",
    "does {thing} from {city} belong into the {room}",
    "thank you from {person} for {thing} in the {room}",
)
_ANSWER_TO_TALK = "I can not tell you that."
_LAST_WORD = "It is done."


def made(num: int, seed: int) -> list[dict[str, Any]]:
    """`num` dialogues as lines of a file in chat format, no two with the same prompt; the same for the same seed. Raises ValueError."""
    if not 0 < num <= MOST:
        raise ValueError(f"{num} dialogues; wanted: 1 to {MOST:,}")
    draw = random.Random(seed)  # noqa: S311 - nothing here is a secret
    lines: dict[str, dict[str, Any]] = {}
    while len(lines) < num:
        kind = _talk if draw.random() < _PART_WITHOUT_CALL else _request
        prompt, line = kind(draw)
        while prompt in lines:
            prompt, line = kind(draw)
        lines[prompt] = line
    return list(lines.values())


def _talk(draw: random.Random) -> tuple[str, dict[str, Any]]:
    prompt = draw.choice(_PHRASES_OF_TALK).format_map({name: draw.choice(words) for name, words in _TALK.items()})
    offered = draw.sample(sorted(_FUNCTIONS), _NUM_OFFERED)
    return prompt, _line(prompt, offered, [{"role": "assistant", "content": _ANSWER_TO_TALK}])


def _request(draw: random.Random) -> tuple[str, dict[str, Any]]:
    name = draw.choice(sorted(_FUNCTIONS))
    function = _FUNCTIONS[name]
    arguments = {parameter: draw.choice(values) for parameter, values in function.values.items()}
    others = draw.sample(sorted(_FUNCTIONS.keys() - {name}), _NUM_OFFERED - 1)
    offered = draw.sample([name, *others], _NUM_OFFERED)
    prompt = draw.choice(function.phrases).format_map(arguments)
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    answers: list[dict[str, Any]] = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    if draw.random() < _PART_THAT_GOES_ON:
        answers += [{"role": "tool", "content": json.dumps({"done": True})}, {"role": "assistant", "content": _LAST_WORD}]
    return prompt, _line(prompt, offered, answers)


def _line(prompt: str, offered: Sequence[str], answers: list[dict[str, Any]]) -> dict[str, Any]:
    return {"tools": [_tool(name) for name in offered], "messages": [{"role": "user", "content": prompt}, *answers]}


def _tool(name: str) -> dict[str, Any]:
    function = _FUNCTIONS[name]
    properties = {parameter: _schema(values) for parameter, values in function.values.items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": function.description, "parameters": parameters}}


def _schema(values: Sequence[str] | range) -> dict[str, Any]:
    if isinstance(values, range):
        return {"type": "integer"}
    return {"type": "string", "enum": list(values)} if len(values) <= 3 else {"type": "string"}
