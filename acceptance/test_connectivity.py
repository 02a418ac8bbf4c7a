"""Every node finds and reaches every other node, and exchanges full packets with it at the rate of a control network.

On several nodes: names, connections both ways, clocks, rate and latency. One rank of each node talks to those of the other nodes.
It needs no process group: it runs before NCCL is asked.
"""

import pytest

from gpu_acceptance.inventory.answer import Missing
from gpu_acceptance.measure import connectivity

pytestmark = [pytest.mark.no_group, pytest.mark.min_nodes(2), pytest.mark.deadline(900)]


def test_names(resolve_names, nodes, check):
    """Each node resolves the name of every other node to an address of that node. torchrun gives these names to others."""
    unresolved, wrong = resolve_names()
    if nodes.speaks:
        check("connectivity.names.unresolved", unresolved.number, "count", detail=unresolved.detail)
        check("connectivity.names.wrong", wrong.number, "count", detail=wrong.detail)


def test_interfaces(nodes, check):
    """Interfaces that NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name on one node exist on all."""
    if nodes.speaks:
        check("connectivity.interfaces.missing", nodes.missing.number, "count", detail=nodes.missing.detail)


def test_tcp(mesh, nodes, check):
    """Each node connects to every other, on ports that the kernel chose. A failure counts against the node that fails most often."""
    for found in mesh.connect():
        if nodes.speaks:
            check("connectivity.tcp.failed", found.number, "count", detail=found.detail)


def test_clock(mesh, nodes, check):
    """The clocks of all nodes agree, so that times in the logs of several nodes can be compared."""
    apart, detail = mesh.clock()
    if nodes.speaks:
        check("connectivity.clock.apart", apart, "s", detail=detail)


def test_mtu(mesh, passing_mtu, check, record):
    """Packets of the interface's MTU pass between the nodes of each pair."""
    for pair, found in mesh.in_rounds(passing_mtu):
        passing, lost = (found, found) if isinstance(found, Missing) else found
        check("connectivity.mtu.lost", lost, "bytes", detail=pair)
        record("connectivity.mtu.passing", passing, "bytes")


def test_latency(mesh, parameter, check):
    """8 bytes go there and back over TCP in time, in pairs of nodes."""
    number, patience_s = parameter("connectivity.num_round_trips"), parameter("connectivity.patience_s")
    for pair, seconds in mesh.in_rounds(lambda peer: connectivity.round_trip_s(peer, number, patience_s)):
        check("connectivity.tcp.latency", seconds, "s", detail=pair)


def test_rate(mesh, parameter, check):
    """Both nodes of a pair send to each other at once, over one TCP connection each way."""
    num_bytes, patience_s = parameter("connectivity.num_bytes"), parameter("connectivity.patience_s")
    for pair, rate in mesh.in_rounds(lambda peer: connectivity.rate_gb_per_s(peer, num_bytes, patience_s)):
        check("connectivity.tcp.rate", rate, "GB/s", detail=pair)
