"""A fixture of the session finds its data corrupted when it is torn down, after the last validation."""

import pytest


@pytest.fixture(scope="session")
def data():
    yield 1
    raise OSError("the data is corrupted")


def test_value(check, data):
    check("fails_at_the_end.value", 5.0, "GB/s")
