"""Behind its peers in the first attempt only: one good attempt clears it."""

VALUES = [80.0, 100.0]


def test_value(check, ranks):
    mine = VALUES.pop(0)
    check("slow_once.value", mine if ranks.rank == 3 else 100.0, "GB/s")
