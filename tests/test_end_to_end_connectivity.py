"""Hosts that reach each other, and hosts with something wrong between them: the right pair or node is named, before any group forms."""

import re
from contextlib import contextmanager

import pytest
from hosts import ADDRESSES, connected, faketime, needs_hosts
from suite import shipped_suite

pytestmark = [pytest.mark.launcher, needs_hosts]

SITE = """
reason: a test
requires: [connectivity]
limits:
  connectivity.tcp.rate: {at_least: 0.1, unit: GB/s, scope: node, nodes: several, source: "policy: the contract says a gigabit"}
parameters: {connectivity.patience_s: 3, connectivity.num_bytes: 33554432}
"""


@contextmanager
def hosts_of(tmp_path, number, domain=""):
    with connected([shipped_suite(tmp_path / f"node-{node}", "connectivity") for node in range(number)], domain) as hosts:
        yield hosts


def end(tmp_path, hosts, of_one=None, **env):
    """Run one rank on each host; `of_one`: variables of one host alone."""
    overlay = tmp_path / "site.yaml"
    overlay.write_text(SITE)
    for host in hosts.hosts:
        hosts.start_one(
            host.node, script=("-m", "pytest", "acceptance/", f"--limits={overlay}"), env={**env, **(of_one or {}).get(host.node, {})}
        )
    return [host.wait() for host in hosts.hosts]


def figures(ended, row, rank):
    return [(one.metric.removeprefix("connectivity."), one.value) for one in ended.row(row).attempts[-1].ranks[rank].figures]


def details(ended, row, rank):
    return [one.detail for one in ended.row(row).attempts[-1].ranks[rank].figures if one.judged]


def test_two_hosts_that_reach_each_other_are_measured_both_ways(tmp_path):
    """By names as clouds give them, of 123 characters."""
    with hosts_of(tmp_path, 2, "d" * 60) as hosts:
        first, second = end(tmp_path, hosts)
    assert (first.returncode, second.returncode) == (0, 0), first.output
    assert details(first, "test_interfaces", 0) == ["NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME are not set"]
    for rank in (0, 1):
        assert figures(first, "test_interfaces", rank) == [("interfaces.missing", 0)]
        assert figures(first, "test_names", rank) == [("names.unresolved", 0), ("names.wrong", 0)]
        assert figures(first, "test_tcp", rank) == [("tcp.failed", 0)]
        ((_, apart_s),) = figures(first, "test_clock", rank)
        assert 0 < apart_s < 1
        assert figures(first, "test_mtu", rank) == [("mtu.lost", 0), ("mtu.passing", 1500)]
        ((_, latency_s),) = figures(first, "test_latency", rank)
        assert 0 < latency_s < 10
        ((_, rate),) = figures(first, "test_rate", rank)
        assert 0.1 <= rate < 1000


def test_one_of_two_switches_that_drops_large_packets_is_found_in_both_ways(tmp_path):
    """Connections come about, small messages pass, and a stream of full packets hangs; on the other network all is well."""
    with hosts_of(tmp_path, 2) as hosts:
        hosts.link(0, 1)
        hosts.narrow(1, 1400, number=1)
        hosts.shape(1, 1000, "eth1")  # cuts what it sends into packets, as a network card does
        first, _ = end(tmp_path, hosts, NCCL_SOCKET_IFNAME="^lo,docker")
    assert first.verdict_line.startswith("REJECTED: "), first.output
    outcomes = first.outcomes()
    passed = ("test_names", "test_interfaces", "test_tcp", "test_latency")
    assert [outcomes[name] for name in (*passed, "test_mtu")] == ["passed"] * 4 + ["failed"]
    assert details(first, "test_interfaces", 1) == ["NCCL_SOCKET_IFNAME=^lo,docker: eth0 eth1"]
    assert figures(first, "test_tcp", 0) == [("tcp.failed", 0), ("tcp.failed", 0)]
    sound, narrow = "control network eth0, to node 1 (node-1)", "NCCL_SOCKET_IFNAME eth1, to node 1 (node-1)"
    for row in ("test_mtu", "test_latency", "test_rate"):
        assert details(first, row, 0) == [sound, narrow]
    assert figures(first, "test_mtu", 0) == [("mtu.lost", 0), ("mtu.passing", 1500), ("mtu.lost", 100), ("mtu.passing", 1400)]
    lost = [value for name, value in figures(first, "test_mtu", 1) if name == "mtu.lost"]
    assert lost[0] == 0 < lost[1] <= 100  # the way back is the switch's own affair
    assert f"connectivity.mtu.lost = 100 bytes ({narrow}), need <= 0 bytes" in first.row("test_mtu").message
    assert "control network" not in first.row("test_mtu").message
    assert "connectivity.tcp.rate has no value: unreadable (timed out)" in first.row("test_rate").message


@pytest.mark.needs("iptables")
@pytest.mark.needs("libfaketime")
def test_a_filter_a_name_a_clock_and_a_slow_link_are_held_against_whom_they_are_of(tmp_path):
    """Three hosts: 1 drops what 0 asks; 0 does not know the name of 2, and to 1 it is that of 1; 2 is slow, an hour ahead, without eth1."""
    with hosts_of(tmp_path, 3) as hosts:
        hosts.link(0, 1)
        hosts.filter(1, 0, "30000:65535")
        hosts.knows(0, 2, ADDRESSES[2], "an-old-name")
        hosts.knows(1, 2, ADDRESSES[1], "node-2")
        hosts.shape(2, 100)
        first, *_ = end(tmp_path, hosts, {2: faketime("+1h")}, GLOO_SOCKET_IFNAME="eth0", NCCL_SOCKET_IFNAME="eth")
    assert first.verdict_line.startswith("REJECTED: "), first.output
    assert [figures(first, "test_interfaces", rank) for rank in range(3)] == [[("interfaces.missing", number)] for number in (0, 0, 1)]
    lacks = "NCCL_SOCKET_IFNAME=eth: eth0; no eth1 here that is up and has an address; on 2 of 3 nodes there is one; "
    names = "GLOO_SOCKET_IFNAME=eth0: eth0; interfaces of this node: lo eth0"
    (said,) = (line for line in first.row("test_interfaces").message.splitlines() if "need <= 0" in line)
    assert f"connectivity.interfaces.missing = 1 count ({lacks}{names}), need <= 0 count" in said
    assert "node-2" in said
    failed = [[value for _, value in figures(first, "test_tcp", rank)] for rank in range(3)]
    assert failed == [[1, 0], [1, 0], [0]]  # 2 is not on the second network
    ((_, sound_s),), ((_, also_sound_s),), ((_, apart_s),) = (figures(first, "test_clock", rank) for rank in range(3))
    assert max(sound_s, also_sound_s) < 1
    assert 3599 < apart_s < 3610
    (said,) = (line for line in first.row("test_clock").message.splitlines() if "need <= 1 s" in line)
    assert re.search(
        r"connectivity\.clock\.apart = 3[56]\d\d\S* s \(\+3[56]\d{5}\.\d+ ms, give or take .* ms, against the median of all nodes\), need",
        said,
    )
    way = "control network eth0; node 0 (node-0) to node 1 (node-1): timed out"
    assert f"connectivity.tcp.failed = 1 count ({way}), need <= 0 count" in first.row("test_tcp").message
    unresolved = [dict(figures(first, "test_names", rank))["names.unresolved"] for rank in range(3)]
    wrong = [dict(figures(first, "test_names", rank))["names.wrong"] for rank in range(3)]
    assert (unresolved, wrong) == ([1, 0, 1], [0, 1, 1])
    assert "node 0 (node-0) to node 2 (node-2): node-2: " in first.row("test_names").message
    assert f"node 1 (node-1) to node 2 (node-2): node-2 is {ADDRESSES[1]}" in first.row("test_names").message
    assert "connectivity.tcp.latency has no value: unreadable (timed out)" in first.row("test_latency").message
    slow = [(one.detail, one.value) for one in first.row("test_rate").attempts[-1].ranks[2].figures]
    assert sorted(detail for detail, rate in slow if rate < 0.1) == [
        f"control network eth0, to node {node} (node-{node})" for node in (0, 1)
    ]
    met = [(one.detail, one.value) for one in first.row("test_rate").attempts[-1].ranks[0].figures]
    assert [detail for detail, rate in met if rate and rate >= 0.1][-1:] == ["NCCL_SOCKET_IFNAME eth1, to node 1 (node-1)"]
