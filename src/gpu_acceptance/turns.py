"""What ranks of one host do one after the other."""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from gpu_acceptance.worker_session import Gather

T = TypeVar("T")


def take_turns(work: Callable[[], T], *, rank: int, host: str, gather: Gather) -> T:
    """Runs `work` while no other rank of this host runs its own, and returns what it returns. Collective.

    Nobody begins before all have come, and nobody leaves before all are done: what one rank does before and after cannot disturb
    another's turn. One rank of each host works at a time.
    """
    hosts = gather("turns: host", host)
    own = hosts[:rank].count(host)
    results = []
    for turn in range(max(Counter(hosts).values())):
        if turn == own:
            results.append(work())
        gather("turns: done", turn)
    (result,) = results
    return result
