"""The outcomes of one attempt: causes before victims, ranks that did not arrive, and the places where stuck ranks wait."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gpu_acceptance.base.text import clip
from gpu_acceptance.record.job import Job
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import FORMING, LastCollective, RankRecord, Row
from gpu_acceptance.record.run_record import PlannedValidation
from gpu_acceptance.thresholds.limit import subject_of

_FRAME = re.compile(r'\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_LIBRARY = re.compile(r"/(site|dist)-packages/|/gpu_acceptance/|/lib/python3|^<frozen ")
_WAITS_IN = re.compile(
    r"/torch/distributed/|/gpu_acceptance/(base/model|worker/(channel|messages)|measure/exchange)\.py$"
)  # for other ranks, or for its supervisor to say that they are there; worker/ in older records
_NEVER_CAME = {Outcome.DIED, Outcome.LOST, Outcome.ERROR, Outcome.FAILED}
_PLUGIN = "/gpu_acceptance/worker/plugin.py"
# Of the plugin: it waits for work left to the GPU, and for all ranks to have left the same (`_seal` in older records).
_AFTER = {"_wait_for_device", "_collective_fence", "_seal"}
_SIZES_DIFFER = {"scatter", "gather", "all_to_all"}  # as torch's flight recorder names them
_WAITS_FOR_GPU = {"synchronize", "wait_stream", "wait"}  # torch.cuda.synchronize, Stream.synchronize, Event.wait
CHANNEL = "channel"  # the phase of an error of a worker that was killed because its messages cannot be trusted
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
    """Return the main thread's frames, innermost first; empty if the process left no stack trace."""
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
    """Return True if the stack shows a wait for other ranks; `int(tensor)` waits in C, and its line is the innermost frame."""
    if not stack:
        return False
    return bool(_WAITS_IN.search(stack[0].file)) or ("/torch/" in stack[0].file and stack[0].function in _WAITS_FOR_GPU)


def own_frame(stack: list[Frame]) -> Frame | None:
    """Return the innermost frame outside of libraries: the line of the validation or the measurement."""
    return next((frame for frame in stack if not _LIBRARY.search(frame.file)), None)


def where(stack: str) -> str:
    """Return `all_reduce (distributed_c10d.py:3252), at test_hangs.py:15 in test_hangs`; empty if the place is not known."""
    found = frames(stack)
    if not found:
        return ""
    innermost, own = found[0], own_frame(found)
    if own is None and innermost.file.endswith(("/gpu_acceptance/base/model.py", "/gpu_acceptance/worker/messages.py")):
        return ""  # outside its validation: it waits for the next message
    if own == innermost:
        return str(own)
    return f"{innermost.function} ({innermost.file.rsplit('/', 1)[-1]}:{innermost.line}){_at_line(found)}"


def _at_line(found: list[Frame]) -> str:
    """Return `, at test_hangs.py:15 in test_hangs`; empty if no frame belongs to a validation."""
    if own := own_frame(found):
        return f", at {own}"
    after = any(frame.file.endswith(_PLUGIN) and frame.function in _AFTER for frame in found)
    return ", after the last line of the validation" if after else ""


def _waiting_ranks_as_victims(records: tuple[RankRecord, ...]) -> tuple[RankRecord, ...]:
    """Turn stuck ranks that only wait into victims of those for which they wait.

    These are, by the first rule that names any: ranks that ended badly or do not wait; that stand elsewhere than most; that have finished
    all their collectives; that are outside of `gather`.
    """
    stuck = {record.rank: record for record in records if record.outcome is Outcome.STUCK}
    gone = [record.rank for record in records if record.outcome in _NEVER_CAME]
    places = {tuple(map(_place, _unfinished(record))) for record in stuck.values()}
    if not gone and len(places) == 1 and () not in places:
        return records  # all stand in the same unfinished collective: the collective itself hangs
    waiting = {rank for rank, record in stuck.items() if waits(frames(record.stack)) or _waits_for_others(record, stuck.values(), gone)}
    absent = sorted([*gone, *(stuck.keys() - waiting)]) or _not_ahead(_elsewhere(stuck), stuck)
    absent = absent or _behind(stuck) or _not_gathered(stuck)
    if not absent:
        return records
    return tuple(_as_victim(record, absent) if record.rank in stuck and record.rank not in absent else record for record in records)


def _unfinished(record: RankRecord) -> tuple[LastCollective, ...]:
    return tuple(one for one in record.collectives if not one.finished)


def _waits_for_others(record: RankRecord, stuck: Collection[RankRecord], gone: list[int]) -> bool:
    """Return True if a collective of this rank is unfinished that another rank has not issued, or can no longer issue."""
    unfinished = {one.group: one.number for one in _unfinished(record)}
    others = [{one.group: one.number for one in other.collectives} for other in stuck if other.rank != record.rank]
    return bool(unfinished) and (
        bool(gone) or any(numbers.get(group, -1) < number for numbers in others for group, number in unfinished.items())
    )


def _place(one: LastCollective) -> str:
    """Sizes are part of the place, except in collectives to which each rank brings its own size."""
    name = one.operation.split(" ", 1)[0]
    return f"{one.group} {one.number} {name}" if name.rpartition(":")[2] in _SIZES_DIFFER else str(one)


def _elsewhere(stuck: Mapping[int, RankRecord]) -> list[int]:
    """Return the ranks that do not wait where most do; empty if there is no majority.

    A place is a rank's collectives if all ranks have some, else its line. Finished collectives count only if no other is known: not
    every rank is in every group.
    """
    if all(record.collectives for record in stuck.values()):
        places = {rank: "; ".join(map(_place, _unfinished(record) or record.collectives)) for rank, record in stuck.items()}
    else:
        places = {rank: str(own_frame(frames(record.stack))) for rank, record in stuck.items()}
    most = Counter(places.values()).most_common(2)
    if len(most) < 2 or most[0][1] == most[1][1]:
        return []
    return sorted(rank for rank, place in places.items() if place != most[0][0])


def _not_ahead(ranks: list[int], stuck: Mapping[int, RankRecord]) -> list[int]:
    """Return those of the ranks that wait in no later collective than the others: a ring lets one rank through (seen with NCCL)."""
    counted = {rank: _counted(record) for rank, record in stuck.items()}
    others = {(one.group, one.number) for rank, collectives in counted.items() if rank not in ranks for one in collectives}
    ahead = {rank for rank in ranks if any(one.group == group and one.number > number for one in counted[rank] for group, number in others)}
    return [rank for rank in ranks if rank not in ahead] or ranks


def _behind(stuck: Mapping[int, RankRecord]) -> list[int]:
    """Return the ranks that have finished all their collectives while another waits in a later one of the same group."""
    counted = {rank: _counted(record) for rank, record in stuck.items()}
    awaited = {(one.group, one.number) for collectives in counted.values() for one in collectives if not one.finished}
    return sorted(
        rank
        for rank, collectives in counted.items()
        if all(one.finished for one in stuck[rank].collectives)
        and any(one.group == group and one.number < number for one in collectives for group, number in awaited)
    )


def _not_gathered(stuck: Mapping[int, RankRecord]) -> list[int]:
    """Return the ranks outside of `gather` while others are in it: it needs all of them, and no link between GPUs."""
    gathering = {
        rank
        for rank, record in stuck.items()
        if any(frame.file.endswith(_PLUGIN) and frame.function == "_gather" for frame in frames(record.stack))
    }
    return sorted(stuck.keys() - gathering) if gathering else []


def _counted(record: RankRecord) -> list[LastCollective]:
    """Return the collectives whose numbers can be compared between ranks."""
    return [one for one in record.collectives if not one.is_p2p]


def _as_victim(record: RankRecord, absent: list[int]) -> RankRecord:
    stack, ranks = frames(record.stack), ", ".join(map(str, absent))
    place = f" in {stack[0].function}{_at_line(stack)}" if stack else ""
    names_collective = stack and "/torch/distributed/" in stack[0].file
    unfinished = "" if names_collective else "".join(f"; {one}" for one in _unfinished(record))
    text = f"waits for rank{'s' if len(absent) > 1 else ''} {ranks}{place}{unfinished}"
    return record.model_copy(update={"outcome": Outcome.VICTIM, "message": clip(text)})


def is_poison(record: RankRecord) -> bool:
    """Return True if a record leaves its generation in an unknown state: peers may still wait inside a collective."""
    if record.outcome in CAUSES | {Outcome.NOT_MEASURED, Outcome.VICTIM, Outcome.INTERRUPTED}:
        return True
    return record.outcome in {Outcome.FAILED, Outcome.ERROR} and record.phase != "setup"  # after set-up fails, no rank has begun the call


def spoilers(records: Iterable[RankRecord], kind: str) -> list[int]:
    """Return the ranks because of which a generation cannot go on. A victim does not count."""
    if kind == "run":
        return [record.rank for record in records if is_poison(record) and record.outcome is not Outcome.VICTIM]
    harmless = {Outcome.PASSED, Outcome.VICTIM, Outcome.NOT_RUN}  # while workers form and end, each failed try spoils
    return [record.rank for record in records if record.outcome not in harmless]


def all_passed(records: Iterable[RankRecord]) -> bool:
    """Return True if every rank with a worker passed. Some runs go on without the ranks that have none."""
    outcomes = {record.outcome for record in records}
    return Outcome.PASSED in outcomes and outcomes <= {Outcome.PASSED, Outcome.NOT_RUN}


def causes_before_victims(records: Iterable[RankRecord]) -> tuple[RankRecord, ...]:
    """Return the records in which ranks that a peer's failure brought down are victims.

    An exception in the call, or while the group forms, is the echo of a death elsewhere: gloo raises `Connection reset by peer`.
    Stuck ranks that only waited for others are victims too. Their message says which of both: `echo of ...`, `waits for rank ...`; that of
    a third kind, `stopped because ...`, comes from `RankAttempt.tick`. Counters play no part: a victim's XID stands in its row.
    Rank 0 calls this when an attempt ends (`AttemptState.records`), and each reader of the journals does so again.
    """
    records = tuple(records)
    gone = any(record.outcome in {Outcome.DIED, Outcome.LOST} or record.phase == CHANNEL for record in records)
    records = _waiting_ranks_as_victims(_echoes_as_victims(records) if gone else records)
    # A rank that is stuck only because it waits for an error is no cause of that error.
    return _echoes_as_victims(records) if any(record.outcome in CAUSES for record in records) else records


def _echoes_as_victims(records: tuple[RankRecord, ...]) -> tuple[RankRecord, ...]:
    return tuple(
        record.model_copy(update={"outcome": Outcome.VICTIM, "message": echo("a peer's end", record.message)})
        if may_echo(record.outcome, record.phase)
        else record
        for record in records
    )


def echo(of: str, message: str) -> str:
    """Return the message of a rank whose error is an echo."""
    return clip(f"echo of {of}: {message}")


def may_echo(outcome: Outcome, phase: str) -> bool:
    """Return True if a peer's bad end can look like this to others in the same collective."""
    return (outcome, phase) in _ECHOES


@dataclass(frozen=True)
class TooSmall:
    """The smallest job that a validation needs, and the size of this one."""

    needs: str
    has: int

    def __str__(self) -> str:
        return f"{self.needs}, this job has {self.has}"


def too_small(validation: PlannedValidation, job: Job) -> TooSmall | None:
    """Return why a validation does not apply to a job of this size, or None. If nodes differ, the largest one counts."""
    asked = (
        (validation.min_ranks, "ranks", job.world_size),
        (validation.min_ranks_per_node, "ranks on a node", job.gpus_per_node),
        (validation.min_nodes, "nodes", job.num_nodes),
    )
    return next((TooSmall(f"needs at least {least} {what}", has) for least, what, has in asked if least > has), None)


def bare_row(nodeid: str, outcome: Outcome, message: str, deadline_s: float) -> Row:
    """Return the row of a validation that was never attempted."""
    return Row(nodeid=nodeid, subject=subject_of(nodeid), outcome=outcome, message=message, deadline_s=deadline_s)
