"""What attempts mean: causes before victims, who did not arrive, and where stuck ranks wait."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpu_acceptance.base.text import clip
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import FORMING, LastCollective, RankRecord, Row
from gpu_acceptance.thresholds.limit import subject_of

_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_LIBRARY = re.compile(r"/(site|dist)-packages/|/gpu_acceptance/|/lib/python3|^<frozen ")
_WAITS_IN = re.compile(
    r"/torch/distributed/|/gpu_acceptance/(worker/(channel|messages)|measure/exchange)\.py$"
)  # for other ranks, or for its supervisor to say that they are there; worker/channel.py in records of before 2026-11-27
_NEVER_CAME = {Outcome.DIED, Outcome.LOST, Outcome.ERROR, Outcome.FAILED}
_AFTER = {"_wait_for_device", "_seal"}  # of worker/plugin.py: what a validation left to its GPU, and that all ranks left the same
_SIZES_DIFFER = {"scatter", "gather", "all_to_all"}  # as torch's flight recorder names them
_WAITS_FOR_GPU = {"synchronize", "wait_stream", "wait"}  # torch.cuda.synchronize, Stream.synchronize, Event.wait
CHANNEL = "channel"  # the phase of an error of a worker that was killed because nothing it says can be trusted
CAUSES = frozenset({Outcome.DIED, Outcome.STUCK, Outcome.LOST})
NO_WORKER = "no worker: none could be started (see world_formation)"
_ECHOES = frozenset({(Outcome.ERROR, "call"), (Outcome.FAILED, FORMING)})


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line} in {self.function}"


def frames(stack: str) -> list[Frame]:
    """The main thread's frames, innermost first; empty where the process could not say where it was."""
    lines = stack.splitlines()
    start = next((index for index, line in enumerate(lines) if line.startswith("Stack (most recent call first)")), len(lines))
    found = []
    for line in lines[start + 1 :]:
        match = _FRAME.match(line)
        if match is None:
            break
        found.append(Frame(match["file"], int(match["line"]), match["function"]))
    return found


def waits(stack: list[Frame]) -> bool:
    """Whether the process waits for other ranks, as far as its stack tells; `int(tensor)` waits in C, and shows the line that says so."""
    if not stack:
        return False
    return bool(_WAITS_IN.search(stack[0].file)) or ("/torch/" in stack[0].file and stack[0].function in _WAITS_FOR_GPU)


def own_frame(stack: list[Frame]) -> Frame | None:
    """The innermost frame that is no library's: the line of the validation or the measurement."""
    return next((frame for frame in stack if not _LIBRARY.search(frame.file)), None)


def where(stack: str) -> str:
    """`all_reduce (distributed_c10d.py:3252), at test_hangs.py:15 in test_hangs`; empty where nobody knows."""
    found = frames(stack)
    if not found:
        return ""
    innermost, own = found[0], own_frame(found)
    if own is None and innermost.file.endswith("/gpu_acceptance/worker/messages.py"):
        return ""  # outside its validation, waiting to be told what is next
    if own == innermost:
        return str(own)
    return f"{innermost.function} ({innermost.file.rsplit('/', 1)[-1]}:{innermost.line}){_of_the_validation(found)}"


def _of_the_validation(found: list[Frame]) -> str:
    """`, at test_hangs.py:15 in test_hangs`: where in the validation; empty where it is none."""
    if own := own_frame(found):
        return f", at {own}"
    after = any(frame.file.endswith("/gpu_acceptance/worker/plugin.py") and frame.function in _AFTER for frame in found)
    return ", after the last line of the validation" if after else ""


def name_who_did_not_arrive(records: Iterable[RankRecord]) -> tuple[RankRecord, ...]:
    """Of ranks that were stuck, those that only wait are victims of who ended badly, or does not wait, or waits elsewhere than most."""
    records = tuple(records)
    stuck = {record.rank: record for record in records if record.outcome is Outcome.STUCK}
    gone = [record.rank for record in records if record.outcome in _NEVER_CAME]
    if not gone and _all_came(stuck.values()):
        return records
    waiting = {rank for rank, record in stuck.items() if waits(frames(record.stack)) or _waits_for_others(record, stuck.values(), gone)}
    absent = sorted([*gone, *(stuck.keys() - waiting)]) or _not_ahead(_elsewhere(_places(stuck)), stuck)
    absent = absent or _behind(stuck) or _not_gathered(stuck)
    if not absent:
        return records
    return tuple(_as_victim(record, absent) if record.rank in stuck and record.rank not in absent else record for record in records)


def _all_came(stuck: Collection[RankRecord]) -> bool:
    """Whether all stand in the same unfinished collective: then the collective itself hangs, and nobody is to blame for waiting."""
    told = {tuple(map(_place, _unfinished(record))) for record in stuck}
    return len(told) == 1 and () not in told


def _unfinished(record: RankRecord) -> tuple[LastCollective, ...]:
    return tuple(one for one in record.collectives if not one.finished)


def _waits_for_others(record: RankRecord, stuck: Collection[RankRecord], gone: list[int]) -> bool:
    """Whether a collective of this rank is unfinished that another has not issued, or cannot issue any more."""
    unfinished = {one.group: one.number for one in _unfinished(record)}
    others = [{one.group: one.number for one in other.collectives} for other in stuck if other.rank != record.rank]
    return bool(unfinished) and (
        bool(gone) or any(numbers.get(group, -1) < number for numbers in others for group, number in unfinished.items())
    )


def _places(stuck: Mapping[int, RankRecord]) -> dict[int, str]:
    """Where each waiting rank stands: at which collectives, where all could tell; else at which line.

    What is finished tells where a rank stands only where nothing else does: not every rank is in every group.
    """
    if all(record.collectives for record in stuck.values()):
        return {rank: "; ".join(map(_place, _unfinished(record) or record.collectives)) for rank, record in stuck.items()}
    return {rank: str(own_frame(frames(record.stack))) for rank, record in stuck.items()}


def _place(one: LastCollective) -> str:
    """Sizes tell a place, but for collectives to which each rank brings its own."""
    name = one.operation.split(" ", 1)[0]
    return f"{one.group} {one.number} {name}" if name.rpartition(":")[2] in _SIZES_DIFFER else str(one)


def _elsewhere(waiting: dict[int, str]) -> list[int]:
    """The ranks that do not wait where most do; none where there is no most."""
    places = Counter(waiting.values()).most_common(2)
    if len(places) < 2 or places[0][1] == places[1][1]:
        return []
    return sorted(rank for rank, place in waiting.items() if place != places[0][0])


def _not_ahead(ranks: list[int], stuck: Mapping[int, RankRecord]) -> list[int]:
    """Of ranks that wait elsewhere, those that wait in no later collective than the others: a ring lets one rank through (seen, NCCL)."""
    counted = {rank: _counted(record) for rank, record in stuck.items()}
    others = {(one.group, one.number) for rank, told in counted.items() if rank not in ranks for one in told}
    ahead = {rank for rank in ranks if any(one.group == group and one.number > number for one in counted[rank] for group, number in others)}
    return [rank for rank in ranks if rank not in ahead] or ranks


def _behind(stuck: Mapping[int, RankRecord]) -> list[int]:
    """The ranks that are through with all their collectives while another waits in a later one of the same group."""
    counted = {rank: _counted(record) for rank, record in stuck.items()}
    awaited = {(one.group, one.number) for told in counted.values() for one in told if not one.finished}
    return sorted(
        rank
        for rank, told in counted.items()
        if all(one.finished for one in stuck[rank].collectives)
        and any(one.group == group and one.number < number for one in told for group, number in awaited)
    )


def _not_gathered(stuck: Mapping[int, RankRecord]) -> list[int]:
    """The ranks that do not stand in `gather` where others do: it wants all of them, and needs no link between GPUs."""
    gathering = {rank for rank, record in stuck.items() if any(map(_is_gather, frames(record.stack)))}
    return sorted(stuck.keys() - gathering) if gathering else []


def _is_gather(frame: Frame) -> bool:
    return frame.file.endswith("/gpu_acceptance/worker/plugin.py") and frame.function == "_gather"


def _counted(record: RankRecord) -> list[LastCollective]:
    """Those whose numbers can be compared between ranks."""
    return [one for one in record.collectives if not one.is_p2p]


def _as_victim(record: RankRecord, absent: list[int]) -> RankRecord:
    stack, ranks = frames(record.stack), ", ".join(map(str, absent))
    place = f" in {stack[0].function}{_of_the_validation(stack)}" if stack else ""
    says_in_what = stack and "/torch/distributed/" in stack[0].file
    unfinished = "" if says_in_what else "".join(f"; {one}" for one in _unfinished(record))
    text = f"waits for rank{'s' if len(absent) > 1 else ''} {ranks}{place}{unfinished}"
    return record.model_copy(update={"outcome": Outcome.VICTIM, "message": clip(text)})


def is_poison(record: RankRecord) -> bool:
    """Whether a record leaves its generation in a state nobody can vouch for: peers may still wait inside a collective."""
    if record.outcome in CAUSES | {Outcome.VICTIM, Outcome.INTERRUPTED}:
        return True
    return record.outcome in {Outcome.FAILED, Outcome.ERROR} and record.phase != "setup"  # nobody entered, nothing was touched


def all_passed(records: Iterable[RankRecord]) -> bool:
    """Whether every rank passed that has a worker at all: some go on without those that have none."""
    outcomes = {record.outcome for record in records}
    return Outcome.PASSED in outcomes and outcomes <= {Outcome.PASSED, Outcome.NOT_RUN}


def causes_before_victims(records: Iterable[RankRecord]) -> tuple[RankRecord, ...]:
    """An exception in the call, or while the group forms, is the echo of a death elsewhere: gloo raises `Connection reset by peer`.

    Of ranks that were stuck together, those that only waited for the others are victims too.
    """
    records = name_who_did_not_arrive(records)
    if not any(record.outcome in CAUSES or record.phase == CHANNEL for record in records):
        return records
    return tuple(
        record.model_copy(update={"outcome": Outcome.VICTIM}) if may_echo(record.outcome, record.phase) else record for record in records
    )


def may_echo(outcome: Outcome, phase: str) -> bool:
    """Whether this is what the bad end of a peer looks like to others in the same collective."""
    return (outcome, phase) in _ECHOES


class Sized(Protocol):
    """A validation, as it is planned or run."""

    @property
    def min_ranks(self) -> int: ...

    @property
    def min_ranks_per_node(self) -> int: ...

    @property
    def min_nodes(self) -> int: ...


@dataclass(frozen=True)
class TooSmall:
    """A job that is smaller than a validation needs it."""

    needs: str
    has: int

    def __str__(self) -> str:
        return f"{self.needs}, this job has {self.has}"


def too_small(validation: Sized, job: Job) -> TooSmall | None:
    """Why a validation does not apply to a job of this size, or None. Of nodes that differ the largest counts."""
    asked = (
        (validation.min_ranks, "ranks", job.world_size),
        (validation.min_ranks_per_node, "ranks on a node", job.gpus_per_node),
        (validation.min_nodes, "nodes", job.num_nodes),
    )
    return next((TooSmall(f"needs at least {least} {what}", has) for least, what, has in asked if least > has), None)


def bare_row(nodeid: str, outcome: Outcome, message: str, deadline_s: float) -> Row:
    """The row of a validation that was never attempted."""
    return Row(nodeid=nodeid, subject=subject_of(nodeid), outcome=outcome, message=message, deadline_s=deadline_s)
