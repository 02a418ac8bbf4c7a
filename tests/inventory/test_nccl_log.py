"""NCCL's own log: choices, connections and warnings, from logs of real runs and lines of its source."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.nccl_log import ALGORITHMS, HARMLESS_WARNINGS, Choice, Connection, Passage, parse, unexpected_warnings

LOGS = Path(__file__).parent / "nccl_logs"
PIDS = {"plain": 922, "shm": 983, "socket": 1043, "tree": 1107}
GiB = 2**30


def real(name):
    return parse((LOGS / f"{name}.txt").read_text(encoding="utf-8"), PIDS[name])


def log(*lines, pid=1):
    return parse("\n".join(f"node-01:1:7 [0] NCCL INFO {line}" for line in lines), pid)


def transport(via, *before):
    """Transport of one connection, after lines about networks."""
    (connection,) = log(*before, f"Channel 00/0 : 0[0] -> 8[0] [send] via {via}").connections
    return connection.transport, connection.gpudirect


@pytest.mark.parametrize(("name", "num_channels", "small"), [("plain", 24, "RING"), ("shm", 4, "RING"), ("socket", 2, "TREE")])
def test_choices_in_real_logs(name, num_channels, small):
    found = real(name)
    assert found.choices[-5:-2] == (
        Choice("AllReduce", GiB, "RING", "SIMPLE", num_channels),
        Choice("AllGather", GiB // 4, "RING", "SIMPLE", num_channels),  # one rank's part
        Choice("ReduceScatter", GiB // 4, "RING", "SIMPLE", num_channels),
    )
    assert found.choices[0] == Choice("AllReduce", 32, small, "LL", 1)
    assert (found.network, found.num_channels, found.num_nvls_channels) == ("Socket", num_channels, 0)
    assert real("tree").choices == (Choice("AllReduce", 32, "TREE", "LL", 1),)  # a forced algorithm


@pytest.mark.parametrize(("name", "transport"), [("plain", "P2P"), ("shm", "SHM"), ("socket", "Socket"), ("tree", "P2P")])
def test_transports_in_real_logs(name, transport):
    connections = real(name).connections
    assert {connection.transport for connection in connections} == {transport}
    assert {one.target for one in connections if one.source == 0} == ({1} if name == "tree" else {1, 2, 3})
    assert not any(connection.gpudirect for connection in connections)


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_of_nccl(algorithm):
    line = f"AllReduce: 4294967296 Bytes -> Algo {algorithm} proto SIMPLE channel{{Lo..Hi}}={{0..15}}"
    assert log(line, f"{line} cgaClusterSize 4").choices == (Choice("AllReduce", 4 * GiB, algorithm, "SIMPLE", 16),) * 2


def test_unknown_names_and_older_formats():
    (choice,) = log("AllReduce: 8 Bytes -> Algo WARP proto HYPER channel{Lo..Hi}={0..0}").choices
    assert (choice.algorithm, choice.protocol) == ("unknown (WARP)", "unknown (HYPER)")
    assert log("1073741824 Bytes -> Algo 1 proto 2 time 3.14", "AllReduce: 8 Bytes -> Algo 1").choices == ()


@pytest.mark.parametrize(
    ("via", "expected"),
    [
        *(
            (via, "P2P")  # every way to the memory of a peer
            for via in (
                "P2P/CUMEM",
                "P2P/CUMEM/read",
                "P2P/IPC",
                "P2P/IPC/CE",
                "P2P/direct pointer",
                "P2P/direct pointer/read",
                "P2P/MNNVL",
            )
        ),
        ("P2P/indirect/3[3]", "P2P/indirect"),  # through the memory of a third GPU
        *((via, "SHM") for via in ("SHM/direct/direct", "SHM/CE/direct", "SHM/CE/CE")),
        *(
            (via, f"unknown ({via})")
            for via in ("NET/UCX/0/GDRDMA", "NET/gIB/0", "P2P", "P2P/NEW", "SHM/new/direct", "WARP/0", "NET/IB/0/GDRDMA")
        ),
    ],
)
def test_a_transport(via, expected):
    assert transport(via) == (expected, via.endswith("GDRDMA"))


USING = "NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/RoCE [2]mlx5_2:1/IB [RO]; OOB eth0:192.0.2.2<0>"


@pytest.mark.parametrize(
    ("via", "expected"),
    [
        ("NET/IB/0/GDRDMA", ("IB", True)),
        ("NET/IB/2", ("IB", False)),
        ("NET/IB/1/GDRDMA/Shared", ("RoCE", True)),
        ("NET/IB/0(3)/GDRDMA(PCI)", ("IB", True)),  # through the card of another GPU
        ("NET/IBext_v8/1/GDRDMA", ("RoCE", True)),
        ("NET/IB/3/GDRDMA", ("unknown (NET/IB/3/GDRDMA)", True)),  # a device that NCCL did not name
        ("NET/Socket/0", ("Socket", False)),
        ("NET/Socket/0/Shared", ("Socket", False)),
    ],
)
def test_infiniband_and_roce_by_the_link_of_the_device(via, expected):
    assert transport(via, USING) == expected


def test_merged_devices_have_numbers_of_their_own():
    both = "NET/IB : Made virtual device [0] name=mlx5_0+mlx5_2 speed=800000 ndevs=2"
    mixed = "NET/IB : Made virtual device [1] name=mlx5_0+mlx5_1 speed=800000 ndevs=2"
    single = "NET/IB : Made virtual device [2] name=mlx5_1 speed=400000 ndevs=1"
    assert transport("NET/IB/0/GDRDMA", USING, both) == ("IB", True)
    assert transport("NET/IB/1/GDRDMA", USING, mixed) == ("unknown (NET/IB/1/GDRDMA)", True)
    assert transport("NET/IB/2/GDRDMA", USING, single) == ("RoCE", True)


@pytest.mark.parametrize(
    ("vias", "devices"),
    [
        (["NET/IB/1/GDRDMA", "NET/IB/2(5)", "NET/IB/1"], ("mlx5_1", "mlx5_2")),
        (["NET/IBext_v8/0/GDRDMA"], ("mlx5_0",)),
        (["NET/IB/7"], ("unknown (NET/IB/7)",)),
        (["NET/AWS Libfabric/1/GDRDMA"], ("unknown (NET/AWS Libfabric/1/GDRDMA)",)),
        (["NET/Socket/0", "P2P/CUMEM", "SHM/direct/direct"], ()),
    ],
)
def test_through_which_devices(vias, devices):
    found = log(USING, *(f"Channel 00/1 : 0[0] -> 1[1] [send] via {via}" for via in vias))
    assert found.passages == tuple(Passage(0, 1, device) for device in devices)
    assert log(USING, *(f"Channel 00/0 : 0[0] -> 1[1] [send] via {via}" for via in vias)).passages == ()  # of a collective


def test_merged_devices_are_each_of_their_parts():
    both = "NET/IB : Made virtual device [0] name=mlx5_0+mlx5_2 speed=800000 ndevs=2"
    found = log(USING, both, "Channel 00/1 : 0[0] -> 1[1] via NET/IB/0/GDRDMA")
    assert found.passages == (Passage(0, 1, "mlx5_0"), Passage(0, 1, "mlx5_2"))


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        ("NET/OFI Selected Provider is efa (found 4 nics)", "EFA"),
        ("NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)", "EFA"),
        ("NET/OFI Selected provider is sockets", "unknown (NET/AWS Libfabric/1/GDRDMA)"),
        ("NET/OFI Initializing aws-ofi-nccl 1.16.2", "unknown (NET/AWS Libfabric/1/GDRDMA)"),
    ],
)
def test_efa_by_the_provider_of_libfabric(provider, expected):
    assert transport("NET/AWS Libfabric/1/GDRDMA", provider) == (expected, True)


def test_switches_that_reduce():
    found = log("CollNet 00/0 : 6 [receive] via COLLNET/SHARP/1/GDRDMA", "CollNet 00/0 : 6 [send] via COLLNET/SHARP/1/GDRDMA")
    assert found.reductions == (Connection(6, 6, "SHARP", gpudirect=True),)
    assert log("CollNet 00 : 0 [send] via COLLNET/OTHER/0").reductions == (Connection(0, 0, "unknown (COLLNET/OTHER)", gpudirect=False),)


def test_lines_of_another_process_do_not_count():
    found = log("Using network Socket", "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", pid=2)
    assert (found.choices, found.connections) == ((), ())
    assert found.network == Missing(Why.NOT_THERE, "NCCL names no network")


def test_a_line_with_a_time_in_front():
    line = "[2026-11-22 13:00:18] node-01:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
    assert parse(line, 1).connections == (Connection(0, 1, "SHM", gpudirect=False),)


@given(st.text())
def test_any_text_is_read(text):
    parse(text, 1)
    found = log(f"Channel 00/0 : 0[0] -> 1[1] via {text}")
    assert all(len(connection.transport) < 80 for connection in found.connections)


READS_ITS_OWN = """
import ctypes, os
from gpu_acceptance.inventory import nccl_log
from gpu_acceptance.worker.worker import write_whole_lines
write_whole_lines()
line = f"n:{os.getpid()}:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
ctypes.CDLL(None).puts(line.encode())
found = nccl_log.read_own()
os.write(2, repr(getattr(found, "connections", found)).encode())
"""


def said_of_its_own_log(**stdout):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    return subprocess.run(
        [sys.executable, "-c", READS_ITS_OWN], env=environment, stderr=subprocess.PIPE, text=True, check=True, **stdout
    ).stderr


def test_a_process_reads_only_its_own_lines(tmp_path):
    log = tmp_path / "rank-00000.log"
    log.write_text("n:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via P2P/IPC\n", encoding="utf-8")
    with log.open("a") as file:
        assert said_of_its_own_log(stdout=file) == "(Connection(source=0, target=1, transport='SHM', gpudirect=False),)"


def test_stdout_that_is_no_file_cannot_be_read_back():
    assert "stdout is no file, so that NCCL's log cannot be read back" in said_of_its_own_log(stdout=subprocess.DEVNULL)


CONFIG = "libibverbs: Warning: couldn't open config directory '/etc/libibverbs.d'."


def test_a_real_warning_is_named_from_its_place_on():
    found = unexpected_warnings((LOGS / "tree.txt").read_text(encoding="utf-8").splitlines())
    text = "NCCL WARN Error : no algorithm/protocol available for function AllGather with datatype ncclInt8. NCCL_ALGO was set to TREE."
    assert found == {"nccl": [f"enqueue.cc:1859 {text}"], "libibverbs": []}


@pytest.mark.parametrize("name", ["plain", "shm", "socket"])
def test_real_logs_without_a_warning(name):
    assert unexpected_warnings((LOGS / f"{name}.txt").read_text(encoding="utf-8").splitlines()) == {"nccl": [], "libibverbs": []}


DRIVER = "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0"


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ("n:1:2 [0] NCCL WARN Cuda failure 999", "nccl", "NCCL WARN Cuda failure 999"),
        ("[x] n:1:2 [-1] net.cc:7 (ncclNetInit) NCCL WARN no", "nccl", "net.cc:7 (ncclNetInit) NCCL WARN no"),
        (DRIVER, "libibverbs", DRIVER),
        (f"{CONFIG} and more", "libibverbs", f"{CONFIG} and more"),  # a harmless warning is known as a whole
        *(
            (line, "", "")
            for line in (CONFIG, "NCCL WARN", "invalid usage (run with NCCL_DEBUG=WARN for details)", "n:1:2 [0] NCCL INFO WARN")
        ),
    ],
)
def test_a_line_and_its_warning(line, kind, text):
    assert unexpected_warnings([line]) == {"nccl": [], "libibverbs": []} | ({kind: [text]} if kind else {})


def test_each_harmless_one_has_a_reason_and_is_on_the_page():
    page = (LOGS.parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    assert all(HARMLESS_WARNINGS.values())
    assert [pattern for pattern in HARMLESS_WARNINGS if re.split(r"[\[\\(]", pattern)[0].rstrip(" '") not in page] == []
