"""One rank of four runs another version."""


def test_version(check, ranks):
    check("odd_one.version", "2.9.1" if ranks.rank == 2 else "2.9.0", "text")
