"""A clock that the tests of attempts set."""

import pytest


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when a test says so; `clock(seconds, attempt)` also has the attempt look at them."""
    now = [100.0]
    monkeypatch.setattr("gpu_acceptance.supervisor.rank_attempt.time.monotonic", lambda: now[0])

    def advance(seconds: float, attempt=None) -> None:
        now[0] += seconds
        if attempt:
            attempt.tick()

    return advance
