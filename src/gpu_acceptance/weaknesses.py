"""What a reader of ACCEPTED must know, and therefore stands in the verdict line. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from gpu_acceptance.limit import DEFAULT_LEVEL, ChangeKind, Value
from gpu_acceptance.record import Coverage, Judgement, Status
from gpu_acceptance.values import level_text

_KINDS = ("loosened", "added", "changed", "not applicable", "tightened")


def find_weaknesses(
    profile: str,
    level: str,
    parameters: Mapping[str, Value],
    coverage: Coverage,
    judgements: Iterable[Judgement],
    changes: Iterable[tuple[ChangeKind, str]],
) -> Iterator[str]:
    """`judgements` of limits and rows; `changes` are the kind and the file of each that an overlay made."""
    if level != DEFAULT_LEVEL:
        yield level_text(level, parameters)
    if not coverage.gpus_tested:
        yield f"{profile} profile: no GPU was tested"
    if waived := {judgement.metric for judgement in judgements if judgement.status is Status.WAIVED}:
        yield f"{len(waived)} waived"
    changes = tuple(changes)
    for kind in _KINDS:
        if number := sum(one == kind for one, _ in changes):
            yield f"{number} {'declared ' if kind == 'not applicable' else ''}{kind}"
    if overlays := sorted({file for _, file in changes}):
        yield f"{'overlay' if len(overlays) == 1 else 'overlays'} {', '.join(overlays)}"


def tested_part(coverage: Coverage) -> str:
    """`4 of 8 GPUs`, or nothing where all were tested."""
    partly = coverage.gpus_tested < coverage.gpus_existing
    return f"{coverage.gpus_tested} of {coverage.gpus_existing} GPUs" if partly else ""
