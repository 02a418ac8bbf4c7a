"""Whether a model calls the right functions: figures of what it generated on prompts whose answer is known."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_acceptance.measure.lora.calls import Found, find_calls
from gpu_acceptance.measure.lora.dialogue import Call, Message


class ScoreError(ValueError):
    """There is nothing to score: what was expected or generated holds no call."""


@dataclass(frozen=True)
class Tally:
    """Counts of prompts. An answer calls where it means to, well or badly; what cannot be parsed is told apart."""

    num_prompts: int
    num_expected: int  # prompts that are to be answered with calls; so are the next five counted of
    num_rightly_called: int
    num_parseable: int
    num_right_function: int  # the same functions as often, in any order
    num_right_arguments: int  # and each with its arguments
    num_called: int  # of all prompts, as all that follow
    num_parsed: int
    num_right: int  # answered with exactly the right calls; with none, and nothing that is meant for one, where none is right


@dataclass(frozen=True)
class Score:
    """Figures from 0 to 1; precision, recall and F1 are of the choice to call at all."""

    tally: Tally
    parseable: float  # of the prompts that are to be answered with calls, as the next two
    right_function: float
    right_arguments: float
    precision: float
    recall: float
    f1: float
    right: float  # of all prompts


def score(found: Tally) -> Score:
    """Raises ScoreError where no call was expected, or none came: that is no score."""
    if not found.num_expected:
        raise ScoreError(f"none of {found.num_prompts:,} prompts is to be answered with a call: there is nothing to score")
    if not found.num_parsed:
        attempts = f"{found.num_called:,} of {found.num_prompts:,} answers seem meant for one"
        raise ScoreError(f"no call could be parsed, and {attempts}; {found.num_expected:,} calls were expected: there is nothing to score")
    return Score(
        tally=found,
        parseable=found.num_parseable / found.num_expected,
        right_function=found.num_right_function / found.num_expected,
        right_arguments=found.num_right_arguments / found.num_expected,
        precision=found.num_rightly_called / found.num_called,
        recall=found.num_rightly_called / found.num_expected,
        f1=2 * found.num_rightly_called / (found.num_called + found.num_expected),
        right=found.num_right / found.num_prompts,
    )


def tally(expected: Sequence[Message], generated: Sequence[str]) -> Tally:
    """Of `generated[i]`, where `expected[i]` is right. All may be 0, as of a model that was not trained yet."""
    answers = [_Answer(message.calls, find_calls(text)) for message, text in zip(expected, generated, strict=True)]
    wanted = [one for one in answers if one.expected]
    return Tally(
        num_prompts=len(answers),
        num_expected=len(wanted),
        num_rightly_called=sum(one.found.is_attempt for one in wanted),
        num_parseable=sum(bool(one.found.calls) for one in wanted),
        num_right_function=sum(one.has_right_functions for one in wanted),
        num_right_arguments=sum(one.has_right_calls for one in wanted),
        num_called=sum(one.found.is_attempt for one in answers),
        num_parsed=sum(bool(one.found.calls) for one in answers),
        num_right=sum(one.has_right_calls if one.expected else not one.found.is_attempt for one in answers),
    )


@dataclass(frozen=True)
class _Answer:
    expected: tuple[Call, ...]
    found: Found

    @property
    def has_right_functions(self) -> bool:
        return Counter(call.name for call in self.expected) == Counter(call.name for call in self.found.calls)

    @property
    def has_right_calls(self) -> bool:
        return Counter(map(_canonical, self.expected)) == Counter(map(_canonical, self.found.calls))


def _canonical(call: Call) -> str:
    """The same for the same call: whatever the order of its arguments, and 2.0 for 2, but never true for 1."""
    return json.dumps([call.name, _plain(dict(call.arguments))], sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
