"""`gpu-acceptance meet`: nodes of a run find each other before torchrun starts, or each of them prints a reason in one line."""

import contextlib
import re
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hosts import NO_NAME
from ports import free_port
from suite import PYTHON
from waiting import wait_until

from gpu_acceptance.cli.verbs import main, make_parser
from gpu_acceptance.control import meeting
from gpu_acceptance.control.meeting import Hello, Place, Reply, meet
from gpu_acceptance.control.rank import JOIN_S

pytestmark = pytest.mark.slow

FOUND = (0, "")


@pytest.fixture
def port():
    return free_port()


def come(port, index, say=print, **changes):
    """Return the code and text that one of two nodes gets."""
    place = {"address": "127.0.0.1", "port": port, "num_nodes": 2, "node": index, "run": "a-run", "timeout_s": 30}
    answer = meet(Place(**{**place, "host": f"host-{index}", **changes}), say)
    return answer.exit_code, answer.text


@pytest.fixture
def nodes(port):
    """Return the answers of several nodes and the lines that they print: `nodes({}, {"num_nodes": 3})`."""

    def run(*changes):
        lines = []
        with ThreadPoolExecutor(len(changes)) as pool:
            several = [
                pool.submit(come, port, index, lines.append, **{"num_nodes": len(changes), **each}) for index, each in enumerate(changes)
            ]
            return [one.result() for one in several], lines

    return run


@pytest.fixture
def silent(port):
    """A listener on this port that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        yield listener


def test_all_nodes_find_each_other_and_the_port_is_free_again(nodes, port):
    assert nodes({}, {}, {}) == ([FOUND] * 3, [])
    with socket.socket() as next_one:
        next_one.bind(("", port))  # though it does not ask for SO_REUSEADDR
    assert nodes({"address": "localhost"}, {"address": "localhost"})[0] == [FOUND] * 2


def test_without_numbers_the_node_at_the_address_is_the_host(nodes):
    assert nodes({"node": None}, {"node": None}, {"node": None})[0] == [FOUND] * 3


def test_one_node_has_only_its_own_address_to_find(nodes):
    assert nodes({})[0] == [FOUND]


def test_a_host_that_is_there_counts_for_all(port):
    """The first node had no time left when the last one came; the host had."""
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(come, port, 1, num_nodes=3, timeout_s=6)
        host = pool.submit(come, port, 0, num_nodes=3)
        time.sleep(7)
        last = pool.submit(come, port, 2, num_nodes=3)
        assert [one.result() for one in (first, host, last)] == [FOUND] * 3


def test_a_node_that_does_not_come_is_named_to_all_that_did(nodes, port, monkeypatch):
    monkeypatch.setattr(meeting, "SAY_EVERY_S", 0.5)
    answers, lines = nodes({"num_nodes": 5, "timeout_s": 2}, {"num_nodes": 5}, {"num_nodes": 5})
    text = f"nodes 3-4 did not come to 127.0.0.1:{port} within 2 s; see what was said there"
    assert answers == [(6, text)] * 3
    assert re.fullmatch(r"waiting for nodes 3-4, \d s more at most", lines[-1])


def test_without_numbers_the_nodes_that_came_are_named(nodes, port):
    answers, _ = nodes({"node": None, "num_nodes": 3, "timeout_s": 2}, {"node": None, "num_nodes": 3, "timeout_s": 2})
    text = f"1 of 3 nodes (here: host-0, host-1) did not come to 127.0.0.1:{port} within 2 s; see what was said there"
    assert answers == [(6, text)] * 2


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([{}, {"num_nodes": 3}], "host-1 (node 1) is one of 3 nodes, and host-0 one of 2: start all with the same number of nodes"),
        (
            [{"num_nodes": 3}, {"num_nodes": 3}, {"num_nodes": 3, "node": 1}],
            "node 1 came 2 times, from host-1, host-2: each node a number of its own",
        ),
        ([{"node": None}, {}], "host-1 says node 1, and host-0 none: number all nodes from 0 up, or none of them"),
    ],
)
def test_nodes_that_contradict_each_other_end_the_meeting_at_once(nodes, changes, text):
    answers, _ = nodes(*changes)
    assert answers == [(4, text)] * len(changes)


def test_a_node_of_another_run_is_sent_away_and_the_run_goes_on(port):
    with ThreadPoolExecutor(2) as pool:
        host = pool.submit(come, port, 0)
        assert come(port, 1, run="other") == (4, f"host-1 (node 1) is of run other, and at 127.0.0.1:{port} run a-run meets")
        assert (come(port, 1), host.result()) == (FOUND, FOUND)


def test_a_port_that_something_else_has_is_one_line_on_each_node(nodes, port, silent):
    """Its holder takes connections and is silent: torch's own client would wait without an end."""
    answers, _ = nodes({}, {"timeout_s": 1})
    assert answers[0] == (
        4,
        f"port {port} of host-0 (node 0): Address already in use; name another one, the same on every node (MASTER_PORT, --rdzv-endpoint)",
    )
    silence = "what listens there does not answer as a node of this run does (an address of host-1 itself)"
    assert answers[1] == (6, f"node 0 does not answer at 127.0.0.1:{port} within 1 s: {silence}; this is node 1 (host-1)")


def test_without_a_number_the_taken_port_is_named_where_the_address_leads(nodes, port, silent):
    ((code, text),), _ = nodes({"node": None, "timeout_s": 6})
    assert code == 6
    assert text == (
        f"no node of this run answers at 127.0.0.1:{port} within 6 s: what listens there does not answer as a node of this run does "
        f"(an address of host-0 itself); port {port} of host-0: Address already in use; this is host-0"
    )


@pytest.mark.parametrize(("address", "why"), [("nowhere.invalid", NO_NAME), ("a..b", "label empty or too long")])
def test_a_host_name_that_does_not_resolve(nodes, port, address, why, monkeypatch):
    """The name server answers at once: a real one may take longer than the nodes wait."""
    look_up = socket.getaddrinfo

    def look_up_at_once(host, *arguments, **named):
        if host == "nowhere.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_at_once)
    monkeypatch.setattr(meeting, "SAY_EVERY_S", 0.5)
    answers, lines = nodes({"address": address, "timeout_s": 3}, {"address": address, "timeout_s": 3})
    assert [code for code, _ in answers] == [4, 6]
    where = f"{address}:{port}"
    assert re.fullmatch(
        rf"node 0 is host-0, and {where} does not lead there: .*{why}.*; name the host of node 0 \(MASTER_ADDR, --rdzv-endpoint\)",
        answers[0][1],
    )
    assert re.fullmatch(rf"node 0 does not answer at {where} within 3 s: .*{why}.*; this is node 1 \(host-1\)", answers[1][1])
    assert any(re.fullmatch(rf"node 0 does not answer yet at {where}: .*{why}.*; \d s more at most", line) for line in lines), lines


def test_a_client_of_another_protocol_is_no_node_of_the_run(nodes, port):
    """Garbage, a hello that cannot be, one that never ends, and one that hangs up."""
    begun = threading.Event()

    def disturb():
        for said in (
            b"GET / HTTP/1.1\r\n\r\n",
            b'{"run": "a-run", "num_nodes": 2, "node": -1, "host": "x", "token": "y"}\n',
            b"x" * 5000,
            b"",
        ):
            for _ in range(200):
                try:
                    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                        connection.sendall(said)
                        assert said == b"" or connection.recv(100) == b""
                    break
                except ConnectionRefusedError:
                    time.sleep(0.02)
                except ConnectionResetError:
                    break
        begun.set()

    stranger = threading.Thread(target=disturb)
    stranger.start()
    with ThreadPoolExecutor(1) as pool:
        host = pool.submit(come, port, 0)
        assert begun.wait(30)
        assert (come(port, 1), host.result()) == (FOUND, FOUND)
    stranger.join()


def test_all_nodes_may_come_though_a_process_may_open_fewer_files(port):
    few = f"ulimit -S -n 40 && exec {PYTHON} -m gpu_acceptance meet 127.0.0.1:{port} --nodes=80 --node=0 --run=a-run"
    with contextlib.ExitStack() as open_ones, subprocess.Popen(["sh", "-c", few]) as host:
        assert wait_until(lambda: is_there(port))
        others = [open_ones.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(79)]
        for node, other in enumerate(others, start=1):
            hello = Hello(run="a-run", num_nodes=80, node=node, host=f"host-{node}", token=str(node))
            other.sendall(hello.model_dump_json().encode() + b"\n")
        for other in others:
            with other.makefile() as lines:
                assert [Reply.model_validate_json(line).left_s is None for line in lines] == [False, True]
            other.close()
        assert host.wait(60) == 0


def is_there(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# --- the verb ------------------------------------------------------------------------------------------------------------------


def test_the_verb_prints_the_answer_and_returns_its_code(port, monkeypatch, capsys):
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the signals of this process are pytest's
    monkeypatch.setattr("socket.gethostname", lambda: "host-0")
    assert main(["meet", f"127.0.0.1:{port}", "--nodes=1", "--node=0", "--run=a-run"]) == 0
    assert main(["meet", f"[127.0.0.1]:{port}", "--nodes=2", "--timeout=1s"]) == 6
    text = f"1 of 2 nodes (here: host-0) did not come to 127.0.0.1:{port} within 1 s; see what was said there"
    assert capsys.readouterr() == ("", f"gpu-acceptance: {text}\n")


def test_a_node_beyond_the_last_one(capsys):
    assert main(["meet", "127.0.0.1:29500", "--nodes=2", "--node=2"]) == 4
    assert capsys.readouterr().err == "gpu-acceptance: --node=2 of --nodes=2: nodes are numbered from 0 to 1\n"


def test_it_waits_for_as_long_as_ranks_do():
    assert make_parser().parse_args(["meet", "127.0.0.1:29500", "--nodes=2"]).timeout == JOIN_S


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("node-01", "'node-01' is not allowed; allowed: HOST:PORT with a port from 1 to 65535"),
        ("node-01:0", "'node-01:0' is not allowed; allowed: HOST:PORT with a port from 1 to 65535"),
        ("a b:29500", "'a b:29500' is not allowed; allowed: HOST:PORT with a port from 1 to 65535"),
        ("--nodes=1:4", "'1:4' is not allowed; allowed: 1 to 99999"),
        ("--node=-1", "--node: '-1' is not allowed; allowed: 0 to 99999"),
        ("--run=a b", "--run: 'a b' is not allowed; allowed: letters, digits, '.', ':', '_' and '-', at most 200"),
        ("--timeout=soon", "--timeout: 'soon' is not allowed; allowed: more than 0 seconds, as 90, 90s, 15m or 2h"),
    ],
)
def test_an_invalid_option_is_a_usage_error(option, said, capsys):
    place = [option] if not option.startswith("-") else ["node-01:29500", option]
    with pytest.raises(SystemExit) as ended:
        main(["meet", "--nodes=2", *place])
    assert ended.value.code == 4
    assert said in capsys.readouterr().err
