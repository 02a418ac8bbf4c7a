"""How outcomes are shown: a symbol, a word and a tone, never colour alone; and what to do about each."""

from dataclasses import dataclass
from typing import Literal

from gpu_acceptance.record import Outcome, Status

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

REMEDY = {
    Outcome.FAILED: (
        "The figure was measured, and it is on the wrong side of the bound. Run this one validation again with the command below. "
        "If the same GPU misses again, give its serial number and this page to the vendor. If every rank misses by about the same, "
        "look for a common cause first: power cap, clocks, driver and NCCL versions, topology."
    ),
    Outcome.DIED: (
        "The worker process ended before it answered. Read the end of its log below, then the kernel log of that host: an XID line "
        "(“dmesg | grep -i xid”) points at the GPU; “out of memory: killed process” points at the host's memory; signal 11 points at "
        "a library."
    ),
    Outcome.STUCK: (
        "This rank did not come back before the deadline, and was stopped. Read its innermost frame: it names what it waited for. "
        "In a collective, compare the ranks: the one that is not inside it is the cause. In a synchronisation or a copy, the GPU or "
        "its driver hangs: look for an XID in the kernel log of that host. In a file or network call, look at storage or the network."
    ),
    Outcome.ERROR: (
        "The validation itself could not do its work, so nothing was proved about the hardware. The message names the cause; "
        "mend it and run again. If the message makes no sense on your machine, report it to the maintainers with this page."
    ),
    Outcome.UNSTABLE: (
        "The values varied too much to be judged, in the announced repeat as well. Make sure that nobody else uses these GPUs and links "
        "(“nvidia-smi”, the scheduler), that nothing throttles (power, temperature), and run again."
    ),
    Outcome.NO_LIMIT: (
        "The figure was measured, and nothing says what is enough at this size. Add a limit with its source to an overlay "
        "(“--limits=FILE”), or run at a size that the profile lists."
    ),
    Outcome.NOT_MEASURED: (
        "The validation ended and did not give a figure that the profile asks for. Look whether a part of it was left out or skipped; "
        "what does not apply here is declared in the profile or an overlay, with a reason."
    ),
    Outcome.SKIPPED: (
        "It was skipped and nobody had declared that it does not apply. Provide what it needs, or declare it not applicable in the "
        "profile or an overlay, with a reason."
    ),
    Outcome.NOT_RUN: "It never started; the message says why. Remove that cause, or select it, and run again.",
    Outcome.LOST: (
        "This rank never answered. Look at the launcher's output and at its host: is it up, is the network between the hosts up, "
        "did the scheduler take the job away?"
    ),
    Outcome.INTERRUPTED: "The run was stopped from outside while this was in flight. Run it again and let it end.",
    Outcome.VICTIM: "A peer failed first, and this rank was stopped with it. Nothing is known against it: look at the cause named above.",
}

STATUS_REMEDY = {
    Status.INVALID: (
        "The reading cannot be right: no number, another unit, or more than is physically possible. It is a measuring error until "
        "proved otherwise: run it again, and report it to the maintainers if it stays."
    ),
}
