"""Heartbeats over a real store on 127.0.0.1."""

import time
from datetime import timedelta

import pytest
from torch.distributed import TCPStore
from waiting import wait_until

from gpu_acceptance.control import heartbeats as module
from gpu_acceptance.control.control import ControlError
from gpu_acceptance.control.heartbeats import Heartbeats, Loss
from gpu_acceptance.control.session import Ledger, Session

SESSION = Session(b"of this test")

pytestmark = pytest.mark.slow


@pytest.fixture
def beat_fast(monkeypatch):
    monkeypatch.setattr(module, "BEAT_S", 0.05)
    monkeypatch.setattr(module, "LOST_S", 1.0)
    monkeypatch.setattr(module, "_HELD_S", 6.0)


@pytest.fixture
def server():
    return TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


@pytest.fixture
def make(server):
    """Return make(rank): the heartbeats of a rank, ended when the test is over."""
    made = []

    def make(rank: int) -> Heartbeats:
        made.append(Heartbeats(TCPStore("127.0.0.1", server.port, None, is_master=False), SESSION, rank))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.mark.usefixtures("beat_fast")
def test_a_rank_that_stops_is_lost_and_the_others_are_alive(make):
    watcher, stopping, _beating = make(0), make(1), make(2)
    assert not watcher.beats(1)
    watcher.watch([0, 1, 2])
    assert wait_until(lambda: watcher.alive() == [1, 2] and watcher.beats(1))
    stopping.end()
    assert wait_until(lambda: watcher.lost() == [1] and watcher.alive() == [2] and not watcher.beats(1))
    assert not watcher.is_cut_off


@pytest.mark.usefixtures("beat_fast")
@pytest.mark.parametrize(
    "junk",
    ["null", '{"reason": 3}', '"lost"', "[1, 2, 3]", '{"sent": 3}', '{"sent": {"to/0": "x", "cast": true}, "lost": [1], "more": {}}'],
)
def test_a_right_code_on_junk_reports_nothing_and_ends_nothing(make, server, junk):
    """Without a key over several nodes, any process can make the code."""
    watcher = make(0)
    server.set("beat/1", SESSION.sign("beat/1", 1, 7, junk))
    server.set("given-up/1", SESSION.sign("given-up/1", 2, 1, junk))
    watcher.watch([1, 2], 1)
    assert wait_until(lambda: watcher.facts == {1: {"dropped": {}, "lost": {}, "sent": {}}})
    alive = make(2)
    assert wait_until(lambda: watcher.alive() == [2])
    assert watcher.loss_of(1) is None
    alive.end()


@pytest.mark.usefixtures("beat_fast")
def test_a_rank_that_was_dead_before_the_first_look_is_not_alive(make):
    watcher, dead, beating = make(0), make(1), make(2)
    dead.end()
    dead._thread.join()
    watcher.watch([1])
    watcher.watch([1, 2])
    assert wait_until(lambda: watcher.alive() == [2])
    assert beating is not None


def test_no_rank_is_lost_while_we_ourselves_are_cut_off(make, monkeypatch):
    watcher, _other = make(0), make(1)
    watcher.watch([1])
    assert wait_until(lambda: 1 in watcher._seen)
    now = time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + 20)
    assert watcher.lost() == []
    assert not watcher.is_cut_off
    monkeypatch.setattr(module.time, "monotonic", lambda: now + 30)
    assert watcher.is_cut_off


def test_a_store_that_is_gone_before_the_first_beat():
    class Gone:
        def set_timeout(self, timeout: timedelta) -> None:
            assert timeout

        def set(self, key: str, value: str) -> None:
            raise RuntimeError("Connection reset by peer\nException raised from ...")

    with pytest.raises(ControlError, match=r"^the control store is gone: Connection reset by peer$"):
        Heartbeats(Gone(), SESSION, 0)


def test_a_time_without_the_store_counts_while_it_lasts_and_afterwards_but_not_for_later_attempts(make, monkeypatch):
    watcher, began, real = make(0), time.monotonic(), time.monotonic
    assert watcher.silent_s(began) == 0.0
    assert watcher.open_since <= time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: real() + 60)
    assert watcher.silent_s(began) > 59
    assert wait_until(lambda: watcher._own > began + 60)
    assert 59 < watcher.silent_s(began) < 70
    assert watcher.silent_s(real() + 61) == 0.0
    assert began + 60 < watcher.open_since <= real() + 60


@pytest.mark.usefixtures("beat_fast")
def test_a_rank_that_gives_up_the_leader_tells_all_that_watch_it_and_the_leader_itself(make):
    all_ranks = leader, second, third = [make(rank) for rank in range(3)]
    for one in all_ranks:
        one.watch([0, 1, 2], 0)
    assert wait_until(lambda: second.beats(0) and third.beats(0))
    assert [one.loss_of(0) for one in all_ranks] == [None] * 3
    loss = Loss(reason="rank 0 lost: it did not react to SIGTERM within 10 s", signal="SIGTERM")
    second.give_up(0, loss)
    assert wait_until(lambda: leader.loss_of(0) == third.loss_of(0) == loss)
    third.give_up(0, Loss(reason="no heartbeat"))
    assert (third.loss_of(0), third._own_losses) == (loss, {})
    assert leader.loss_of(1) is None


@pytest.mark.usefixtures("beat_fast")
@pytest.mark.parametrize("what", ["delete", "overwrite", "put an old one back", "put the last one back"])
def test_a_rank_whose_beats_a_stranger_takes_away_is_not_lost(make, server, what, monkeypatch):
    """Its counter stands still, as a watcher sees it where each beat is taken away at once."""
    monkeypatch.setattr(SESSION, "ledger", Ledger())
    watcher, held = make(0), make(1)
    first = server.get("beat/1").decode()
    watcher.watch([1])
    assert wait_until(lambda: watcher.alive() == [1])
    held.end()
    held._thread.join()
    last = server.get("beat/1").decode()
    while not watcher.lost():
        if what == "delete":
            server.delete_key("beat/1")
        else:
            server.set("beat/1", {"overwrite": "x", "put an old one back": first, "put the last one back": last}[what])
        assert SESSION.ledger.lost or not watcher.lost()  # which ends a run; a rank without beats for much longer is gone as well
        time.sleep(0.005)
    assert SESSION.ledger.lost == {"beat": 1}
    assert watcher.is_held(1)


@pytest.mark.usefixtures("beat_fast")
def test_a_rank_that_beats_again_answers_the_question_and_an_old_question_is_dropped(make, server, monkeypatch):
    monkeypatch.setattr(SESSION, "ledger", Ledger())
    watcher, second, held = make(0), make(2), make(1)
    for one in (watcher, second):
        one.watch([1])
    assert wait_until(lambda: watcher.alive() == second.alive() == [1])
    with monkeypatch.context() as stands_still:
        stands_still.setattr(held, "_beat", lambda _counter: None)
        last = server.get("beat/1").decode()
        assert wait_until(lambda: server.get("beat/1").decode() != last)
        question, asked_s = server.get("beat/1").decode(), time.monotonic()
    assert wait_until(lambda: watcher.all_seen_since(asked_s) and second.all_seen_since(asked_s))
    held.end()
    assert not SESSION.ledger.lost
    server.set("beat/1", question)
    assert wait_until(lambda: SESSION.ledger.dropped["beat"] > 0)
