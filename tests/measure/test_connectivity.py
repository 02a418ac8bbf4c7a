"""Two ends on one machine: what they measure of each other, whom they do not answer, and what a failure is called."""

import errno
import socket
import threading

import pytest

from gpu_acceptance.measure import connectivity
from gpu_acceptance.measure.connectivity import Server, receive

pytestmark = pytest.mark.slow

TOKEN = b"0123456789abcdef" * 2
HERE, THERE = "127.0.0.2", "127.0.0.3"


@pytest.fixture
def peer():
    with Server(THERE, TOKEN) as server:
        yield connectivity.Peer(THERE, server.tcp_port, server.udp_port, TOKEN, HERE)


def of(peer, **changed):
    return connectivity.Peer(**{**vars(peer), **changed})


def test_a_node_that_answers_is_reached_and_measured(peer):
    assert connectivity.failures({4: peer}, 5) == {}
    assert 0 < connectivity.round_trip_s(peer, 20, 5) < 5
    asked_s, heard_s, answer_s = connectivity.read_clock(peer, 5)
    assert asked_s <= answer_s <= heard_s < asked_s + 5
    assert 0 < connectivity.rate_gb_per_s(peer, 1 << 22, 5) < 1000
    assert connectivity.passing_bytes(peer, 65_536) == connectivity.promised(65_536) == 65_535
    assert connectivity.passing_bytes(peer, 1500) == 1500


EXACT = (0.0, 0.0)


@pytest.mark.parametrize(
    ("own", "others", "apart_s", "text"),
    [
        (EXACT, [(3599.0, 3601.0)], 3601.0, "-3600000.000 ms, give or take 1000.000 ms, against the other node"),
        ((3599.0, 3601.0), [EXACT], 3601.0, "+3600000.000 ms, give or take 1000.000 ms, against the other node"),
        (EXACT, [(3599.0, 3601.0), EXACT], 1.0, "+0.000 ms, give or take 1000.000 ms, against the median of all nodes"),
        ((3599.0, 3601.0), [EXACT, EXACT], 3601.0, "+3600000.000 ms, give or take 1000.000 ms, against the median of all nodes"),
        ((-0.75, -0.25), [EXACT, (-0.25, 0.25)], 1.0, "-500.000 ms, give or take 500.000 ms, against the median of all nodes"),
    ],
)
def test_of_more_than_two_nodes_the_one_whose_clock_is_off_is_held_responsible(own, others, apart_s, text):
    assert connectivity.furthest_s(own, others) == (apart_s, text)


def test_it_answers_on_ipv6_too():
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        server = Server("::1", TOKEN)
    except OSError as error:
        pytest.skip(f"no IPv6: {error}")
    with server:
        peer = connectivity.Peer("::1", server.tcp_port, server.udp_port, TOKEN, "::1")
        assert connectivity.failures({0: peer}, 5) == {}
        assert connectivity.passing_bytes(peer, 1500) == 1500


def test_who_does_not_know_the_token_gets_nothing(peer):
    stranger = of(peer, token=b"x" * len(TOKEN))
    assert connectivity.failures({0: stranger}, 5)[0] in ("closed without an answer", "reset")
    assert connectivity.passing_bytes(stranger, 1500) is None


def test_what_failed_is_told_apart(peer):
    with socket.create_server((THERE, 0)) as deaf:  # the kernel takes the connection, and nobody answers
        silent = of(peer, tcp_port=deaf.getsockname()[1])
        with socket.socket() as closed:
            closed.bind((THERE, 0))
            refused = of(peer, tcp_port=closed.getsockname()[1])
            assert connectivity.failures({0: peer, 1: silent, 2: refused}, 0.3) == {1: "timed out", 2: "refused"}


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError("timed out"), "timed out"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "host unreachable"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "network unreachable"),
        (OSError(errno.ECONNRESET, "x"), "reset"),
        (OSError(errno.EPERM, "x"), "not permitted here"),
        (OSError(errno.ENETDOWN, "Network is down"), "Network is down"),
        (ConnectionError("8 bytes were sent, 7 came"), "8 bytes were sent, 7 came"),
    ],
)
def test_a_failure_has_a_word(error, text):
    assert connectivity.reason_of(error) == text


def answering(work):
    """The port of a server that does something else than an server with its one connection."""
    server = socket.create_server((THERE, 0))

    def serve():
        with server, server.accept()[0] as connection:
            work(connection)

    threading.Thread(target=serve, daemon=True).start()
    return server.getsockname()[1]


def lies(connection):
    while connection.recv(1 << 16):
        pass
    connection.sendall((7).to_bytes(8, "big"))


def leaves(connection):
    receive(connection, len(TOKEN) + 1 + 8)


def stutters(connection):
    connection.sendall(receive(connection, len(TOKEN) + 1 + 8)[:3])


@pytest.mark.parametrize(
    ("work", "measure", "text"),
    [
        (lies, lambda peer: connectivity.rate_gb_per_s(peer, 1 << 20, 5), "1048576 bytes were sent, 7 came"),
        (leaves, lambda peer: connectivity.round_trip_s(peer, 1, 5), "closed without an answer"),
        (stutters, lambda peer: connectivity.round_trip_s(peer, 1, 5), "the stream ended after 3 of 8 bytes"),
    ],
)
def test_bytes_that_do_not_come_are_an_error(work, measure, text, peer):
    with pytest.raises(ConnectionError, match=f"^{text}$"):
        measure(of(peer, tcp_port=answering(work)))


def test_the_largest_packet_is_found_between_what_passes_and_what_is_claimed(peer, monkeypatch):
    monkeypatch.setattr(connectivity, "_is_acknowledged", lambda probe, token, num_bytes: num_bytes + 28 <= 1437)
    assert connectivity.passing_bytes(peer, 9000) == 1437


def test_names_are_found_or_told_why_not():
    assert connectivity.plain("FE80:0::1%eth0") == "fe80::1"  # a zone is no part of an address
    found = connectivity.resolve(["localhost", "no-such-host.invalid", "a" * 64, "localhost"], 20)
    assert "127.0.0.1" in found["localhost"] or "::1" in found["localhost"]
    assert isinstance(found["no-such-host.invalid"], str)
    assert isinstance(found["a" * 64], str)


def test_a_name_server_that_is_silent_is_not_waited_for(monkeypatch):
    asked = threading.Event()
    monkeypatch.setattr(connectivity, "_addresses_of", lambda name: asked.wait(60) and "late")
    assert connectivity.resolve(["node-1"], 0.1) == {"node-1": "no answer within 0.1 s"}
    asked.set()


def test_a_failure_is_held_against_the_end_that_fails_most():
    to_and_from_2 = [(0, 2), (1, 2), (3, 2), (2, 0)]
    assert connectivity.attribution(to_and_from_2) == {2: sorted(to_and_from_2)}
    assert connectivity.attribution([(0, 1)]) == {0: [(0, 1)], 1: [(0, 1)]}
    assert connectivity.attribution([*to_and_from_2, (0, 1)]) == {2: sorted(to_and_from_2), 0: [(0, 1)]}
    assert connectivity.attribution([]) == {}


def test_interfaces_of_one_name_are_one_network_and_so_is_the_only_one_of_each_node_whatever_its_name():
    first, second = connectivity.pair_up(
        "NAMED", [{"eth0": "192.0.2.1", "eth1": "198.51.100.1"}, {"eth1": "198.51.100.2", "eth0": "192.0.2.2"}]
    )
    assert (first.name(0), first.addresses, first.members) == ("NAMED eth0", ("192.0.2.1", "192.0.2.2"), (0, 1))
    assert second.way(0, 1, "node 1 (b)") == "NAMED eth1, to node 1 (b)"
    assert second.addresses == ("198.51.100.1", "198.51.100.2")
    (network,) = connectivity.pair_up("NAMED", [{"ens1": "192.0.2.1"}, {"eth0": "192.0.2.2"}])
    assert network.way(0, 1, "node 1 (b)") == "NAMED ens1, to eth0 of node 1 (b)"
    assert (network.members, network.problem_of(0)) == ((0, 1), "")


@pytest.mark.parametrize(
    ("addresses", "blamed"),
    [
        (("192.0.2.1", "192.0.2.2", "192.0.2.3"), {}),
        (("192.0.2.1", "", "192.0.2.3"), {1: "no eth1 here that is up and has an address; on 2 of 3 nodes there is one"}),
        (("192.0.2.1", "", "", ""), {0: "eth1 is here, and on 3 of 4 nodes it is not"}),
        (("192.0.2.1", ""), {1: "no eth1 here that is up and has an address; on 1 of 2 nodes there is one"}),
        (("", ""), dict.fromkeys((0, 1), "no eth1 here that is up and has an address; on 0 of 2 nodes there is one")),
    ],
)
def test_an_interface_that_is_not_on_all_nodes_is_held_against_the_fewer(addresses, blamed):
    networks = connectivity.pair_up("NAMED", [{"eth0": "203.0.113.1", "eth1": address} for address in addresses])
    found = {node: "".join(network.problem_of(node) for network in networks) for node in range(len(addresses))}
    assert found == {node: blamed.get(node, "") for node in found}


def test_a_network_that_two_variables_name_is_one_and_one_of_a_single_node_is_none():
    same = [connectivity.Network(name, ("eth0", "eth0"), ("192.0.2.1", "192.0.2.2")) for name in ("first", "second")]
    alone = connectivity.Network("first", ("eth1", "eth1"), ("198.51.100.1", ""))
    assert connectivity.distinct([*same, alone]) == same[:1]
