"""How far the clocks of the nodes are apart: told to people, who lay logs side by side. Judged is `connectivity.clock.apart`. Pure."""

from collections.abc import Iterator, Sequence

from gpu_acceptance.record.identity import Bounds, RankIdentity

NOTABLE_S = 1.0  # NTP keeps clocks within milliseconds; a node further off than this has none that works


def ahead(asked_s: float, heard_s: float, answer_s: float) -> Bounds:
    """How far a clock that said `answer_s` is ahead of ours, at least and at most.

    It was read between our question and the arrival of its answer, whichever way took longer.
    """
    return answer_s - heard_s, answer_s - asked_s


def clock_offset(bounds: Bounds | None) -> str:
    """`+0.213 ms, give or take 0.150 ms`: against the clock of node 0."""
    if bounds is None:
        return "not known: no answer came"
    least_s, most_s = bounds
    return f"{(least_s + most_s) / 2 * 1000:+.3f} ms, give or take {(most_s - least_s) / 2 * 1000:.3f} ms"


def clock_sentences(ranks: Sequence[RankIdentity]) -> Iterator[str]:
    """`clock of node 1 (node-01) is 3600.0 s ahead of that of node 0 (node-00), give or take 0.1 s`, for each node provably off."""
    first = {identity.node: identity for identity in sorted(ranks, key=lambda identity: identity.rank, reverse=True)}
    reference = f"node 0 ({first[0].node_place})" if 0 in first else "node 0"
    for node, identity in sorted(first.items()):
        least_s, most_s = identity.clock_ahead_s or (0.0, 0.0)
        if max(least_s, -most_s) > NOTABLE_S:
            middle_s, half_s = (least_s + most_s) / 2, (most_s - least_s) / 2
            apart = f"{abs(middle_s):.1f} s {'ahead of' if middle_s > 0 else 'behind'} that of {reference}"
            yield f"clock of node {node} ({identity.node_place}) is {apart}, give or take {half_s + 0.05:.1f} s"
