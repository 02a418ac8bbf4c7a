"""Answers of NCCL's RAS service, which a supervisor asks about a stuck worker."""

import json
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest
from waiting import wait_until

from gpu_acceptance.supervisor.hang_diagnosis import RasQuery, describe, ras_address

ANSWER = b"SERVER PROTOCOL 2\nOK\nOK\n"


def rank(number: int, pid: int, async_error: int = 0, **counts: int) -> dict:
    status = {"init_state": 0, "async_error": async_error, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    counts = {"Broadcast": 0, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": 0} | counts
    place = {"rank": number, "host": "192.0.2.2", "pid": pid, "cuda_dev": number, "nvml_dev": number}
    return {**place, "status": status, "collective_counts": counts}


def answer(*communicators: dict) -> bytes:
    whole = {
        "nccl_version": "2.28.9",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2026-11-20 13:14:05",
        "communicators_count": len(communicators),
        "communicators": communicators,
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }
    return ANSWER + json.dumps(whole, indent=2).encode() + b"\n\n"


def communicator(ranks: list[dict], missing: list[dict] | None = None) -> dict:
    size = len(ranks) + len(missing or [])
    hashes = {"hash": "0x511b390e77d2fa5b", "secondary_hash": "0xc286ed15e5cc7808:0xb3d8043ac7f9825d"}
    counts = {"size": size, "ranks_count": len(ranks), "missing_ranks_count": len(missing or [])}
    return {**hashes, **counts, "ranks": ranks, "missing_ranks": missing or []}


def of(*counts: int) -> list[dict]:
    return [rank(number, 1000 + number, AllReduce=count, AllGather=2) for number, count in enumerate(counts)]


def test_an_answer_of_nccl_on_two_gpus_is_read():
    text = (Path(__file__).parents[2] / "reports" / "evidence" / "nccl-ras.txt").read_bytes()
    real = text[text.index(b"'TIMEOUT 3") : text.index(b"\nFR ")]
    assert describe(real, 2731) == "2 ranks: AllReduce 4 on rank 0, 3 on rank 1"


OTHER = communicator([rank(0, 7, AllReduce=9), rank(1, 8)])
SILENT = {"rank": 2, "host": "192.0.2.2", "pid": 1002}


@pytest.mark.parametrize(
    ("communicators", "told"),
    [
        ([communicator(of(4, 4, 3, 4))], "4 ranks: AllReduce 4 on ranks 0-1,3, 3 on rank 2"),
        ([communicator(of(4, 4))], "2 ranks: all have launched the same (AllGather 2, AllReduce 4)"),
        ([communicator([rank(0, 1000), rank(1, 1001)])], "2 ranks: no collectives"),
        (
            [communicator([rank(0, 1000, AllReduce=4), rank(1, 1001, async_error=6, AllReduce=4)], [SILENT])],
            "3 ranks: no answer from rank 2; NCCL error 6 on rank 1; all have launched the same (AllReduce 4)",
        ),
        ([OTHER, communicator(of(4, 3))], "2 ranks: AllReduce 4 on rank 0, 3 on rank 1"),
        ([OTHER], ""),
        (
            [communicator([rank(0, 1000, **{"\x1b[31m<b>": 1}), rank(1, 1001)])],
            r"2 ranks: all have launched the same (\x1b[31m<b> 1)",
        ),
    ],
    ids=["fewer", "the same", "none", "silence and errors first", "those of the process", "of another job", "escaped"],
)
def test_an_answer_tells_what_differs_between_the_ranks_of_the_process(communicators, told):
    assert describe(answer(*communicators), 1000) == told


def test_an_answer_of_nccl_2_28_9_without_a_comma_is_read():
    """It writes none before the `status` of a rank that is missing."""
    missing = {**SILENT, "cuda_dev": 1, "nvml_dev": 1, "status": {"unresponsive": True}}
    whole = answer(communicator([rank(0, 1000, AllReduce=4)], [missing]))
    broken = whole.replace(b'"nvml_dev": 1,', b'"nvml_dev": 1')
    assert broken != whole
    assert describe(broken, 1000) == "2 ranks: no answer from rank 2; all have launched the same (AllReduce 4)"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"ERROR: Unknown command\n",
        b"{",
        b"{}",
        b"[]",
        b'{"communicators": 3}',
        b'{"communicators": [{"size": 2}]}',
        b'{"communicators": [{"size": "many", "ranks": []}]}',
        b'{"a":' * 100_000,
        answer(communicator(of(4, 3)))[:-40],
        b"\xff{\xfe}",
        b'{"communicators": [{"size": 2, "ranks": [{"rank": -1, "pid": 1000}]}]}',
        b'{"a"' + b"\n" * 10_000_000,  # to look for a comma at each of them once more would take a day
        b'{"a"' + b" \n" * 5_000_000,
        b'{"a"\n"' + b"w" * 10_000_000,
    ],
    ids=lambda text: f"{text[:20]!r}",
)
def test_an_answer_that_is_none_tells_nothing(text):
    assert describe(text, 1000) == ""


@pytest.mark.parametrize(
    ("value", "address"),
    [
        (None, ("localhost", 28028)),
        ("127.0.0.1:4000", ("127.0.0.1", 4000)),
        ("[::1]:4000", ("::1", 4000)),
        ("localhost:0", None),
        ("localhost:http", None),
        ("some.host:4000", None),
        ("4000", None),
        ("localhost:4000:5", None),
        ("localhost:99999", None),
    ],
)
def test_where_the_service_is_asked(value, address):
    assert ras_address({} if value is None else {"NCCL_RAS_ADDR": value}) == address


@pytest.fixture
def serve():
    """Starts a service on 127.0.0.1 that reads a question, then does what it is given; returns its address and what it read."""
    servers = []

    def start(behave):
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        asked = []

        def once():
            peer, _ = server.accept()
            with closing(peer):
                asked.append(peer.recv(1000))
                behave(peer)

        threading.Thread(target=once, daemon=True).start()
        return server.getsockname()[:2], asked

    yield start
    for server in servers:
        server.close()


def test_the_service_is_asked_and_its_answer_read(serve):
    address, asked = serve(lambda peer: peer.sendall(answer(communicator(of(4, 3)))))
    query = RasQuery(address, 1000)
    assert wait_until(query.poll)
    assert query.text == "2 ranks: AllReduce 4 on rank 0, 3 on rank 1"
    assert asked == [b"CLIENT PROTOCOL 2\nTIMEOUT 2\nSET FORMAT json\nVERBOSE STATUS\n"]
    query.close()


def test_localhost_is_asked_without_a_name_server(serve, monkeypatch):
    (_, port), _ = serve(lambda peer: peer.sendall(answer(communicator(of(4, 3)))))
    look_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more: look_up({"127.0.0.1": host, "::1": host}[host], *more))
    query = RasQuery(("localhost", port), 1000)
    assert wait_until(query.poll)
    assert query.text == "2 ranks: AllReduce 4 on rank 0, 3 on rank 1"
    query.close()


def test_one_that_never_answers_is_only_polled(serve):
    done = threading.Event()
    address, _ = serve(lambda peer: done.wait(60))
    query = RasQuery(address, 1000)
    assert not wait_until(query.poll, 0.3)
    assert query.text == ""
    query.close()
    done.set()


def test_one_that_does_not_stop_is_listened_to_no_more(serve):
    def flood(peer):
        while True:
            try:
                peer.sendall(b"x" * 65536)
            except OSError:
                return

    address, _ = serve(flood)
    query = RasQuery(address, 1000)
    assert wait_until(query.poll)
    assert query.text == ""
    query.close()


def test_without_a_listener_it_is_done_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()[:2]
    query = RasQuery(address, 1000)
    assert query.poll()
    assert query.text == ""
    query.close()
