"""Each GPU copies to every other GPU of its node at its rate, one way and both at once, and every compared word is right.

One rank of each node copies between the GPUs of all its ranks. Each GPU is judged by the fastest copy from it and the fastest to it, which
show its own links. Each path between two is judged by the rates of both with others.
"""

import pytest

from gpu_acceptance.measure import p2p

pytestmark = [pytest.mark.no_group, pytest.mark.min_ranks_per_node(2)]


@pytest.mark.drill("an element of each array is wrong", "p2p.*.wrong", plant="arrays", on_all=True)
@pytest.mark.parametrize("mode", p2p.MODES)
def test_bandwidth(mode, between_gpus, parameter, pace, check, record):
    """Between any two GPUs large copies hold their rate, one way alone or both at once, and no word that is compared is wrong."""
    num_bytes = parameter("p2p.num_bytes")
    copies = between_gpus(
        lambda devices: p2p.bandwidth(
            mode,
            devices=devices,
            num_bytes=num_bytes,
            hopeless_s=pace.hopeless_s(f"p2p.{mode}.out.bandwidth", num_bytes / 1e9),
            num_copies=parameter("p2p.num_copies"),
            num_samples=parameter("timing.num_blocks"),
        )
    )
    sent, received = copies.sent, copies.received
    check(f"p2p.{mode}.out.bandwidth", sent.value, "GB/s", spread=sent.spread, detail=sent.detail)
    check(f"p2p.{mode}.in.bandwidth", received.value, "GB/s", spread=received.spread, detail=received.detail)
    check(f"p2p.{mode}.wrong", copies.wrong.value, "words", detail=copies.wrong.detail)
    if len(copies.ranks) > 2:
        check(f"p2p.{mode}.path", copies.path.value, "relative", detail=copies.path.detail, **copies.path.labels)
    for peer, gb_per_s in copies.to_peers.items():
        record(f"p2p.{mode}.to_rank_{peer}", gb_per_s, "GB/s", to_rank=peer)


def test_latency(between_gpus, parameter, check, record):
    """Between any two GPUs copies of 8 bytes go there and back, and none is wrong; their latency is reported."""
    copies = between_gpus(
        lambda devices: p2p.latency(
            devices=devices, num_round_trips=parameter("p2p.num_round_trips"), num_samples=parameter("timing.num_blocks")
        )
    )
    check("p2p.latency.wrong", copies.wrong.value, "words", detail=copies.wrong.detail)
    for peer, us in copies.to_peers.items():
        record(f"p2p.latency.to_rank_{peer}", us, "us", to_rank=peer)
