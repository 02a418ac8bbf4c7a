"""Data between ranks along routes, each rank with its own, all at once: GB/s by rank, and wrong elements.

One operation sends `num_bytes` to one rank and receives as much from one (batch_isend_irecv). In a pair that is the same rank, so that
both directions of a link are loaded; in a ring it is the next one and the one before. bus factor 1, as sendrecv of nccl-tests.
The default group does it. A group for each node, rail or pair would cost one call of every rank each. Two ranks that meet for the first
time connect first; that is within the first contact, which is not timed.

Before each block the ends of a route meet in one more operation. There is no barrier over all ranks, which one dead link would stop:
all routes begin when the last results were shared through `share`, which must not need the links in doubt. The outcome of the first contact
is shared as well, before any rank times anything: no rank waits in a block for a peer that another one has lost.
GB = 1e9 bytes.
"""

import contextlib
import itertools
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from gpu_acceptance.base.text import first_few
from gpu_acceptance.measure import collectives
from gpu_acceptance.measure.collectives import Integers
from gpu_acceptance.measure.timing import time_block
from gpu_acceptance.measure.tournament import Pair, round_robin

NOBODY = -1  # a rank tells this if everything came that was to come
_MOST_SHOWN = 16
_REMEDY = "to do: take out the lost ranks, of a pair one end after the other, and run again"
_PERIOD = 2**22 - 1  # three times as much and the number of a rank is exact in fp32; odd, because NCCL works in pieces of 2**k elements
_POLL_S = 0.001
Share = Callable[[str, float], list[float]]  # key and own number -> those of every rank, in rank order; collective
LOOPBACK_ENVIRONMENT = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}  # a worker that measures loopback must start with this


class LostContactError(Exception):
    """Nothing moved between these pairs of ranks. Raised on all ranks alike: the group that they share cannot be used again."""

    def __init__(self, pairs: Sequence[Pair], within_s: float) -> None:
        self.pairs, self.within_s = pairs, within_s
        self._num_partners = Counter(rank for pair in pairs for rank in pair)
        super().__init__(self.describe(lambda rank: f"rank {rank}"))

    @property
    def lost(self) -> set[int]:
        """The end of each pair that lost more partners; both ends, where they lost as many."""
        most = {pair: max(self._num_partners[rank] for rank in pair) for pair in self.pairs}
        return {rank for pair in self.pairs for rank in pair if self._num_partners[rank] == most[pair]}

    def describe(self, name: Callable[[int], str]) -> str:
        """Return a sentence that names the pairs and the lost ranks. `name` turns a rank into a text for people."""
        pairs = [" and ".join(map(name, pair)) for pair in self.pairs]
        several = [name(rank) for rank in sorted(self.lost) if self._num_partners[rank] > 1]
        found = [f"lost by several partners: {_few(several)}"] if several else []
        if any(self._num_partners[one] == self._num_partners[other] == 1 for one, other in self.pairs):
            found.append("which end of a single pair is lost cannot be told")
        return f"no contact within {self.within_s:g} s between {_few(pairs)}; {'; '.join(found)}; {_REMEDY}"


def lost_pairs(missing: Sequence[int], *, ends_at_once: bool) -> list[Pair]:
    """Return the pairs between which nothing moved. `missing`: for each rank the one from which nothing came, or NOBODY.

    `ends_at_once`: sending and receiving are one operation, which ends where both did (NCCL). Then a rank to which something came did send
    as well, and a rank that waits for it really waits for its own receiver. gloo's send ends when the kernel has taken the data.
    """
    waiting = [(source, rank) for rank, source in enumerate(missing) if source != NOBODY]
    if ends_at_once:
        waiting = [(source, rank) for source, rank in waiting if missing[source] != NOBODY] or waiting
    return sorted({(min(pair), max(pair)) for pair in waiting})


def _few(names: Sequence[str]) -> str:
    return ", ".join(first_few(names, _MOST_SHOWN, "and {} more"))


@dataclass(frozen=True)
class Route:
    """The ranks that one rank sends to and receives from."""

    to: int
    source: int


def ring(members: list[int], rank: int) -> Route | None:
    """Return the route of a rank in a ring of these members; None where it is alone."""
    place = members.index(rank)
    return Route(members[(place + 1) % len(members)], members[place - 1]) if len(members) > 1 else None


class Exchange:
    """The buffers of this rank. `num_wrong` counts elements that differed from those sent, over all routes so far."""

    def __init__(
        self, *, rank: int, device: torch.device, share: Share, num_bytes: int, num_iterations: int, num_blocks: int, contact_s: float
    ) -> None:
        """`num_iterations`: operations in a block. `contact_s`: for the first operation on a route, connecting included."""
        self._device, self._share = device, share
        self._num_iterations, self._num_blocks, self._contact_s = num_iterations, num_blocks, contact_s
        self._given, self._taken = (torch.empty(num_bytes // 4, device=device) for _ in range(2))
        collectives.write(self._given, self._message(rank))
        self.num_wrong = 0

    def measure(self, route: Route | None) -> list[float]:
        """Return GB/s of every rank on its route, in rank order; 0 where it has none. Collective: with None it only listens.

        Raises LostContactError on all ranks alike, where on some route nothing came. Then the group cannot be used again, and work that a
        GPU was given may never end.
        """
        source = NOBODY if route is None or self._meet(route) else route.source
        missing = [int(other) for other in self._share("nothing came from", source)]
        if lost := lost_pairs(missing, ends_at_once=self._device.type == "cuda"):
            raise LostContactError(lost, self._contact_s)
        return self._share("GB/s", self._own_rate(route) if route else 0.0)

    def _meet(self, route: Route) -> bool:
        """Make the first contact, and compare what came; return whether anything came in time."""
        self._taken.fill_(math.nan)
        has_contact = self._comes_to_cpu(route) if self._device.type == "cpu" else self._comes_to_gpu(route)
        if has_contact:
            self.num_wrong += collectives.num_different(self._taken, self._message(route.source))
        return has_contact

    def _own_rate(self, route: Route) -> float:
        blocks_s = []
        for _ in range(self._num_blocks):
            self._run(route)  # brings the ends together
            span = time_block(lambda: self._run(route), self._num_iterations, self._device)
            blocks_s.append(span.elapsed_s / self._num_iterations)
        return 4 * len(self._given) / statistics.median(blocks_s) / 1e9

    def _run(self, route: Route) -> None:
        for work in self._begin(route):
            work.wait()

    def _begin(self, route: Route) -> list[dist.Work]:
        give = dist.P2POp(dist.isend, self._given, route.to)
        take = dist.P2POp(dist.irecv, self._taken, route.source)
        return dist.batch_isend_irecv([give, take])

    def _comes_to_cpu(self, route: Route) -> bool:
        """Return whether data came in time. A send that does not end is reported by the rank that waits for it."""
        try:
            give, take = self._begin(route)
            take.wait(timedelta(seconds=self._contact_s))
        except RuntimeError:  # timed out, or the other end is gone
            return False
        with contextlib.suppress(RuntimeError):
            give.wait(timedelta(seconds=self._contact_s))
        return True

    def _comes_to_gpu(self, route: Route) -> bool:
        end_s = time.monotonic() + self._contact_s
        try:
            self._run(route)  # returns once it is enqueued
        except dist.DistError:  # the other end is gone
            return False
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        while not done.query():  # type: ignore[no-untyped-call]
            if time.monotonic() > end_s:
                return False
            time.sleep(_POLL_S)
        return True

    def _message(self, rank: int) -> list[Integers]:
        return [Integers(0, len(self._given), _PERIOD, collectives.slope(rank), collectives.offset(rank))]


def rounds(nodes: Sequence[int]) -> list[list[Pair]]:
    """Return rounds of disjoint pairs of ranks of one node, from the node of each rank; each two ranks of a node meet once."""
    members = defaultdict(list)
    for rank, node in enumerate(nodes):
        members[node].append(rank)
    by_node = map(round_robin, members.values())
    return [list(itertools.chain(*pairs)) for pairs in itertools.zip_longest(*by_node, fillvalue=())]


def measure_loopback(exchange: Exchange, nodes: Sequence[int], rank: int) -> dict[int, float]:
    """Return GB/s that this rank has with each other rank of its node, each way; nothing where it is alone. Collective.

    Raises LostContactError.
    """
    rates_of: dict[int, float] = {}
    for pairs in rounds(nodes):
        peer = next((sum(pair) - rank for pair in pairs if rank in pair), None)
        rates = exchange.measure(None if peer is None else Route(peer, peer))
        if peer is not None:
            rates_of[peer] = min(rates[rank], rates[peer])
    return rates_of
