"""Figures, bounds, outcomes, times and ranks as the report writes them.

Messages of ranks are made where something is seen (CONTRIBUTING, Change a message), advice in remedies.yaml.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gpu_acceptance.base.text import clip, format_ranges
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement
from gpu_acceptance.thresholds.limit import Value, with_unit

_OF_NUMBERS = {"at_least", "at_most"}
_VISIBLE_MARGIN = 0.001  # a smaller one would not show in four digits
_MOST_WHOLE = 1e7
_MOST_TEXT = 400  # characters in a first line
_FRAME = re.compile(r"""^\s*(?:File "|at |#0\b)""")
Tone = Literal["good", "bad", "open", "quiet"]


def exact(value: Value | None) -> str:
    """Return every digit that was measured."""
    return "none" if value is None else str(value)


def rounded(value: Value | None) -> str:
    """Return four significant digits, for people; a whole number is a count and keeps all its digits."""
    if not isinstance(value, float) or not 1_000 <= abs(value) < _MOST_WHOLE:
        return f"{value:.4g}" if isinstance(value, float) else exact(value)
    return f"{float(f'{value:.4g}'):.0f}"


def judged_figure(judgement: Judgement) -> str:
    """Return the value as people read it, with every digit where fewer could show a miss as its bound."""
    is_far = judgement.bound != "equals" if judgement.margin is None else abs(judgement.margin) >= _VISIBLE_MARGIN
    return rounded(judgement.value) if is_far else exact(judgement.value)


def figure_text(judged: Judgement, *, exactly: bool = False) -> str:
    """Return the value with its unit. The one of a limit that some ranks did not measure is of others."""
    shown = exact(judged.value) if exactly else judged_figure(judged)
    if judged.value is None:
        return shown
    figure = with_unit(shown, judged.unit)
    return f"no figure (elsewhere {figure})" if judged.status is Status.NOT_MEASURED else figure


def margin_of(judged: Judgement) -> float | None:
    """Return the margin where one is told: of a limit that some ranks did not measure it is of others."""
    return None if judged.status is Status.NOT_MEASURED else judged.margin


def by_margin(limits: Iterable[Judgement], *statuses: Status) -> list[Judgement]:
    """Return limits of these statuses, the nearest to its bound first, without those at 0: they ask for an exact value."""
    found = [one for one in limits if one.status in statuses and one.margin]
    return sorted(found, key=lambda one: (one.margin or 0.0, one.metric))


def judged_text(judged: Judgement) -> str:
    """`hbm.triad.bandwidth = 3120 GB/s, need >= 4153 GB/s (24.9 % below)`."""
    if judged.value is None:
        return judged.metric
    value = with_unit(judged_figure(judged), judged.unit)
    need, distance = need_text(judged), deviation(judged)
    return f"{judged.metric} = {value}{f', need {need}' if need else ''}{f' ({distance})' if distance else ''}"


def need_text(judged: Judgement) -> str:
    """`>= 4153 GB/s`, `== NVLS`."""
    return with_unit(judged.need, judged.unit) if judged.need and judged.bound in _OF_NUMBERS else judged.need


def source_text(judged: Judgement) -> str:
    """`h200-sxm.yaml: measured 2026-11-20, ...`."""
    return ": ".join(filter(None, (judged.file, judged.source)))


def deviation(judged: Judgement) -> str:
    """Return the distance of a figure from its bound: `24.9 % below`, `3.6 % above`; empty where it is not a number."""
    if judged.margin is None or judged.bound not in _OF_NUMBERS:
        return ""
    above = (judged.margin >= 0) == (judged.bound == "at_least")
    return f"{abs(judged.margin) * 100:.3g} % {'above' if above else 'below'}"


def percent(part: float) -> str:
    """0.049 as `+4.9 %`; a small part keeps its size and its sign."""
    value = 100 * part
    if value == 0:
        return "0 %"
    return f"{value:+.1f} %" if 0.05 <= abs(value) < 10_000 else f"{value:+.2g} %"


def duration(seconds: float) -> str:
    """`0.4 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def gibibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.0f} GiB" if num_bytes else "unknown"


def moment(text: str) -> str:
    """Return an ISO 8601 time to the second; any other text stays as it is."""
    time = parse_moment(text)
    return time.strftime("%Y-%m-%d %H:%M:%S %Z") if time else text


def parse_moment(text: str) -> datetime | None:
    """Return the time, or None where the text is not an ISO 8601 time with a zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo else None


def elapsed(started: str, ended: str) -> str:
    """Return the duration of a run; empty where the two times do not say."""
    start, end = parse_moment(started), parse_moment(ended)
    if start is None or end is None or end < start:
        return ""
    return duration((end - start).total_seconds())


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-6, 9`."""
    ranks = set(ranks)
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {format_ranges(ranks, ', ')}"


def first_line(text: str) -> str:
    """Return the part of a message before its details."""
    return clip(text.partition("\n")[0], _MOST_TEXT)


def innermost_frame(stack: str) -> str:
    """Return the first frame of a stack that is written innermost first, or an empty text."""
    return next((line.strip() for line in stack.splitlines() if _FRAME.match(line)), "")


def reproduce(command: Sequence[str], nodeid: str) -> list[str]:
    """Return the run's own command, for this validation alone. A row that is not a validation needs the whole run.

    The name of the run is left out: it is taken.
    """
    unnamed = [word for word in command if not word.startswith("--run-id=")]
    if "::" not in nodeid:
        return unnamed
    kept = [word for word in unnamed if not word.startswith("acceptance") and "::" not in word]
    return [*kept, nodeid]


@dataclass(frozen=True)
class Mark:
    """A state as the page shows it."""

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
    Outcome.DISTURBED: Mark("!", "DISTURBED", "open"),
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

# These decide nothing by themselves, or were declared: no problem of the machine or of the run.
HARMLESS_OUTCOMES = frozenset({Outcome.PASSED, Outcome.NOT_APPLICABLE})
HARMLESS_STATUSES = frozenset({Status.HELD, Status.NOT_APPLICABLE, Status.WAIVED})

WITHIN_NOISE = "within noise: run it again with --confirm=2"
