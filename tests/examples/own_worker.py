"""A validation with a worker of its own gets its variable; the next one, which wants another, gets neither."""

import os

import pytest


@pytest.mark.worker(fresh=True, env={"EXAMPLE_ALGO": "RING"})
def test_fresh(check):
    check("own_worker.algo", os.environ.get("EXAMPLE_ALGO", "none"), "text")


@pytest.mark.worker(env={"EXAMPLE_OTHER": "1"})
def test_next(check):
    check("own_worker.after", os.environ.get("EXAMPLE_ALGO", "none"), "text")
