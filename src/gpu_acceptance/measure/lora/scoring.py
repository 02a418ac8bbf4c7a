"""The score of generated answers against the expected ones."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from gpu_acceptance.measure.lora.calls import Call, Form, Message, find_calls


class ScoreError(ValueError):
    """There is nothing to score: no call was expected, or none was generated."""


@dataclass(frozen=True)
class Tally:
    """Counts of prompts. An answer calls if it tries to, well or badly; calls that cannot be parsed are counted apart."""

    num_prompts: int
    num_expected: int  # prompts whose right answer is a call; the next four count among them
    num_rightly_called: int
    num_parseable: int
    num_right_function: int  # the expected functions, equally often, in any order
    num_right_arguments: int  # the expected calls, with their arguments
    num_called: int  # of all prompts, as the rest
    num_parsed: int
    num_right: int  # exactly the expected calls; or no attempt to call, where no call is expected


def score(found: Tally) -> dict[str, float]:
    """Return figures from 0 to 1 by name: the first three of prompts whose right answer is a call, `right` of all prompts.

    Precision, recall and F1 are of the choice to call at all. Raises ScoreError where no call was expected, or none was generated.
    """
    if not found.num_expected:
        raise ScoreError(f"none of {found.num_prompts:,} prompts expects a call: there is nothing to score")
    if not found.num_parsed:
        attempts = f"{found.num_called:,} of {found.num_prompts:,} answers try to call"
        raise ScoreError(f"no call could be parsed, {attempts}; {found.num_expected:,} calls were expected: there is nothing to score")
    return {
        "parseable": found.num_parseable / found.num_expected,
        "right_function": found.num_right_function / found.num_expected,
        "right_arguments": found.num_right_arguments / found.num_expected,
        "precision": found.num_rightly_called / found.num_called,
        "recall": found.num_rightly_called / found.num_expected,
        "f1": 2 * found.num_rightly_called / (found.num_called + found.num_expected),
        "right": found.num_right / found.num_prompts,
    }


def tally(expected: Sequence[Message], generated: Sequence[str], form: Form | None = None) -> Tally:
    """Count the answers `generated[i]`, in this form, where `expected[i]` is right.

    All counts may be 0, for a model that was not trained yet.
    """
    counts: Counter[str] = Counter()
    for message, text in zip(expected, generated, strict=True):
        found = find_calls(text, form)
        is_right = Counter(map(_canonical, message.calls)) == Counter(map(_canonical, found.calls))
        counts["num_called"] += found.is_attempt
        counts["num_parsed"] += bool(found.calls)
        counts["num_right"] += is_right if message.calls else not found.is_attempt
        if message.calls:
            counts["num_expected"] += 1
            counts["num_rightly_called"] += found.is_attempt
            counts["num_parseable"] += bool(found.calls)
            counts["num_right_function"] += Counter(call.name for call in message.calls) == Counter(call.name for call in found.calls)
            counts["num_right_arguments"] += is_right
    counts["num_prompts"] = len(generated)
    return Tally(*(counts[field.name] for field in fields(Tally)))


def _canonical(call: Call) -> str:
    """Return an equal text for equal calls, in any order of arguments; 2.0 equals 2, but true does not equal 1."""
    return json.dumps([call.name, _plain(dict(call.arguments))], sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
