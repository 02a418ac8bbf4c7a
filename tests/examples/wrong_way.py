"""Bytes go another way than was bought."""


def test_way(check):
    check("wrong_way.transport", "SHM", "text")
