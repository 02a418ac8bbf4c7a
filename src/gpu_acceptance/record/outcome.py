"""How a validation ended, and how one bound of a limit fared."""

from enum import StrEnum


class Outcome(StrEnum):
    """How a validation ended, on one rank or over all of them."""

    PASSED = "passed"
    NOT_APPLICABLE = "not applicable"
    SKIPPED = "skipped"
    FAILED = "failed"
    DIED = "died"
    STUCK = "stuck"
    ERROR = "error"
    UNSTABLE = "unstable"
    NO_LIMIT = "no limit"
    NOT_MEASURED = "not measured"
    LOST = "lost"
    INTERRUPTED = "interrupted"
    NOT_RUN = "not run"
    VICTIM = "victim"


class Status(StrEnum):
    """How one bound of a limit fared."""

    HELD = "held"
    MISSED = "missed"
    UNSTABLE = "unstable"
    NOT_MEASURED = "not measured"
    NO_LIMIT = "no limit"
    INVALID = "invalid"  # NaN, wrong unit, above the ceiling: a figure that cannot be judged
    NOT_APPLICABLE = "not applicable"
    WAIVED = "waived"
