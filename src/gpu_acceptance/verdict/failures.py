"""Which failures of a run another one no longer has, which it has as well, and which are new. Pure.

What was not tested in both runs is neither gone nor new. A failure is known by validation, metric, bound and slot: the part in that may be
another one. A contract line that was missed is one too, whatever its limits did.
"""

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.thresholds.contract import LineState
from gpu_acceptance.thresholds.limit import subject_of
from gpu_acceptance.verdict.settings import subjects_with_other_parameters
from gpu_acceptance.verdict.slots import match_slots

_FAILS = {Status.MISSED, Status.UNSTABLE, Status.INVALID}
_NO_TEST = {Outcome.PASSED, Outcome.NOT_APPLICABLE, Outcome.VICTIM, Outcome.SKIPPED, Outcome.INTERRUPTED, Outcome.NOT_RUN}

Key = tuple[str, str, str, str]  # validation, metric, bound, slot; without a metric it is how the validation ended there


@dataclass(frozen=True)
class Failure:
    """`said` by the run that has it, of these slots; `reason` why it is not compared."""

    nodeid: str
    said: str
    places: tuple[str, ...]  # none of what is of the whole job
    reason: str = ""

    @property
    def where(self) -> str:
        more = f" and {len(self.places) - 1} more" if len(self.places) > 1 else ""
        return f"{self.places[0]}{more}" if self.places else ""

    def __str__(self) -> str:
        return f"{self.nodeid}: {self.said}{f' | {self.where}' if self.places else ''}{f' | {self.reason}' if self.reason else ''}"


@dataclass(frozen=True)
class Failures:
    """All failures of both runs, each in one of these."""

    gone: tuple[Failure, ...] = ()
    new: tuple[Failure, ...] = ()
    still: tuple[Failure, ...] = ()
    not_compared: tuple[Failure, ...] = ()


def compare_failures(before: RunRecord, after: RunRecord) -> Failures:
    """Every failure of either run; the slots of one limit together, where they fared alike."""
    earlier, later = match_slots(before, after)
    old, new = _Tested(before, earlier.places), _Tested(after, later.places)
    others = subjects_with_other_parameters(before, after)
    found: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for key in dict.fromkeys([*old.failures, *new.failures]):
        kind, reason = _change(key, old, new, others)
        said = new.failures[key] if key in new.failures else old.failures[key]
        found[kind, key[0], said, reason] += [key[3]] if key[3] else []
    failures: dict[str, tuple[Failure, ...]] = {}
    for (kind, nodeid, said, reason), where in found.items():
        failures[kind] = (*failures.get(kind, ()), Failure(nodeid, said, tuple(where), reason))
    return Failures(**failures)


def _change(key: Key, old: "_Tested", new: "_Tested", others: Container[str]) -> tuple[str, str]:
    """In which of the lists a failure belongs, and why it is not compared."""
    is_new = key not in old.failures
    if subject_of(key[0]) in others:
        return "not_compared", "with other parameters"
    if not is_new and key in new.failures:
        return "still", ""
    if not (old if is_new else new).holds(key):
        return "not_compared", f"not tested {'before' if is_new else 'again'}"
    if old.asked(key) != new.asked(key):
        return "not_compared", f"judged by another limit: {old.need(key)}, then {new.need(key)}"
    return ("new" if is_new else "gone"), ""


def tested(record: RunRecord) -> set[str]:
    """The validations that came to a result."""
    return {row.nodeid for row in record.rows if row.attempts and row.outcome not in _NO_TEST - {Outcome.PASSED}}


class _Tested:
    """What of a run failed, and what held."""

    def __init__(self, record: RunRecord, places: Mapping[int, str]) -> None:
        self._places = places
        self._judgements: dict[tuple[str, str, str], list[Judgement]] = defaultdict(list)
        self._rows = {row.nodeid: row for row in record.rows}
        for row in record.rows:
            for judgement in row.judgements:
                self._judgements[row.nodeid, judgement.metric, judgement.bound].append(judgement)
        self.failures: dict[Key, str] = {}
        for row in record.rows:
            self.failures |= dict(self._failures(row))
        contract = record.conclusion.contract
        self._lines = {f"contract line {one.line.number}": one for one in contract.lines} if contract else {}
        missed = {name: one for name, one in self._lines.items() if one.state is LineState.MISSED}
        self.failures |= {(name, "", "", ""): "; ".join(one.reasons) for name, one in missed.items()}

    def need(self, key: Key) -> str:
        """What the limit asks for; of how a validation ended there is none."""
        if line := self._lines.get(key[0]):
            return ", ".join([*line.line.metrics, line.line.asks])
        return next((one.need for one in self._judgements.get(key[:3], [])), "")

    def asked(self, key: Key) -> object:
        """The same as a value that can be compared."""
        first = next(iter(self._judgements.get(key[:3], [])), None)
        return (first.bound, first.asked) if first else self.need(key)

    def holds(self, key: Key) -> bool:
        """Whether the same was tested here, in the same slot, and found right."""
        nodeid, metric, bound, place = key
        if line := self._lines.get(nodeid):
            return line.state is LineState.MET
        row = self._rows.get(nodeid)
        if row is None or key in self.failures or (place and place not in self._places.values()):
            return False
        if metric:
            judgements = self._judgements.get((nodeid, metric, bound), [])
            return bool(judgements) and all(one.status in {Status.HELD, Status.MISSED} for one in judgements)
        ended = [one.outcome for one in row.attempts[-1].ranks if place in {"", self._places.get(one.rank)}] if row.attempts else []
        return bool(ended) and set(ended) == {Outcome.PASSED}

    def _failures(self, row: Row) -> Iterator[tuple[Key, str]]:
        found = False
        for judgement in row.judgements:
            if judgement.status in _FAILS:
                found = True
                said = judgement.message or f"{judgement.metric} {judgement.status}, need {judgement.need}"
                for place in self._places_of(judgement):
                    yield (row.nodeid, judgement.metric, judgement.bound, place), said
        for record in row.attempts[-1].ranks if row.attempts else ():
            if record.outcome not in _NO_TEST:
                found = True
                place = self._places.get(record.rank, f"rank {record.rank}")
                yield (row.nodeid, "", "", place), f"{record.outcome}: {record.message}"
        if not found and row.outcome not in _NO_TEST | {Outcome.NO_LIMIT, Outcome.NOT_MEASURED}:
            yield (row.nodeid, "", "", ""), f"{row.outcome}: {row.message}"

    def _places_of(self, judgement: Judgement) -> list[str]:
        """Of a limit for the whole job there is one, whoever was slowest."""
        ranks = () if judgement.scope == "job" else judgement.ranks
        return list(dict.fromkeys(self._places.get(rank, f"rank {rank}") for rank in ranks)) or [""]
