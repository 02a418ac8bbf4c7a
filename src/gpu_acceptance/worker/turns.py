"""What ranks of one host do one after the other, and what one of them does for all."""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from gpu_acceptance.thresholds.limit import Value
from gpu_acceptance.worker.session import Gather, WorkerSession

T = TypeVar("T")
PIECE = 400  # characters of a text that every rank may give at once, in a job of 1,000 ranks too


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


def of_own_node(ranks: WorkerSession, values: list[Value]) -> list[Value]:
    """Of what every rank gave, what those of this node did: ranks are numbered node by node."""
    first = ranks.rank - ranks.local_rank
    return values[first : first + ranks.local_world_size]


def once_per_node(work: Callable[[], str], *, rank: int, node: int, gather: Gather) -> str:
    """Runs `work` on the first rank of each node while the others wait, and returns its text on all ranks of that node. Collective.

    By number: nodes of one image may have one name, and one of them would answer for all.
    """
    first = gather("once per node: node", node).index(node)
    text = work() if rank == first else ""
    num_pieces = max(map(int, gather("once per node: pieces", -(-len(text) // PIECE))))
    pieces = (gather("once per node: text", text[start : start + PIECE])[first] for start in range(0, num_pieces * PIECE, PIECE))
    return "".join(map(str, pieces))
