"""A tournament of GPUs: `localise` where every `--gpus-per-node` of one host, or of several, are taken for a node; and a slow one, planted.

    torchrun --nproc-per-node gpu tools/gpu/localise_readings.py [--gpus-per-node 1]
    torchrun --nproc-per-node 4 tools/gpu/localise_readings.py --device=cpu --num-bytes=1048576 --delay-s=0.05

JSON lines from rank 0: of each run every node's and every path's deficit, what varies from pair to pair, the suspects and the time it took.
First three runs as things are, then one in which the first rank of the last node waits before each operation. Ends with 1 where
an element was wrong, or where the planted node is not the only suspect of its run. pytest does not collect this file.
"""

import argparse
import statistics
import sys
import time

import torch
import torch.distributed as dist
from pcie_readings import Meeting, gather
from readings import GiB, join_world, name, say, together, took_s, world_size

from gpu_acceptance.inventory import versions
from gpu_acceptance.measure import localise
from gpu_acceptance.measure.exchange import Exchange
from gpu_acceptance.measure.localise import Layout, Located

CYCLES_PER_S = 1.5e9  # of an SM, about


class Late(Exchange):
    """Waits before each operation."""

    delay_s = 0.0

    def _begin(self, route):
        if self._device.type == "cuda":
            torch.cuda._sleep(int(self.delay_s * CYCLES_PER_S))
        else:
            time.sleep(self.delay_s)
        return super()._begin(route)


def main() -> None:
    options = read_options()
    device = join_world(options.device)
    Meeting.group = dist.new_group(backend="gloo")
    rank = dist.get_rank()
    together(device)
    layout = localise.layout([other // options.gpus_per_node for other in range(world_size())], rank)
    say({"versions": versions.read(), "world_size": world_size(), "device": name(device), "num_nodes": len(layout.ranks)})
    exchange = Late(rank=rank, device=device, share=gather, num_bytes=options.num_bytes, num_iterations=10, num_blocks=3, contact_s=30.0)
    for _ in range(3):
        tell("as it is", exchange, layout)
    late = layout.ranks[-1][0]
    exchange.delay_s = options.delay_s if rank == late else 0.0
    located = tell(f"rank {late} waits {options.delay_s:g} s", exchange, layout)
    found = [score.node for score in located.found.suspects] == [len(layout.ranks) - 1] and not located.found.path_suspects
    wrong = sum(gather("wrong", exchange.num_wrong))
    say({"planted_found": found, "num_wrong": wrong})
    dist.destroy_process_group()
    sys.exit(bool(wrong) or not found)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Play tournaments of GPUs; print JSON lines.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--gpus-per-node", type=int, default=1)
    parser.add_argument("--num-bytes", type=int, default=GiB)
    parser.add_argument("--delay-s", type=float, default=0.001, help="of the planted fault; default: a millisecond")
    parser.add_argument("--suspect-percent", type=float, default=3.0)
    return parser.parse_args()


def tell(what: str, exchange: Exchange, layout: Layout) -> Located:
    """One tournament, and a line about it."""
    begin_s = time.monotonic()
    names = [f"node {node}" for node in range(len(layout.ranks))]
    rules = {"num_rounds": 3, "suspect_percent": read_options().suspect_percent, "seed": 1}
    located = localise.locate(exchange, layout, names=names, **rules)
    found = located.found
    rates = [path.gb_per_s for path in found.paths]
    say(
        {
            "what": what,
            "suspects": located.suspects,
            "median_gb_per_s": located.rate,
            "node_deficits": [round(score.deficit_percent, 2) for score in found.scores.values()],
            "path_deficits": [round(path.deficit_percent, 2) for path in found.paths],
            "pairs_cv_percent": round(100 * statistics.stdev(rates) / statistics.mean(rates), 2) if len(rates) > 1 else None,
            "num_rounds": found.num_rounds,
            "took_s": took_s(begin_s),
        }
    )
    return located


if __name__ == "__main__":
    main()
