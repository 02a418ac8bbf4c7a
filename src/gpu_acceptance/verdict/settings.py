"""What two runs differ in before anything was measured: told first, because it explains or forbids a comparison. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.thresholds.values import level_text, plural, show
from gpu_acceptance.verdict.slots import Slots, match_slots

_ABSENT = "none"
_DRAWN = {"nccl_sizes.reference", "nccl.latency_reference"}  # lines of the report, which measure and judge nothing


@dataclass(frozen=True)
class Differing:
    """One setting. `forbids`: figures and failures of such runs say nothing about each other."""

    what: str
    before: str
    after: str
    forbids: bool = False

    def __str__(self) -> str:
        return f"{self.what}: {self.before} -> {self.after}"


def differing(before: RunRecord, after: RunRecord) -> list[Differing]:
    """What forbids a comparison comes first."""
    found = [*_shape(before, after), *_settings(before, after), *_by_place(before, after)]
    return sorted(found, key=lambda one: not one.forbids)


def subjects_with_other_parameters(before: RunRecord, after: RunRecord) -> frozenset[str]:
    """`gemm` where `gemm.size` differs."""
    old, new = before.plan.profile.parameters, after.plan.profile.parameters
    return frozenset(name.partition(".")[0] for name in {*old, *new} - _DRAWN if old.get(name) != new.get(name))


def _shape(before: RunRecord, after: RunRecord) -> Iterator[Differing]:
    for what, read in (("profile", _profile), ("GPUs", _models), ("job", _job)):
        if read(before) != read(after):
            yield Differing(what, read(before), read(after), forbids=True)
    hosts = [sorted(slots.nodes.values()) for slots in match_slots(before, after)]
    if hosts[0] != hosts[1]:
        yield Differing("nodes", ", ".join(hosts[0]), ", ".join(hosts[1]), forbids=not set(hosts[0]) & set(hosts[1]))


def _profile(record: RunRecord) -> str:
    return f"{record.plan.profile.name}{', measured only' if record.plan.measure_only else ''}"


def _models(record: RunRecord) -> str:
    return ", ".join(sorted({gpu.name for one in record.ranks for gpu in one.gpus})) or _ABSENT


def _job(record: RunRecord) -> str:
    return f"{plural(len({one.node for one in record.ranks}), 'node')}, {plural(len(record.ranks), 'rank')}"


def _settings(before: RunRecord, after: RunRecord) -> Iterator[Differing]:
    levels = [level_text(one.plan.profile.level, one.plan.profile.parameters) for one in (before, after)]
    if levels[0] != levels[1]:
        yield Differing("level", levels[0], levels[1])
    yield from _tables("limits of", _digests(before), _digests(after))
    parameters = [{name: show(value) for name, value in one.plan.profile.parameters.items()} for one in (before, after)]
    yield from _tables("parameter", parameters[0], parameters[1])
    yield from _tables("waiver", before.plan.waivers, after.plan.waivers)
    versions = [one.plan.gpu_acceptance_version for one in (before, after)]
    if versions[0] != versions[1]:
        yield Differing("gpu-acceptance", versions[0], versions[1])


def _digests(record: RunRecord) -> dict[str, str]:
    return {file: digest[:12] for file, digest in record.plan.profile.digests.items()}


def _by_place(before: RunRecord, after: RunRecord) -> Iterator[Differing]:
    """GPUs that were replaced, and what the software of each node says, once for all nodes that changed alike."""
    earlier, later = match_slots(before, after)
    yield from _tables("serial of", _serials(before, earlier), _serials(after, later), both=True)
    changed: dict[tuple[str, str, str], None] = {}
    old = {earlier.places[one.rank]: one for one in before.ranks}
    for identity in after.ranks:
        if was := old.get(later.places[identity.rank]):
            for what, a, b in (("version of", was.versions, identity.versions), ("variable", was.environment, identity.environment)):
                changed |= dict.fromkeys((str(one.what), one.before, one.after) for one in _tables(what, a, b))
    yield from (Differing(*one) for one in changed)


def _serials(record: RunRecord, slots: Slots) -> dict[str, str]:
    return {f"{slots.nodes[one.node]}, GPU {gpu.index}": gpu.serial or gpu.uuid for one in record.ranks for gpu in one.gpus}


def _tables(what: str, before: Mapping[str, str], after: Mapping[str, str], *, both: bool = False) -> Iterator[Differing]:
    for name in sorted(before.keys() & after.keys() if both else before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield Differing(f"{what} {name}", before.get(name, _ABSENT), after.get(name, _ABSENT))
