"""This process as the supervisor of workers."""

import pytest

from gpu_acceptance.base import process as processes


@pytest.fixture(scope="module")
def subreaper():
    """This process is a subreaper, as a supervisor is."""
    processes.become_subreaper()
    yield
    processes._prctl(processes._PR_SET_CHILD_SUBREAPER, 0)
