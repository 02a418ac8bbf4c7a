import time

import pytest

from gpu_acceptance.base.model import encode
from gpu_acceptance.control.messages import FenceReady, Gather, Go, Published, Vote
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.supervisor import attempt_state as state_module
from gpu_acceptance.supervisor.attempt_state import AttemptState
from tests.judging import make_record

GO = Go(seq=7, kind="run", nodeid="acceptance/test_hbm.py::test_triad", attempt=1, generation=2, deadline_s=60.0, lasts_s=0.0, absent=())
PASSED = Vote(seq=7, outcome=Outcome.PASSED)


def vote(outcome, reason):
    return Vote(seq=7, outcome=outcome, reason=reason)


class Casts(list):
    """Broadcasts of the state as JSON."""

    def append(self, message):
        super().append(message.model_dump(mode="json"))

    def of(self, kind):
        return [message for message in self if message["type"] == kind]


@pytest.fixture
def casts():
    return Casts()


@pytest.fixture
def state(casts):
    return AttemptState(GO, 3, casts.append)


def publish(state, rank, outcome=Outcome.PASSED, facts=None, **more):
    record = make_record(rank, outcome, nodeid=GO.nodeid, generation=GO.generation, **more)
    state.take(rank, published(record.model_dump_json(), facts))


def published(line, facts=None):
    return Published(seq=7, problem=None, facts=facts or {}, line=line)


def outcomes(state):
    return [record.outcome for record in state.records()]


def test_all_enter_once_all_voted(state, casts):
    for rank in (2, 0):
        state.take(rank, PASSED)
        state.advance()
    assert casts == []
    state.take(1, PASSED)
    state.advance()
    state.advance()
    assert casts == [{"type": "enter", "seq": 7, "ok": True, "outcome": Outcome.PASSED, "reason": ""}]


SKIPS, FAILS = vote(Outcome.SKIPPED, "no port"), vote(Outcome.ERROR, "no room")


@pytest.mark.parametrize(
    ("votes", "outcome", "reason"),
    [
        ((PASSED, SKIPS, vote(Outcome.SKIPPED, "no cable")), Outcome.SKIPPED, "rank 1 skipped: no port"),
        ((SKIPS, PASSED, FAILS), Outcome.NOT_RUN, "not entered: the set-up of rank 2 did not succeed"),
        ((PASSED, None, PASSED), Outcome.NOT_RUN, "not entered: the set-up of rank 1 did not succeed"),
    ],
    ids=["one skip is a skip for all", "a failure comes before a skip", "a rank that died before its vote"],
)
def test_one_vote_keeps_all_out(state, casts, votes, outcome, reason):
    for rank, one in enumerate(votes):
        if one:
            state.take(rank, one)
        else:
            publish(state, rank, Outcome.DIED)
    state.advance()
    assert casts.of("enter") == [{"type": "enter", "seq": 7, "ok": False, "outcome": outcome, "reason": reason}]


def test_a_rank_without_a_worker_keeps_no_other_rank_out(casts):
    state = AttemptState(GO.model_copy(update={"absent": (1,)}), 3, casts.append)
    state.take(0, PASSED)
    state.take(2, PASSED)
    publish(state, 1, Outcome.NOT_RUN)
    state.advance()
    (enter,) = casts.of("enter")
    assert enter["ok"]
    for rank in (0, 2):
        state.take(rank, Gather(seq=7, key="place", value=rank))
    assert casts.of("gathered") == [{"type": "gathered", "seq": 7, "values": [0, 2], "absent": [1]}]


def test_the_first_vote_and_the_first_record_of_a_rank_count(state, casts):
    state.take(0, vote(Outcome.ERROR, "no room"))
    state.take(0, PASSED)
    publish(state, 0, Outcome.ERROR, phase="setup")
    publish(state, 0)
    for rank in (1, 2):
        state.take(rank, PASSED)
    state.advance()
    assert not casts.of("enter")[0]["ok"]
    assert outcomes(state)[0] is Outcome.ERROR


def test_a_bad_rank_is_broadcast_once(state, casts):
    publish(state, 1, Outcome.DIED, phase="call")
    publish(state, 2)
    state.advance()
    state.advance()
    assert casts.of("peer_bad") == [{"type": "peer_bad", "seq": 7, "rank": 1, "outcome": Outcome.DIED}]


def test_done_when_all_published(state):
    for rank in (2, 0, 1):
        assert not state.done
        assert rank in state.awaited
        publish(state, rank)
    assert (state.done, state.awaited, [record.rank for record in state.records()]) == (True, [], [0, 1, 2])


def test_a_rank_that_never_answers_is_lost(casts, monkeypatch):
    monkeypatch.setattr(state_module, "LOST_AFTER_S", 0.0)
    monkeypatch.setattr(state_module, "GRACE_S", 0.0)
    state = AttemptState(GO.model_copy(update={"deadline_s": 0.0}), 2, casts.append)
    publish(state, 0)
    time.sleep(0.01)
    assert state.done
    lost = state.records()[1]
    assert (lost.outcome, lost.rank, lost.nodeid, lost.generation) == (Outcome.LOST, 1, GO.nodeid, 2)
    assert lost.message.startswith("no answer within 0 s: its supervisor or node is gone")


def test_hurry_only_shortens(state):
    state.hurry(1e9)
    assert not state.done
    state.hurry(-1)
    assert state.done
    assert outcomes(state) == [Outcome.LOST] * 3


OTHERS = make_record(0, Outcome.PASSED, nodeid=GO.nodeid, generation=GO.generation)
OF_ANOTHER = f"rank, validation, attempt and generation are (0, {GO.nodeid!r}, 1, 2), and must be (1, {GO.nodeid!r}, 1, 2)"


@pytest.mark.parametrize(("line", "why"), [('{"outcome": "passed"}', ""), ("5", ""), ("", ""), (encode(OTHERS), OF_ANOTHER)])
def test_a_record_that_cannot_be_read_or_is_another_rank_s_is_an_error_of_its_sender(state, line, why):
    state.take(1, published(line))
    publish(state, 0)
    error = state.records()[1]
    assert (error.rank, error.outcome) == (1, Outcome.ERROR)
    assert error.message.startswith(f"its record could not be read: {why}")


def test_gather_answers_in_rank_order_once_all_gave_a_value_and_again(state, casts):
    for number in (1, 2):
        for rank, value in ((2, "c"), (0, "a"), (1, "b")):
            assert len(casts) == number - 1
            state.take(rank, Gather(seq=7, key="place", value=value))
    assert casts == [{"type": "gathered", "seq": 7, "values": ["a", "b", "c"], "absent": []}] * 2


@pytest.mark.parametrize("ok", [True, False])
def test_the_collective_that_must_pair_comes_once_all_passed_and_is_not_entered_where_one_did_not(state, casts, ok):
    for rank in range(3):
        state.take(rank, PASSED)
    state.take(0, FenceReady(seq=7))
    state.take(2, FenceReady(seq=7))
    state.advance()
    assert casts.of("fence") == []
    if ok:
        state.take(1, FenceReady(seq=7))
    else:
        publish(state, 1, Outcome.FAILED, phase="call")
    state.advance()
    state.advance()
    assert casts.of("fence") == [{"type": "fence", "seq": 7, "ok": ok}]
