"""Whether a model calls the right functions: figures of what it generated on prompts whose answer is known."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_acceptance.dialogues.dialogue import Message


class ScoreError(ValueError):
    """There is nothing to score: what was expected or generated holds no call."""


@dataclass(frozen=True)
class Tally:
    """Counts of prompts."""

    num_prompts: int
    num_expected: int  # prompts that are to be answered with calls
    num_called: int  # answers that hold calls, or what was meant for one
    num_unparseable: int  # of those, answers of which nothing can be parsed
    num_parseable: int  # answers with calls, where calls were expected
    num_right_function: int  # and of the right functions
    num_right_arguments: int  # and with the right arguments
    num_right: int  # prompts answered with exactly the right calls, or with none where none is right


@dataclass(frozen=True)
class Score:
    """Relative figures, all from 0 to 1."""

    tally: Tally
    parseable: float  # of the prompts that are to be answered with calls, and so the next two
    right_function: float
    right_arguments: float
    precision: float  # of call / no call
    recall: float
    f1: float
    right: float  # of all prompts


def tally(expected: Sequence[Message], generated: Sequence[str]) -> Tally:
    """Counts `generated[i]`, decoded without special tokens, against `expected[i]`. Zero is a count."""
    raise NotImplementedError(expected, generated)


def score(expected: Sequence[Message], generated: Sequence[str]) -> Score:
    """The same as shares. Raises ScoreError where no call was expected, or none was generated: that is no score."""
    raise NotImplementedError(expected, generated)
