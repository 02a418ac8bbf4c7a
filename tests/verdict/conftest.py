"""A run with a failure, and a later one without."""

import pytest

from tests.report import samples
from tests.verdict.comparisons import later, with_slow_memory


@pytest.fixture
def bad():
    return with_slow_memory(5)


@pytest.fixture
def good():
    return later(samples.accepted())
