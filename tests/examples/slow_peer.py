"""Above every floor, and far behind its peers: one rank of four, in every attempt."""


def test_value(check, ranks):
    check("slow_peer.value", 80.0 if ranks.rank == 3 else 100.0, "GB/s")
