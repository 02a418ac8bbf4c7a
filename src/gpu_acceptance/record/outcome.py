"""Outcomes of validations, their causes, and statuses of bounds. Outcomes and statuses stand worst first: their order decides."""

from enum import Enum, StrEnum
from functools import cached_property
from typing import Self


class Means(Enum):
    """The effect of an outcome on the verdict of a run."""

    REJECTS = "rejects"
    LEAVES_INCOMPLETE = "leaves incomplete"
    HARMLESS = "harmless"


class _Ordered(StrEnum):
    @cached_property
    def severity(self) -> int:
        """The rank among the members; 0 is the worst."""
        return list(type(self)).index(self)


class Outcome(_Ordered):
    """The end of a validation, on one rank or over all of them.

    The worst outcome that any rank or limit gives is that of the validation. Outcomes that reject come first: nothing may hide them.
    """

    DIED = "died", Means.REJECTS, "died"
    STUCK = "stuck", Means.REJECTS, "stuck"
    FAILED = "failed", Means.REJECTS, "failed"
    DISTURBED = "disturbed", Means.LEAVES_INCOMPLETE, "disturbed by another process"
    LOST = "lost", Means.LEAVES_INCOMPLETE, "lost"
    INTERRUPTED = "interrupted", Means.LEAVES_INCOMPLETE, "interrupted"
    ERROR = "error", Means.LEAVES_INCOMPLETE, "in error"
    UNSTABLE = "unstable", Means.LEAVES_INCOMPLETE, "unstable"
    NO_LIMIT = "no limit", Means.LEAVES_INCOMPLETE, "without a limit"
    NOT_MEASURED = "not measured", Means.LEAVES_INCOMPLETE, "not measured on every member"
    SKIPPED = "skipped", Means.LEAVES_INCOMPLETE, "skipped without declaration"
    NOT_RUN = "not run", Means.LEAVES_INCOMPLETE, "not run"
    VICTIM = "victim", Means.LEAVES_INCOMPLETE, "victim of a peer"
    NOT_APPLICABLE = "not applicable", Means.HARMLESS, "not applicable"
    PASSED = "passed", Means.HARMLESS, "passed"

    means: Means
    phrase: str  # after a count: "3 of 9 validations in error"

    def __new__(cls, value: str, means: Means = Means.LEAVES_INCOMPLETE, phrase: str = "") -> Self:
        # Each member has all three; the defaults are for type checkers, which take the look-up Outcome("died") for this call.
        member = str.__new__(cls, value)
        member._value_ = value
        member.means = means
        member.phrase = phrase
        return member


class Status(_Ordered):
    """The result of judging one bound. The worst status of all validations is that of the bound."""

    MISSED = "missed"
    INVALID = "invalid"  # NaN, wrong unit, above the ceiling: a figure that cannot be judged
    UNSTABLE = "unstable"
    NO_LIMIT = "no limit"
    NOT_MEASURED = "not measured"
    WAIVED = "waived"
    HELD = "held"
    NOT_APPLICABLE = "not applicable"


class Cause(StrEnum):
    """The event that kept a rank from its end, as our own code saw it. It chooses the remedy, as messages of libraries do."""

    CRASHED = "crashed"  # a signal for a fault in C: SIGSEGV, SIGABRT, SIGILL, SIGFPE
    BUS_ERROR = "bus error"  # SIGBUS
    OUT_OF_MEMORY = "out of memory"  # killed, and the kernel's OOM killer was at work meanwhile (ExitStatus.is_want_of_memory)
    GPU_MEMORY_HELD = "GPU memory held"  # after the last worker ended
    IN_THE_KERNEL = "in the kernel"  # and cannot be interrupted
    STOPPED = "stopped"
    UNLIKE_VARIABLES = "unlike variables"  # ranks of one node have different NCCL variables
    TORCH_SEES_NO_GPU = "torch sees no GPU"  # on a node that has some
    NO_HEARTBEAT = "no heartbeat"
    NOT_SHARED = "not shared"  # a directory in which ranks do not see each other's files
    NO_CONTACT = "no contact"  # between ranks that send to each other
    HANG_IN_COLLECTIVE = "hang in a collective"  # it has not finished one, or a peer waits for it in one


def cause_of(error: BaseException | None) -> Cause | None:
    """Return the cause that an exception of ours carries."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, Cause) else None
