"""Messages of one supervisor to its leader, over a real control store."""

import os
import queue
import socket
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from judging import make_identity, make_record

from gpu_acceptance.control.control import Control
from gpu_acceptance.control.messages import Bye, Go, Hello, JournalState, Leave, StopRequest
from gpu_acceptance.control.rank import Rank
from gpu_acceptance.control.secret import Secret
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.supervisor.process_watch import Found
from gpu_acceptance.supervisor.supervisor import Supervisor


@pytest.fixture
def supervisor():
    place = Rank()
    control = Control(place, Secret(b"of this test", is_of_run=True))
    wake, other = socket.socketpair()
    made = Supervisor(place, control, SimpleNamespace(wake=wake, poll=lambda **_: None, has_lost_launcher=False))
    made.slot, made.records.journal = Mock(counters=lambda: ()), Mock()
    made.slot.processes.found = lambda _since, *, at_once: Found()
    made.slot.cpu_since = lambda _before: None
    yield made
    control.close(timeout_s=5)
    wake.close()
    other.close()


def test_facts_that_are_too_large_to_send_are_an_error_of_the_rank_and_end_no_run(supervisor):
    supervisor.publish(make_record(0, Outcome.PASSED), {str(number): "x" * 16_000 for number in range(100)})
    _, message = supervisor.control.incoming.get_nowait()
    record = RankRecord.model_validate_json(message.line)
    assert (record.outcome, message.facts) == (Outcome.ERROR, {})
    assert record.message.startswith("record not sent: a published message of ")


def test_a_stranger_may_say_hello_and_nothing_else(supervisor):
    """Hello is how a rank that was told another number of ranks is found."""
    supervisor.control.incoming.put((7, JournalState(problem="", shared=True, records=None, round=0)))
    supervisor.control.incoming.put((7, StopRequest(reason="SIGTERM")))
    supervisor.control.incoming.put((7, Hello(identity=make_identity(7, 8, 8), refusal=None, nonce="")))
    supervisor.control.incoming.put((0, Bye()))
    os.eventfd_write(supervisor.control.wake_fd, 1)
    supervisor.pump()
    assert (supervisor.mail(JournalState), list(supervisor.mail(Hello)), list(supervisor.mail(Bye))) == ({}, [7], [0])
    assert supervisor.stopping is None
    assert supervisor.control.session.ledger.dropped == {"to": 2}


RISEN = (Figure(metric="counters.xids", value=1, unit="count", judged=True, detail="XID 79"),)


def published(supervisor):
    """The counters of the next record that was told, or None."""
    try:
        _, message = supervisor.control.incoming.get_nowait()
    except queue.Empty:
        return None
    return RankRecord.model_validate_json(message.line).counters


def test_a_record_waits_for_its_counters(supervisor):
    answers = [None, None, RISEN]
    supervisor.slot.counters = lambda: answers.pop(0)
    supervisor.publish(make_record(0, Outcome.PASSED), {})
    assert published(supervisor) is None
    supervisor.pump()
    assert published(supervisor) is None
    assert not supervisor.records.journal.append_line.called
    supervisor.pump()
    assert published(supervisor) == RISEN
    assert RankRecord.model_validate_json(supervisor.records.journal.append_line.call_args.args[0]).counters == RISEN


def test_a_record_waits_for_nothing_once_the_run_is_to_end(supervisor):
    supervisor.slot.counters = lambda: None
    supervisor.publish(make_record(0, Outcome.PASSED), {})
    supervisor.interrupt("SIGTERM")
    assert published(supervisor) == ()
    supervisor.pump()
    assert published(supervisor) is None


@pytest.mark.parametrize(
    ("nodeid", "each_link"), [("world_formation", True), ("worker_end", True), ("acceptance/test_a.py::test_b", False)]
)
def test_each_link_is_read_at_both_ends_of_the_workers(supervisor, nodeid, each_link):
    supervisor.publish(make_record(0, Outcome.PASSED, nodeid=nodeid), {})
    assert supervisor.slot.read_counters.call_args.kwargs == {"each_link": each_link}


def test_an_attempt_that_is_announced_while_a_rank_leaves_starts_no_worker(supervisor):
    supervisor.stop_signals.ignore = lambda: None
    supervisor.say_bye()
    go = Go(seq=1, kind="form", nodeid="formation", attempt=1, generation=1, group=True, deadline_s=60.0, lasts_s=0.0)
    supervisor._broadcasts.extend([go, Leave()])
    assert supervisor.await_broadcast(Leave, silence_s=5) == Leave()
    assert not supervisor.slot.start.called
