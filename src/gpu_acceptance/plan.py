"""`--plan`: what would run, judged by what, for how long. Touches no GPU."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from gpu_acceptance.bounds import bounds_of
from gpu_acceptance.launch import Rank
from gpu_acceptance.leader import Validation
from gpu_acceptance.limit import Limit, Profile, bound_at
from gpu_acceptance.values import show
from gpu_acceptance.verdict import subject_of


def plan_lines(profile: Profile, place: Rank, num_gpus: int, validations: Sequence[Validation], now: datetime) -> Iterator[str]:
    """One line per validation, then one per limit, then the sum."""
    yield f"profile {profile.name} ({profile.device_name or 'no GPU'}), {place.world_size} ranks on {place.num_nodes} nodes, {num_gpus} GPUs on this node"
    expected = [profile.expected_s.get(subject_of(validation.nodeid)) for validation in validations]
    for validation, seconds in zip(validations, expected, strict=True):
        duration = f"{seconds:g} s expected" if seconds is not None else "duration not known"
        yield f"  {validation.nodeid}: {duration}, deadline {validation.deadline_s:g} s"
    for metric, limit in sorted(profile.limits.items()):
        yield f"  {metric}: {_limit_text(limit, place, required=limit.subject in profile.requires)}"
    known = sum(seconds for seconds in expected if seconds is not None)
    end = now + timedelta(seconds=known)
    unknown = sum(seconds is None for seconds in expected)
    yield f"expected: {known:g} s, end about {end:%H:%M:%S}" + (
        f"; {unknown} validations of unknown duration not counted" if unknown else ""
    )


def _limit_text(limit: Limit, place: Rank, *, required: bool) -> str:
    if not limit.applies(place.local_world_size, place.num_nodes):
        sizes = ", ".join(map(str, limit.listed_sizes())) or "any"
        return f"does not apply to this job (GPUs per node: {sizes}; nodes: {limit.nodes})"
    bounds = ", ".join(_bound_text(limit, bound, place.local_world_size) for bound in bounds_of(limit))
    return f"{bounds} {limit.unit} ({limit.scope}{'' if required else ', not required'}) [{limit.file}: {limit.source}]"


def _bound_text(limit: Limit, bound: str, gpus_per_node: int) -> str:
    match bound:
        case "at_least":
            return f">= {show(bound_at(limit.at_least, gpus_per_node) or 0)}"
        case "at_most":
            return f"<= {show(bound_at(limit.at_most, gpus_per_node) or 0)}"
        case "equals":
            return f"== {limit.equals}"
        case "peers":
            assert limit.peers
            return f"at most {show(limit.peers.deficit_at_most * 100)} % below its peers"
        case _:
            return "equal on all"
