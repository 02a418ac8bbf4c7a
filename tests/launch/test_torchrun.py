"""Which exit code torchrun's ranks have come to, where it ended some of them itself."""

import signal
from types import SimpleNamespace

import pytest

from gpu_acceptance.launch.torchrun import _own_code

TERM = -signal.SIGTERM


@pytest.mark.parametrize(
    ("codes", "own"),
    [
        ([(4, 2.0), (4, 1.0)], 4),
        ([(TERM, 1.0), (4, 2.0)], 4),
        ([(6, 2.0), (1, 1.0), (TERM, 3.0)], 1),
        ([(TERM, 1.0)], 0),
        ([(4, 1.0), (-signal.SIGKILL, 2.0)], 0),
        ([(4, 1.0), (9, 2.0)], 0),
    ],
)
def test_a_rank_that_torchrun_ended_hides_no_code_of_ours(codes, own):
    assert _own_code([SimpleNamespace(exitcode=code, timestamp=moment) for code, moment in codes]) == own
