"""Two ends of the control plane over one real store on 127.0.0.1."""

import json
import select
import subprocess
import sys
import time

import pytest
from torch.distributed import PrefixStore

from gpu_acceptance.control import messages, session
from gpu_acceptance.control.control import MAX_MESSAGE_BYTES, Control, ControlError
from gpu_acceptance.control.messages import Bye, Clock, Enter, Fence, Leave, Published, Resend, Stop, Vote
from gpu_acceptance.control.rank import TORCHRUN, Rank
from gpu_acceptance.control.secret import Secret
from gpu_acceptance.record.outcome import Outcome

pytestmark = pytest.mark.slow

HOST_A_STORE = """
import sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def place(rank, port, run_id):
    return Rank(rank=rank, local_rank=rank, world_size=2, local_world_size=2, store_port=port, run_id=run_id, launcher=TORCHRUN)


def secret_of(run_id):
    return Secret(run_id.encode(), is_of_run=True)


@pytest.fixture
def connect(server, request):
    """Return connect(rank, run_id): one end, closed when the test is over. Each test is a run of its own."""
    ends = []

    def connect(rank, run_id=request.node.name, secret=None):
        ends.append(Control(place(rank, server.port, run_id), secret or secret_of(run_id)))
        return ends[-1]

    yield connect
    for end in ends:
        end.close(timeout_s=5)


@pytest.fixture
def pair(connect):
    return [connect(0), connect(1)]


def announce(pair, seq):
    """Announce an attempt, as rank 0 does."""
    pair[0].collect(seq, all_answered=True)
    pair[0].broadcast(Fence(seq=seq, ok=True))
    assert [received(end) for end in pair] == [(0, Fence(seq=seq, ok=True))] * 2


def received(control):
    return control.incoming.get(timeout=30)


def speak_and_hear(first, second, told=Enter(seq=1, ok=True)):  # noqa: B008
    """Rank 1 sends and posts, and rank 0 broadcasts: all of it arrives."""
    second.send(0, Bye())
    second.post(vote(1))
    assert sorted([received(first), received(first)], key=str) == [(1, Bye()), (1, vote(1))]
    first.broadcast(told)
    assert received(second) == (0, told)


def dropped(control, kind="dropped"):
    """Return counts of messages, without those of broadcasts that rank 0 hears of itself."""
    counts = control.session.ledger.facts()[kind]
    return {channel: number for channel, number in counts.items() if channel != "cast" or control.place.rank}


def lost(control):
    return dropped(control, "lost")


def vote(seq, reason=""):
    return Vote(seq=seq, outcome=Outcome.PASSED, reason=reason)


def published(line=""):
    return Published(seq=1, problem=None, facts={}, line=line)


def test_a_message_arrives_with_its_sender(pair):
    first, second = pair
    for value in ("µ\nnode-00", 1, True, 0.5, float("inf")):
        message = messages.Gather(seq=1, key="a", value=value)
        second.send(0, message)
        told = received(first)
        assert (told, type(told[1].value)) == ((1, message), type(value))


def test_a_broadcast_reaches_every_rank_and_its_sender(pair):
    pair[0].broadcast(Stop(reason="SIGTERM"))
    assert [received(end) for end in pair] == [(0, Stop(reason="SIGTERM"))] * 2


def test_a_message_to_oneself_needs_no_store_and_the_wake_descriptor_tells_of_messages(pair):
    pair[0].send(0, Bye())
    assert pair[0].incoming.get_nowait() == (0, Bye())
    second = pair[1]
    assert select.select([second.wake_fd], [], [], 0)[0] == []
    pair[0].send(1, Bye())
    assert select.select([second.wake_fd], [], [], 30)[0] == [second.wake_fd]
    assert second.take() == [(0, Bye())]
    assert second.take() == []
    assert select.select([second.wake_fd], [], [], 0)[0] == []


def test_posts_come_to_rank_0_in_order(pair):
    first, second = pair
    announce(pair, 1)
    for number in range(20):
        second.post(vote(1, str(number)))
    assert [received(first) for _ in range(20)] == [(1, vote(1, str(number))) for number in range(20)]
    first.post(vote(2))
    assert first.incoming.get_nowait() == (0, vote(2))


def test_a_message_that_is_too_large_is_an_error_of_its_sender_and_a_shorter_one_follows(pair):
    with pytest.raises(ControlError, match=rf"a resend message of \d+ bytes; allowed: {MAX_MESSAGE_BYTES}"):
        pair[1].send(0, Resend(journal="x" * MAX_MESSAGE_BYTES))
    with pytest.raises(ControlError, match=rf"a published message of \d+ bytes; allowed: {MAX_MESSAGE_BYTES}"):
        pair[1].post(published("x" * MAX_MESSAGE_BYTES))
    announce(pair, 1)
    pair[1].post(published("short"))
    assert received(pair[0]) == (1, published("short"))


@pytest.mark.parametrize("line", ["{}", '"ü, \u2028 and \\n"', "x" * 100_000])
def test_a_line_comes_as_it_was(pair, line):
    announce(pair, 1)
    for control in pair:
        control.post(published(line))
        assert received(pair[0]) == (control.place.rank, published(line))


SEVERAL = Secret(b"of all runs of this cluster", is_of_run=False)


def test_a_second_run_of_the_same_name_hears_nothing_of_the_first(connect):
    """One torchrun may start the suite twice; broadcasts are kept to the end of a run."""
    for text in ("first", "second"):
        ends = [connect(rank, secret=SEVERAL) for rank in (0, 1)]
        ends[0].all_have_joined()
        casts = [messages.Welcome(run_id=text, deadline_s=1.0), messages.Final(exit_code=0, word=text, lines=(text,)), Leave()]
        for one in casts:
            ends[0].broadcast(one)
        assert [received(ends[1])[1] for _ in range(3)] == casts
        for end in ends:
            end.close(timeout_s=5)


def test_two_runs_on_one_store_never_meet(connect):
    one, other = connect(0, "one"), connect(0, "other")
    connect(1, "one").send(0, Bye())
    assert received(one) == (1, Bye())
    assert other.incoming.empty()


def test_closing_sends_what_is_queued_and_ends_all_threads(pair):
    """A thread that still waited in the store would abort the process if it woke while the interpreter shuts down."""
    first, second = pair
    for number in range(20):
        first.send(1, Clock(clock_s=float(number)))
    first.close(timeout_s=5)
    assert [received(second)[1].clock_s for _ in range(20)] == list(range(20))
    second.close(timeout_s=5)
    threads = [thread for end in pair for thread in (end._sender, *end._waiting)]
    assert len(threads) == 7  # rank 0 reads what is posted as well
    assert [thread.name for thread in threads if thread.is_alive()] == []
    assert first.incoming.empty()


def test_a_store_that_goes_away_is_reported():
    host = subprocess.Popen([sys.executable, "-c", HOST_A_STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    control = Control(place(0, int(host.stdout.readline()), "lost"), secret_of("lost"))
    host.kill()
    host.communicate()
    sender, message = received(control)
    assert (sender, type(message)) == (0, messages.StoreLost)
    assert message.reason
    control.close(timeout_s=5)


def test_a_world_of_one_hosts_its_own_store():
    control = Control(Rank(), secret_of("alone"))
    assert control.port > 0
    assert control.prefix == f"gpu-acceptance/none/{control.session.name}"
    control.broadcast(Leave())
    assert received(control) == (0, Leave())
    control.close(timeout_s=5)


def test_half_of_a_surrogate_pair_comes_as_its_escape(pair):
    """A file name may be no UTF-8."""
    first, second = pair
    second.send(0, Resend(journal="\udcff"))
    assert received(first) == (1, Resend(journal="\\udcff"))


RIGHT_CODE = "with the code of the channel"  # without a key over several nodes, any process can make it


@pytest.mark.parametrize(
    ("code", "garbage"),
    [
        *(("", text) for text in ("", "no pair", "x" * 100_000, "no more", "a 1 {}", "0" * 32 + '1 1 {"type": "bye"}')),
        *((RIGHT_CODE, f'{sender} 1 {{"type": "bye"}}') for sender in ('"1"', "-1", "1" * 5_000)),
    ],
)
def test_a_forged_message_is_dropped_and_counted_and_the_next_one_heard(code, garbage, server, pair):
    first, second = pair
    store = PrefixStore(first.prefix, server)
    announce(pair, 1)
    for channel, write in (("to/0", store.queue_push), ("box/1", store.append), ("cast/2", store.set)):
        write(channel, first.session._code(channel, garbage.encode()) + garbage if code else garbage)
    speak_and_hear(first, second)
    assert dropped(first) == ({"to": 1, "box": 1} if garbage else {"to": 1})
    assert dropped(second) == ({"cast": 1} if garbage else {})  # an empty place is a free one
    assert not first.session.ledger.lost


ODD = [
    "no JSON",
    "{}",
    "[" * 9_000,
    '{"type": "moon"}',
    '{"type": "vote", "seq": 1}',
    '{"type": "vote", "seq": "1", "outcome": "passed"}',
    '{"type": "vote", "seq": 1, "outcome": "fine"}',
    '{"type": "bye", "more": 1}',
    '{"type": "hello", "identity": {}, "refusal": null, "nonce": ""}',
    '{"type": "final", "exit_code": 0, "word": "ACCEPTED", "lines": "ACCEPTED"}',
    '{"type": "store_lost", "reason": "a lie"}',  # only a rank's own end may send it
    '{"type": "clock", "clock_s": NaN}',
    '{"type": "refused", "message": "", "exit_code": 0}',
    json.dumps({"type": "stop_request", "reason": "x" * 20_000}),
]
OF_ANOTHER_PLACE = {
    "to/0": ('{"type": "vote", "seq": 1, "outcome": "passed"}', '{"type": "stop", "reason": "SIGTERM"}', '{"type": "leave"}'),
    "box/1": ('{"type": "bye"}', '{"type": "stop_request", "reason": "SIGTERM"}', '{"type": "leave"}'),
    "cast/2": ('{"type": "vote", "seq": 1, "outcome": "passed"}', '{"type": "bye"}', '{"type": "ask_clock"}'),
}


@pytest.mark.parametrize("text", ODD)
def test_an_invalid_message_is_dropped_and_counts_as_lost(text, server, pair):
    """Its code is right, and it has an effect on nothing: the rank that it names was not heard."""
    first, second = pair
    store = PrefixStore(first.prefix, server)
    announce(pair, 1)
    store.queue_push("to/0", first.session.sign("to/0", 1, 1, text))
    store.append("box/1", first.session.sign("box/1", 1, 1, text))
    store.set("cast/2", first.session.sign("cast/2", 0, 2, text))
    second._num_sent.update({"to/0": 1, "box/1": 1})
    first._broadcast._num_sent = 2
    speak_and_hear(first, second, Leave())  # after a loss only the end of the run is heard
    assert dropped(first) == lost(first) == {"to": 1, "box": 1}
    assert dropped(second) == lost(second) == {"cast": 1}


@pytest.mark.parametrize(("channel", "text"), [(channel, text) for channel, texts in OF_ANOTHER_PLACE.items() for text in texts])
def test_each_message_is_accepted_on_its_own_channel_alone(channel, text, server, pair):
    first, second = pair
    store = PrefixStore(first.prefix, server)
    announce(pair, 1)
    write = {"to/0": store.queue_push, "box/1": store.append, "cast/2": store.set}[channel]
    write(channel, first.session.sign(channel, 0 if channel == "cast/2" else 1, 9, text))
    speak_and_hear(first, second)
    assert dropped(second if channel == "cast/2" else first) == {channel.partition("/")[0]: 1}


def test_a_message_to_oneself_is_not_accepted_from_the_store(server, pair):
    """Number 1 of rank 0 is free in its own queue: a process that makes codes could lead the run by it."""
    first, second = pair
    PrefixStore(first.prefix, server).queue_push("to/0", first.session.sign("to/0", 0, 1, '{"type": "bye"}'))
    second.send(0, Bye())
    assert received(first) == (1, Bye())
    assert first.session.ledger.dropped == {"to": 1}


def test_a_message_that_is_repeated_is_heard_once(server, pair):
    first, second = pair
    store = PrefixStore(first.prefix, server)
    second.send(0, messages.AskClock())
    assert received(first) == (1, messages.AskClock())
    repeated = second.session.sign("to/0", 1, 1, '{"type": "ask_clock"}')
    store.queue_push("to/0", repeated)
    store.queue_push("to/0", second.session.sign("to/1", 1, 2, '{"type": "ask_clock"}'))
    second.send(0, Bye())
    assert received(first) == (1, Bye())
    assert first.session.ledger.dropped == {"to": 2}


def test_a_message_that_a_stranger_took_away_is_missed_by_its_number(server, pair):
    first, second = pair
    store = PrefixStore(first.prefix, server)
    announce(pair, 1)
    store.set("box/1", "")
    first._reader._read = 0
    second._num_sent["box/1"] += 1  # of a message that is never sent
    second.post(vote(1))
    assert received(first) == (1, vote(1))
    assert first.session.ledger.lost == {"box": 1}


@pytest.mark.parametrize("channel", ["to", "cast"])
def test_a_message_behind_a_flood_is_late_and_not_lost(channel, server, pair, monkeypatch):
    """The flood may take any time. A message that is not there once all is read is lost."""
    first, second = pair
    reader, writer = (first, second) if channel == "to" else (second, first)
    store = PrefixStore(first.prefix, server)
    announce(pair, 1)
    told = {writer.place.rank: {"sent": {"to/0": 1} if channel == "to" else {"cast": 2}}}
    monkeypatch.setattr(session, "LATE_S", 0.0)
    monkeypatch.setattr(session.ReadUntil, "_QUIET_S", 3600.0)
    for number in range(300):
        if channel == "to":
            store.queue_push("to/0", "garbage")
        else:
            store.set(f"cast/{number + 2}", "garbage")
        reader.find_late(told)
    assert not reader.session.ledger.lost
    monkeypatch.setattr(session.ReadUntil, "_QUIET_S", 0.0)
    reader.find_late(told)
    time.sleep(0.01)
    reader.find_late(told)
    assert reader.session.ledger.lost == {channel: 1}


def test_the_keys_of_a_generation_are_deleted_and_no_others(server, connect):
    end = connect(1)
    own = PrefixStore(end.prefix, server)
    for key in ("generation-1/0//cpu//0/0", "generation-1/0//cpu//0/1", "generation-10/0//cpu//0/0", "beat/0"):
        own.set(key, "x")
    end.forget(1)
    end.close(timeout_s=5)
    assert sorted(key for key in own.list_keys() if not key.startswith(("cast/", "relay/"))) == ["beat/0", "generation-10/0//cpu//0/0"]
