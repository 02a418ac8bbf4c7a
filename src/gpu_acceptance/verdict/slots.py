"""Two runs side by side: slots that both have, settings that differ, failures that are gone or new."""

from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterator, Mapping
from dataclasses import dataclass

from gpu_acceptance.base.text import plural
from gpu_acceptance.record.job import RankIdentity, by_node
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.thresholds.contract import LineState
from gpu_acceptance.thresholds.limit import level_text, show, subject_of

Nodes = Mapping[int, list[RankIdentity]]
_ABSENT = "none"
_DRAWN = {"nccl_sizes.reference", "nccl.latency_reference"}  # lines in charts of the report, which measure and judge nothing
_FAILS = {Status.MISSED, Status.UNSTABLE, Status.INVALID}
_NO_TEST = {Outcome.PASSED, Outcome.NOT_APPLICABLE, Outcome.VICTIM, Outcome.SKIPPED, Outcome.INTERRUPTED, Outcome.NOT_RUN}

Key = tuple[str, str, str, str]  # validation, metric, bound, slot; without a metric: the end of the validation there


@dataclass(frozen=True)
class Slots:
    """The nodes and slots of one run, by their names in both runs."""

    nodes: dict[int, str]  # node -> `node-03`, or `localhost (node 1)` if another host has the same name
    places: dict[int, str]  # rank -> `node-03, GPU 5`


def match_slots(before: RunRecord, after: RunRecord) -> tuple[Slots, Slots]:
    """Return the slots of both runs. A common slot has one name in both, and no two slots of a run have the same name."""
    old, new = by_node(before.ranks), by_node(after.ranks)
    shared = {host for nodes in (old, new) for host, number in Counter(map(_host, nodes.values())).items() if number > 1}
    names = {node: _name(ranks[0], shared) for node, ranks in old.items()}
    partners = _partners(old, new)
    later = {
        node: names[partners[node]] if node in partners else _name(ranks[0], shared, " of the later run") for node, ranks in new.items()
    }
    return Slots(names, _places(before, names)), Slots(later, _places(after, later))


def _name(identity: RankIdentity, shared: Container[str], run: str = "") -> str:
    return f"{identity.host} (node {identity.node}{run})" if identity.host in shared else identity.host


def _partners(old: Nodes, new: Nodes) -> dict[int, int]:
    """Map nodes of the later run to the same nodes of the earlier one. Each key is tried on the nodes that the keys before left over."""
    found: dict[int, int] = {}
    for key in (_host, _chassis, _gpus):
        earlier = _unique({node: key(ranks) for node, ranks in old.items() if node not in found.values()})
        later = _unique({node: key(ranks) for node, ranks in new.items() if node not in found})
        found |= {node: earlier[value] for value, node in later.items() if value in earlier}
    for host in set(map(_host, old.values())):
        earlier_rest = [node for node, ranks in old.items() if _host(ranks) == host and node not in found.values()]
        later_rest = [node for node, ranks in new.items() if _host(ranks) == host and node not in found]
        found |= dict(zip(later_rest, earlier_rest, strict=False))
    return found


def _unique(keys: Mapping[int, Hashable | None]) -> dict[Hashable, int]:
    """Map each key that only one node has to this node."""
    times = Counter(keys.values())
    return {key: node for node, key in keys.items() if key is not None and times[key] == 1}


def _host(ranks: list[RankIdentity]) -> str:
    return ranks[0].host


def _chassis(ranks: list[RankIdentity]) -> Hashable | None:
    return (ranks[0].host, ranks[0].chassis_serial) if ranks[0].chassis_serial else None


def _gpus(ranks: list[RankIdentity]) -> Hashable | None:
    gpus = frozenset(gpu.uuid for one in ranks for gpu in one.gpus)
    return (ranks[0].host, gpus) if gpus else None


def _places(record: RunRecord, names: Mapping[int, str]) -> dict[int, str]:
    positions = {one.rank: f"GPU {one.gpu.index}" if one.gpu else f"local rank {one.local_rank}" for one in record.ranks}
    places = {one.rank: f"{names[one.node]}, {positions[one.rank]}" for one in record.ranks}
    times = Counter(places.values())
    return {rank: place if times[place] == 1 else f"{place}, rank {rank}" for rank, place in places.items()}


@dataclass(frozen=True)
class Differing:
    """One setting. `forbids`: runs that differ in it cannot be compared."""

    what: str
    before: str
    after: str
    forbids: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.before} -> {self.after}"


def differing(before: RunRecord, after: RunRecord) -> list[Differing]:
    """Return the settings that differ; those that forbid a comparison come first."""
    shapes = [_shape(record) for record in (before, after)]
    found = [Differing(what, old, shapes[1][what], forbids=True) for what, old in shapes[0].items() if old != shapes[1][what]]
    slots = match_slots(before, after)
    hosts = [sorted(one.nodes.values()) for one in slots]
    if hosts[0] != hosts[1]:
        found.append(Differing("nodes", ", ".join(hosts[0]), ", ".join(hosts[1]), forbids=not set(hosts[0]) & set(hosts[1])))
    found += [*_settings(before, after), *_by_place(before, after, *slots)]
    return sorted(found, key=lambda one: not one.forbids)


def subjects_with_other_parameters(before: RunRecord, after: RunRecord) -> frozenset[str]:
    """Return `gemm` if `gemm.size` differs."""
    old, new = before.plan.profile.parameters, after.plan.profile.parameters
    return frozenset(name.partition(".")[0] for name in {*old, *new} - _DRAWN if old.get(name) != new.get(name))


def _shape(record: RunRecord) -> dict[str, str]:
    num_nodes = plural(len({one.node for one in record.ranks}), "node")
    return {
        "profile": f"{record.plan.profile.name}{', measured only' if record.plan.measure_only else ''}",
        "GPUs": ", ".join(sorted({gpu.name for one in record.ranks for gpu in one.gpus})) or _ABSENT,
        "job": f"{num_nodes}, {plural(len(record.ranks), 'rank')}",
    }


def _settings(before: RunRecord, after: RunRecord) -> Iterator[Differing]:
    old, new = before.plan, after.plan
    levels = [level_text(one.profile.level, one.profile.parameters) for one in (old, new)]
    if levels[0] != levels[1]:
        yield Differing("level", levels[0], levels[1])
    digests = [{file: digest[:12] for file, digest in one.profile.digests.items()} for one in (old, new)]
    yield from _tables("limits of", *digests)
    yield from _tables("parameter", *({name: show(value) for name, value in one.profile.parameters.items()} for one in (old, new)))
    yield from _tables("waiver", old.waivers, new.waivers)
    if old.gpu_acceptance_version != new.gpu_acceptance_version:
        yield Differing("gpu-acceptance", old.gpu_acceptance_version, new.gpu_acceptance_version)


def _by_place(before: RunRecord, after: RunRecord, earlier: Slots, later: Slots) -> Iterator[Differing]:
    """Yield replaced GPUs, and changes of each node's software, once for all nodes that changed alike."""
    serials = [
        {f"{slots.nodes[one.node]}, GPU {gpu.index}": gpu.serial or gpu.uuid for one in record.ranks for gpu in one.gpus}
        for record, slots in ((before, earlier), (after, later))
    ]
    yield from _tables("serial of", *({place: serial[place] for place in sorted(serials[0].keys() & serials[1])} for serial in serials))
    changed: dict[Differing, None] = {}
    old = {earlier.places[one.rank]: one for one in before.ranks}
    for identity in after.ranks:
        if was := old.get(later.places[identity.rank]):
            changed |= dict.fromkeys(_tables("version of", was.versions, identity.versions))
            changed |= dict.fromkeys(_tables("variable", was.environment, identity.environment))
    yield from changed


def _tables(what: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Differing]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield Differing(f"{what} {name}", before.get(name, _ABSENT), after.get(name, _ABSENT))


@dataclass(frozen=True)
class Failure:
    """One failure in these slots: `message` of the run that has it, and `reason` why it is not compared. Or a proof that was lost."""

    nodeid: str  # of a lost proof also the bound of a limit
    message: str
    places: tuple[str, ...] = ()  # empty for a failure of the whole job
    reason: str = ""

    @property
    def where(self) -> str:
        more = f" and {len(self.places) - 1} more" if len(self.places) > 1 else ""
        return f"{self.places[0]}{more}" if self.places else ""

    def __str__(self) -> str:
        return f"{self.nodeid}: {self.message}{f' | {self.where}' if self.places else ''}{f' | {self.reason}' if self.reason else ''}"


@dataclass(frozen=True)
class Failures:
    """All failures of both runs, each in one of these."""

    gone: tuple[Failure, ...] = ()
    new: tuple[Failure, ...] = ()
    still: tuple[Failure, ...] = ()
    not_compared: tuple[Failure, ...] = ()


def compare_failures(before: RunRecord, after: RunRecord, earlier: Slots, later: Slots) -> Failures:
    """Compare every failure of either run; slots of one limit that fared alike are one failure."""
    old, new = _Tested(before, earlier.places), _Tested(after, later.places)
    others = subjects_with_other_parameters(before, after)
    found: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for key in dict.fromkeys([*old.failures, *new.failures]):
        kind, reason = _change(key, old, new, others)
        message = new.failures[key] if key in new.failures else old.failures[key]
        found[kind, key[0], message, reason] += [key[3]] if key[3] else []
    failures: dict[str, tuple[Failure, ...]] = {}
    for (kind, nodeid, message, reason), where in found.items():
        failures[kind] = (*failures.get(kind, ()), Failure(nodeid, message, tuple(where), reason))
    return Failures(**failures)


def _change(key: Key, old: "_Tested", new: "_Tested", others: Container[str]) -> tuple[str, str]:
    """Return the list of `Failures` to which a failure belongs, and why it is not compared."""
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
    """Return the validations that came to a result."""
    return {row.nodeid for row in record.rows if row.attempts and row.outcome not in _NO_TEST - {Outcome.PASSED}}


class _Tested:
    """The failures of a run, and what held in it."""

    def __init__(self, record: RunRecord, places: Mapping[int, str]) -> None:
        self._places = places
        self._judgements: dict[tuple[str, str, str], list[Judgement]] = defaultdict(list)
        self._rows = {row.nodeid: row for row in record.rows}
        self.failures: dict[Key, str] = {}
        for row in record.rows:
            for judgement in row.judgements:
                self._judgements[row.nodeid, judgement.metric, judgement.bound].append(judgement)
            self.failures |= dict(self._failures(row))
        contract = record.conclusion.contract
        self._lines = {f"contract line {one.line.number}": one for one in contract.lines} if contract else {}
        missed = {name: one for name, one in self._lines.items() if one.state is LineState.MISSED}
        self.failures |= {(name, "", "", ""): "; ".join(one.reasons) for name, one in missed.items()}

    def need(self, key: Key) -> str:
        """Return the bound in words; empty for a failure without a limit."""
        if line := self._lines.get(key[0]):
            return ", ".join([*line.line.metrics, line.line.asks])
        return next((one.need for one in self._judgements.get(key[:3], [])), "")

    def asked(self, key: Key) -> object:
        """Return the bound as a value that can be compared."""
        first = next(iter(self._judgements.get(key[:3], [])), None)
        return (first.bound, first.asked) if first else self.need(key)

    def holds(self, key: Key) -> bool:
        """Return True if this run tested the same in the same slot, and it held."""
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
                message = judgement.message or f"{judgement.metric} {judgement.status}, need {judgement.need}"
                ranks = () if judgement.scope == "job" else judgement.ranks  # one failure for the whole job, whichever rank was slowest
                for place in dict.fromkeys(self._places.get(rank, f"rank {rank}") for rank in ranks) or [""]:
                    yield (row.nodeid, judgement.metric, judgement.bound, place), message
        for record in row.attempts[-1].ranks if row.attempts else ():
            if record.outcome not in _NO_TEST:
                found = True
                place = self._places.get(record.rank, f"rank {record.rank}")
                yield (row.nodeid, "", "", place), f"{record.outcome}: {record.message}"
        if not found and row.outcome not in _NO_TEST | {Outcome.NO_LIMIT, Outcome.NOT_MEASURED}:
            yield (row.nodeid, "", "", ""), f"{row.outcome}: {row.message}"
