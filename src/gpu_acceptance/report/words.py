"""How outcomes are shown: a symbol, a word and a tone, never colour alone."""

from dataclasses import dataclass
from typing import Literal

from gpu_acceptance.record.outcome import Outcome, Status

Tone = Literal["good", "bad", "open", "quiet"]


@dataclass(frozen=True)
class Mark:
    symbol: str
    word: str
    tone: Tone


VERDICT = {
    "ACCEPTED": Mark("✓", "ACCEPTED", "good"),
    "REJECTED": Mark("✗", "REJECTED", "bad"),
    "INCOMPLETE": Mark("○", "INCOMPLETE", "open"),
}

OUTCOME = {
    Outcome.PASSED: Mark("✓", "passed", "good"),
    Outcome.FAILED: Mark("✗", "FAILED", "bad"),
    Outcome.DIED: Mark("✗", "DIED", "bad"),
    Outcome.STUCK: Mark("✗", "STUCK", "bad"),
    Outcome.ERROR: Mark("!", "ERROR", "open"),
    Outcome.UNSTABLE: Mark("≈", "UNSTABLE", "open"),
    Outcome.NO_LIMIT: Mark("?", "NO LIMIT", "open"),
    Outcome.NOT_MEASURED: Mark("○", "NOT MEASURED", "open"),
    Outcome.SKIPPED: Mark("○", "SKIPPED", "open"),
    Outcome.NOT_RUN: Mark("○", "NOT RUN", "open"),
    Outcome.LOST: Mark("?", "LOST", "open"),
    Outcome.INTERRUPTED: Mark("!", "INTERRUPTED", "open"),
    Outcome.VICTIM: Mark("·", "victim", "quiet"),
    Outcome.NOT_APPLICABLE: Mark("–", "not applicable", "quiet"),
}

STATUS = {
    Status.HELD: Mark("✓", "held", "good"),
    Status.MISSED: Mark("✗", "MISSED", "bad"),
    Status.INVALID: Mark("!", "INVALID", "open"),
    Status.UNSTABLE: Mark("≈", "UNSTABLE", "open"),
    Status.NO_LIMIT: Mark("?", "NO LIMIT", "open"),
    Status.NOT_MEASURED: Mark("○", "NOT MEASURED", "open"),
    Status.WAIVED: Mark("~", "waived", "quiet"),
    Status.NOT_APPLICABLE: Mark("–", "not applicable", "quiet"),
}

# What decides nothing by itself, or was declared: no problem of the machine or of the run.
HARMLESS_OUTCOMES = frozenset({Outcome.PASSED, Outcome.NOT_APPLICABLE})
HARMLESS_STATUSES = frozenset({Status.HELD, Status.NOT_APPLICABLE, Status.WAIVED})

WITHIN_NOISE = "within noise: run it again with --confirm=2"
