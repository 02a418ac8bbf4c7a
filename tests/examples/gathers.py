"""Every rank gets one value of every rank, in their order, twice under one name."""


def test_value(check, ranks):
    first = ranks.gather("place", 10 * ranks.rank)
    second = ranks.gather("place", f"{ranks.rank}!")
    right = first == [10 * rank for rank in range(ranks.world_size)] and second == [f"{rank}!" for rank in range(ranks.world_size)]
    check("gathers.value", 5 if right else 0, "GB/s")
