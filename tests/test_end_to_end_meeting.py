"""`gpu-acceptance meet` on two hosts with addresses of their own: a host that is led elsewhere says where, and its own addresses."""

import re

import pytest
from hosts import ADDRESSES, PORT, connected, held_port, needs_hosts
from suite import PYTHON

pytestmark = [pytest.mark.launcher, needs_hosts]
NO_ROUTE = "(No route to host|Connection timed out)"  # the latter until no answer came for three seconds
MASTER = "name the host of node 0 (MASTER_ADDR, --rdzv-endpoint)"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with connected([tmp_path_factory.mktemp(f"node-{node}") for node in (0, 1)]) as hosts:
        yield hosts


def meet(hosts, where, *options):
    """Exit code and line of each host; the first option of a tuple is for the first of them."""
    for node in (0, 1):
        own = [option if isinstance(option, str) else option[node] for option in (where, *options)]
        hosts[node].start([PYTHON, "-m", "gpu_acceptance", "meet", f"{own[0]}:{PORT}", "--nodes=2", *own[1:]])
    ended = [hosts[node].wait() for node in (0, 1)]
    return [(one.returncode, one.output.removeprefix("gpu-acceptance: ").rstrip("\n")) for one in ended]


NUMBERS = ("--node=0", "--node=1")


@pytest.mark.parametrize(("where", "numbers"), [(ADDRESSES[0], [NUMBERS]), ("node-0", [])], ids=["numbered", "by name alone"])
def test_they_find_each_other(hosts, where, numbers):
    assert meet(hosts, where, *numbers) == [(0, "")] * 2


def test_an_address_of_no_host(hosts):
    """Each says it by itself."""
    first, second = meet(hosts, ADDRESSES[6], NUMBERS, "--timeout=4s")
    where = f"{re.escape(ADDRESSES[6])}:{PORT}"
    has = rf"\(node-0 has {re.escape(ADDRESSES[0])}\)"
    assert (first[0], second[0]) == (4, 6)
    assert re.fullmatch(rf"node 0 is node-0, and {where} does not lead there: {NO_ROUTE} {has}; {re.escape(MASTER)}", first[1])
    assert re.fullmatch(rf"node 0 does not answer at {where} within 4 s: {NO_ROUTE}; this is node 1 \(node-1\)", second[1])


def test_a_name_of_the_other_host(hosts):
    first, second = meet(hosts, "node-1", NUMBERS, "--timeout=2s")
    why = f"node-1:{PORT} does not lead there: Connection refused (node-1 is {ADDRESSES[1]}, node-0 has {ADDRESSES[0]}"
    assert (first[0], second[0]) == (4, 6)
    assert first[1].startswith(f"node 0 is node-0, and {why}")
    own = f"Connection refused (node-1 is {ADDRESSES[1]}, an address of node-1 itself); this is node 1 (node-1)"
    assert second[1] == f"node 0 does not answer at node-1:{PORT} within 2 s: {own}"


def test_an_address_that_is_wrong_on_one_host_alone(hosts):
    """The first one waits for a node that is there and went elsewhere."""
    first, second = meet(hosts, (ADDRESSES[0], ADDRESSES[6]), NUMBERS, "--timeout=4s")
    assert first == (6, f"node 1 did not come to {ADDRESSES[0]}:{PORT} within 4 s; see what was said there")
    assert second[0] == 6
    assert re.match(rf"node 0 does not answer at {re.escape(ADDRESSES[6])}:{PORT} within 4 s: {NO_ROUTE}; ", second[1])


def test_a_name_that_leads_each_host_to_itself(hosts):
    """Without numbers each of them is the host, and waits for the other."""
    text = f"1 of 2 nodes (here: node-{{}}) did not come to localhost:{PORT} within 2 s; see what was said there"
    assert meet(hosts, "localhost", "--timeout=2s") == [(6, text.format(node)) for node in (0, 1)]


def test_a_port_that_something_else_has(hosts):
    with held_port(hosts[0]):
        first, second = meet(hosts, ADDRESSES[0], NUMBERS, "--timeout=2s")
    other = "name another one, the same on every node (MASTER_PORT, --rdzv-endpoint)"
    assert first == (4, f"port {PORT} of node-0 (node 0): Address already in use; {other}")
    silence = "what listens there does not answer as a node of this run does"
    assert second == (6, f"node 0 does not answer at {ADDRESSES[0]}:{PORT} within 2 s: {silence}; this is node 1 (node-1)")
