"""Pairs of nodes exchange data, and in the second round one of them dies."""

import os
import signal

from gpu_acceptance.measure import localise, tournament
from gpu_acceptance.measure.exchange import Exchange, Sizes

DIES = 3


def test_pairs(ranks):
    num_rounds = 0

    def share(rate):
        nonlocal num_rounds
        num_rounds += 1
        if ranks.rank == DIES and num_rounds == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return ranks.gather("GB/s", rate)

    layout = localise.layout(ranks.gather("node", ranks.node), ranks.rank)
    exchange = Exchange(Sizes(4_000, 1, 1, contact_s=10.0), rank=ranks.rank, device=ranks.device, share=share)
    tournament.run(layout.num_nodes, localise.Pairs(exchange, layout), num_rounds=3, suspect_percent=50.0, seed=1)
