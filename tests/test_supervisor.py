"""What one supervisor tells its leader, over a real control store."""

import socket
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from judging import make_record

from gpu_acceptance.control import Control
from gpu_acceptance.launch import Rank
from gpu_acceptance.record import Outcome, RankRecord
from gpu_acceptance.supervisor import Supervisor


@pytest.fixture
def supervisor():
    place = Rank()
    control = Control(place)
    wake, other = socket.socketpair()
    made = Supervisor(place, control, SimpleNamespace(wake=wake))
    made.hold, made.journal = Mock(counters=lambda: ()), Mock()
    yield made
    control.close(timeout_s=5)
    wake.close()
    other.close()


def test_facts_that_are_too_large_to_send_are_an_error_of_the_rank_and_end_no_run(supervisor):
    supervisor.publish(make_record(0, Outcome.PASSED), {str(number): "x" * 16_000 for number in range(100)})
    _, message = supervisor.control.incoming.get_nowait()
    record = RankRecord.model_validate_json(message["record"])
    assert (record.outcome, message["facts"]) == (Outcome.ERROR, {})
    assert record.message.startswith("record not sent: a published message of ")
