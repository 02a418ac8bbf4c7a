"""Four real ranks on gloo, for test_localise.py: `gloo_pairs.py RANK STORE_FILE` runs every scene and prints one JSON object."""

import json
import sys
import time
from dataclasses import asdict

import torch
import torch.distributed as dist

from gpu_acceptance.measure import localise, nccl
from gpu_acceptance.measure.collectives import NAMES
from gpu_acceptance.measure.exchange import Exchange, LostContactError, measure_loopback

WORLD_SIZE = 4
SIZES = {"num_bytes": 4_006, "num_iterations": 3, "num_blocks": 3}  # not whole elements: 4004 are used
ROUNDS = [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
FOUR_NODES, TWO_NODES = [0, 1, 2, 3], [0, 0, 1, 1]
REAL_CONTACT = Exchange._comes_to_cpu


class Board:
    """Stands for `gather` of a run: every rank shares one number, without the links that are measured."""

    def __init__(self, rank: int, store: dist.Store) -> None:
        self._rank, self._store, self._number = rank, store, 0

    def share(self, key: str, value: float) -> list[float]:
        self._number += 1
        self._store.set(f"{self._number}/{self._rank}", repr(value))
        return [float(self._store.get(f"{self._number}/{rank}")) for rank in range(WORLD_SIZE)]


def exchange(rank: int, board: Board, contact_s: float = 60.0) -> Exchange:
    return Exchange(rank=rank, device=torch.device("cpu"), share=board.share, contact_s=contact_s, **SIZES)


def played(rank: int, board: Board) -> dict[str, object]:
    moved = exchange(rank, board)
    layout = localise.layout(FOUR_NODES, rank)
    rates = [sorted(localise.measure_pairs(moved, layout, one).items()) for one in ROUNDS]
    return {"rates": rates, "num_wrong": moved.num_wrong}


def with_contact(contact, scene):
    Exchange._comes_to_cpu = contact
    try:
        return scene()
    finally:
        Exchange._comes_to_cpu = REAL_CONTACT


def wrong_on_rank_1(self: Exchange, route) -> bool:
    came = REAL_CONTACT(self, route)
    if dist.get_rank() == 1:
        self._taken[3] += 1
    return came


def nothing_moves(self: Exchange, route) -> bool:
    return True


def lost(rank: int, board: Board, nodes, scene, contact, contact_s: float = 60.0) -> dict[str, object]:
    """Return the pairs without contact, and how often this rank had timed by then."""
    moved, timed = exchange(rank, board, contact_s), []
    real = moved._own_rate
    moved._own_rate = lambda route: timed.append(route) or real(route)
    try:
        with_contact(contact, lambda: scene(moved, localise.layout(nodes, rank)))
    except LostContactError as error:
        return {"pairs": error.pairs, "lost": sorted(error.lost), "told": str(error), "num_timed": len(timed)}


def lost_inside(rank: int, board: Board) -> dict[str, object]:
    return lost(rank, board, TWO_NODES, lambda moved, layout: localise.inside(moved, layout, 3.0), lambda self, route: rank < 2)


def lost_in_the_second_round(rank: int, board: Board) -> dict[str, object]:
    def contact(self, route) -> bool:
        return {rank, route.to} != {1, 3} and REAL_CONTACT(self, route)

    def scene(moved, layout) -> None:
        for pairs in ROUNDS:
            localise.measure_pairs(moved, layout, pairs)

    return lost(rank, board, FOUR_NODES, scene, contact)


def lost_on_a_rail(rank: int, board: Board) -> dict[str, object]:
    """Rank 3 is there and does nothing. Nothing moves afterwards: gloo ends all connections of a rank that has waited in vain."""

    def contact(self, route) -> bool:
        if rank < 3:
            return REAL_CONTACT(self, route)
        time.sleep(1.5)
        return False

    return lost(rank, board, FOUR_NODES, lambda moved, layout: localise.rails(moved, layout, 3.0), contact, contact_s=1.0)


def of_two_nodes(rank: int, board: Board) -> dict[str, object]:
    layout, moved = localise.layout(TWO_NODES, rank), exchange(rank, board)
    inside, rails = localise.inside(moved, layout, 100.0), localise.rails(moved, layout, 100.0)
    located = localise.locate(moved, layout, names=["a", "b"], num_rounds=3, suspect_percent=3.0, seed=1)
    return {
        "inside": inside.gb_per_s,
        "rails": rails.gb_per_s,
        "pair": [located.rate],
        "known": [*located.found.scores, *located.found.paths, *located.found.suspects],
        "slowest": [sorted(counter.items()) for counter in located.slowest_rails],
        "num_wrong": moved.num_wrong,
    }


def located(rank: int, board: Board) -> dict[str, object]:
    """Locate the last of four nodes, which is slow: its rates are a tenth."""
    moved = exchange(rank, board)
    real = moved._own_rate
    moved._own_rate = lambda route: real(route) and (1.0 if 3 in (rank, route.to) else 10.0)
    found = localise.locate(moved, localise.layout(FOUR_NODES, rank), names=[*"abcd"], num_rounds=3, suspect_percent=3.0, seed=1)
    return {"suspects": found.suspects, "rate": found.rate, "num_rounds": found.found.num_rounds}


def looped(rank: int, board: Board, nodes=TWO_NODES) -> dict[str, object]:
    moved = exchange(rank, board)
    found = measure_loopback(moved, nodes, rank)
    return {"rates": sorted(found.items()), "num_wrong": moved.num_wrong}


def inside_nodes(rank: int) -> dict[str, object]:
    group = nccl.group_of(TWO_NODES, rank)
    sizes = {"num_bytes": 4_000, "device": torch.device("cpu"), "block_s": 0.001, "num_blocks": 2}
    return {name: asdict(nccl.measure(name, **sizes, group=group)) for name in NAMES}


def takes_part(places: list[int], rank: int) -> int:
    """Return how many groups this rank has made with the others."""
    before = len(dist.distributed_c10d._world.pg_names)
    nccl.group_of(places, rank)
    return len(dist.distributed_c10d._world.pg_names) - before


def main(rank: int, store_file: str) -> None:
    store = dist.FileStore(store_file, WORLD_SIZE)
    dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=WORLD_SIZE)
    board = Board(rank, dist.PrefixStore("board", store))
    answer = {
        "sound": played(rank, board),
        "rings": of_two_nodes(rank, board),
        "loopback": [looped(rank, board, nodes) for nodes in (TWO_NODES, [0, 0, 0, 1], FOUR_NODES)],
        "inside_nodes": inside_nodes(rank),
        "takes_part": takes_part([0, 0, 0, 1], rank),
        "no_groups": [nccl.group_of(nodes, rank) for nodes in (FOUR_NODES, [0, 0, 0, 0])],
        "wrong": with_contact(wrong_on_rank_1, lambda: played(rank, board)),
        "nothing": with_contact(nothing_moves, lambda: played(rank, board)["num_wrong"]),
        "located": located(rank, board),
        "loopback_wrong": with_contact(wrong_on_rank_1, lambda: looped(rank, board)),
        "lost_inside": lost_inside(rank, board),
        "lost_in_the_second_round": lost_in_the_second_round(rank, board),
        "lost_on_a_rail": lost_on_a_rail(rank, board),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
