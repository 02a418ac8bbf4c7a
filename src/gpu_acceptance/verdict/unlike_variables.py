"""Variables of NCCL that differ between the ranks of one node: each rank plans alone, and plans that do not fit end in a crash or a hang.

On 2 H200 one rank with NCCL_P2P_DISABLE=1 let NCCL 2.28.9 crash in the other (reports/evidence/h200-interconnect). Nodes may differ: a
network interface has another name there.
"""

from collections import defaultdict
from collections.abc import Iterator

from gpu_acceptance.record.job import Job

_PREFIX, _HARMLESS = "NCCL_", "NCCL_DEBUG"  # what is logged, and where
_MOST_VARIABLES, _MOST_CHARACTERS = 4, 80
_UNSET = "not set"


def unlike_variables(job: Job) -> str:
    """`NCCL_P2P_DISABLE is not set on rank 0 (...), '1' on rank 1 (...)`; empty where the ranks of each node agree."""
    told = [f"{name} is {', '.join(_values(job, name, ranks))}" for name, ranks in _differing(job)]
    more = [f"and {len(told) - _MOST_VARIABLES} more"] if len(told) > _MOST_VARIABLES else []
    return "; ".join([*told[:_MOST_VARIABLES], *more])


def _differing(job: Job) -> Iterator[tuple[str, list[int]]]:
    """Each name with the ranks of the first node on which its value is not the same everywhere."""
    names = {name for identity in job.ranks for name in identity.environment}
    for name in sorted(name for name in names if name.startswith(_PREFIX) and not name.startswith(_HARMLESS)):
        for node in job.nodes:
            ranks = [rank for rank, identity in job.by_rank.items() if identity.node == node]
            if len({job.by_rank[rank].environment.get(name) for rank in ranks}) > 1:
                yield name, ranks
                break


def _values(job: Job, name: str, ranks: list[int]) -> Iterator[str]:
    ranks_of: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        value = job.by_rank[rank].environment.get(name)
        ranks_of[_UNSET if value is None else repr(value[:_MOST_CHARACTERS])].append(rank)
    return (f"{value} on {job.who(who)}" for value, who in ranks_of.items())
