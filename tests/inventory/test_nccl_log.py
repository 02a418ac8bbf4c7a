"""NCCL's own log: choices, connections and warnings, from logs of real runs and lines of its source."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import nccl_physics
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.nccl_log import ALGORITHMS, HARMLESS_WARNINGS, Choice, Connection, Passage, parse, unexpected_warnings

LOGS = Path(__file__).parent / "nccl_logs"
CASES = Path(__file__).parents[1] / "cases" / "nccl"
PIDS = {"plain": 922, "shm": 983, "socket": 1043, "tree": 1107}
GiB = 2**30


def real(name):
    return parse((LOGS / f"{name}.txt").read_text(encoding="utf-8"), PIDS[name])


def log(*lines, pid=1):
    return parse("\n".join(f"node-01:1:7 [0] NCCL INFO {line}" for line in lines), pid)


def case(name):
    """A log of cases/nccl, after public logs of NCCL 2.19 to 2.30 and its plug-ins."""
    return parse((CASES / f"{name}.txt").read_text(encoding="utf-8"), 1)


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


def test_unknown_names():
    (choice,) = log("AllReduce: 8 Bytes -> Algo WARP proto HYPER channel{Lo..Hi}={0..0}").choices
    assert (choice.algorithm, choice.protocol) == ("unknown (WARP)", "unknown (HYPER)")
    assert log("AllReduce: 8 Bytes -> Algo 7 proto 3 time 1.5").choices == (
        Choice("AllReduce", 8, "unknown (7)", "unknown (3)", num_channels=None),
    )
    assert log("AllReduce: 8 Bytes -> Algo 1").choices == ()


@pytest.mark.parametrize(
    ("number", "name"), list(enumerate(["TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE"]))
)  # src/include/nccl_common.h
def test_numbers_of_algorithms_in_older_logs(number, name):
    assert log(f"AllReduce: 8 Bytes -> Algo {number} proto 2 time 3.14").choices == (Choice("AllReduce", 8, name, "SIMPLE", None),)  # 2.23
    assert log(f"8 Bytes -> Algo {number} proto 1 time 3.14").choices == (Choice("", 8, name, "LL128", None),)  # 2.20 to 2.22


@pytest.mark.parametrize(("version", "tells"), [("2.18.5", False), ("2.19.3", False), ("2.20.5", True), ("2.30.7", True)])
def test_the_oldest_version_that_logs_its_choice(version, tells):
    found = parse(f"NCCL version {version}+cuda12.4\n", 1).no_choice
    assert (found == "") is tells
    assert tells or found.startswith(f"NCCL version {version} logs no algorithm, 2.20 and later do: ")


@pytest.mark.parametrize(
    ("name", "transports"),
    [
        ("01_ib_rail_plane", {("IB", True)}),
        ("03_shm_2_30_7", {("SHM", False)}),
        ("04_choice_2_21", {("P2P", False)}),
        ("05_merged_bond", {("RoCE", True)}),
        ("06_fastrak", {("FasTrak", True)}),
        ("07_efa_direct", {("EFA", True)}),
        ("08_timestamps_brackets", {("P2P", False)}),
        ("09_ib_merged_2_30", {("IB", True)}),
        ("10_sharp", {("IB", True)}),
        ("11_data_direct", {("RoCE", True)}),
        ("12_gib", {("gIB", True)}),
        ("14_mnnvl", {("P2P", False)}),
    ],
)
def test_transports_in_logs_from_the_field(name, transports):
    found = case(name)
    assert {(one.transport, one.gpudirect) for one in found.connections} == transports
    assert found.strange == ""


def test_choices_devices_and_reductions_in_logs_from_the_field():
    assert case("04_choice_2_21").choices == (Choice("", 4 * GiB, "NVLS", "SIMPLE", None),)
    assert (case("04_choice_2_21").num_channels, case("04_choice_2_21").num_nvls_channels) == (16, 16)
    assert {one.device for one in case("09_ib_merged_2_30").passages} == {"mlx5_0", "mlx5_1"}
    assert {one.device for one in case("11_data_direct").passages} == {"mlx5_0", "mlx5_1"}  # the card, not its way past the CPU
    assert {one.device for one in case("12_gib").passages} == {"mlx5_0", "mlx5_1"}
    assert case("10_sharp").reductions == (Connection(0, 0, "SHARP", gpudirect=True),)


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
        *((via, "SHM") for via in ("SHM/direct/direct", "SHM/CE/direct", "SHM/CE/CE", "SHM/direct", "SHM/CE")),
        # A plug-in that is no part of NCCL is named without device and version, so that a limit can ask for it.
        ("NET/gIB/3/GDRDMA", "gIB"),
        ("NET/SPCX/2(8)/GDRDMA", "SPCX"),
        ("NET/GPUDirectTCPX_v7/1/GDRDMA", "GPUDirectTCPX"),
        ("NET/FastSocket/0", "FastSocket"),
        ("NET/UCX/0/GDRDMA", "UCX"),
        *((via, f"unknown ({via})") for via in ("P2P", "P2P/NEW", "SHM/new/direct", "WARP/0")),
        ("NET/IB/0/GDRDMA", "unknown (NET/IB)"),  # no line tells the link of its devices
    ],
)
def test_a_transport(via, expected):
    assert transport(via) == (expected, via.endswith("GDRDMA"))


TWO_NODES = (CASES / "13_two_nodes_2_19.txt").read_text(encoding="utf-8")
NODES = [0] * 8 + [1] * 8


@pytest.mark.parametrize("rank", range(16))
def test_every_rank_of_two_nodes_of_8_h100(rank):
    """All 16 processes wrote into one stream, and one line of rank 2 is torn."""
    found = parse(TWO_NODES, 1 + rank)
    assert (found.strange, found.no_choice.split(" logs")[0]) == ("", "NCCL version 2.19.3")
    told = {metric: (value, unit) for metric, value, unit, _ in nccl_physics.findings(found, GiB, NODES, rank) if "algorithm" not in metric}
    assert told == {
        "nccl.transport.intranode": ("P2P", "text"),
        "nccl.transport.internode": ("IB", "text"),
        "nccl.network.staged": (0, "count"),
    }
    assert (found.network, found.num_channels, found.num_nvls_channels) == ("IBext", 16, 16)
    assert nccl_physics.told_reduction(found) == "none"  # its devices can SHARP, and no connection uses it


TORN = "Channel 06/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDSetting up proxy"  # two processes wrote into one file


def test_a_torn_line_is_no_finding():
    intact = "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"
    both = log(USING, intact, TORN)
    assert (both.connections, both.strange) == ((Connection(0, 8, "IB", gpudirect=True),), "")
    alone = log(USING, TORN)
    assert (alone.connections, alone.strange) == ((), TORN[:60])
    assert log(USING, intact.replace("IB/0", "IB/1"), TORN).strange == TORN[:60]  # of another card


USING = "NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/RoCE [2]mlx5_2:1/IB [RO]; OOB eth0:192.0.2.2<0>"


@pytest.mark.parametrize(
    ("via", "expected"),
    [
        ("NET/IB/0/GDRDMA", ("IB", True)),
        ("NET/IB/2", ("IB", False)),
        ("NET/IB/1/GDRDMA/Shared", ("RoCE", True)),
        ("NET/IB/0(3)/GDRDMA(PCI)", ("IB", True)),  # through the card of another GPU
        ("NET/IBext_v8/1/GDRDMA", ("RoCE", True)),
        ("NET/NCCL RDMA Plugin v6/0(2)/GDRDMA/Shared", ("IB", True)),
        ("NET/IB/3/GDRDMA", ("unknown (NET/IB)", True)),  # a device that NCCL did not name
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
    assert transport("NET/IB/1/GDRDMA", USING, mixed) == ("unknown (NET/IB)", True)
    assert transport("NET/IB/2/GDRDMA", USING, single) == ("RoCE", True)


@pytest.mark.parametrize(
    ("vias", "devices"),
    [
        (["NET/IB/1/GDRDMA", "NET/IB/2(5)", "NET/IB/1"], ("mlx5_1", "mlx5_2")),
        (["NET/IBext_v8/0/GDRDMA"], ("mlx5_0",)),
        (["NET/IB/7"], ("unknown (NET/IB/7)",)),
        (["NET/AWS Libfabric/1/GDRDMA"], ("unknown (NET/AWS Libfabric/1)",)),
        (["NET/Socket/0", "P2P/CUMEM", "SHM/direct/direct"], ()),
    ],
)
def test_through_which_devices(vias, devices):
    found = log(USING, *(f"Channel 00/1 : 0[0] -> 1[1] [send] via {via}" for via in vias))
    assert found.passages == tuple(Passage(0, 1, device) for device in devices)
    assert log(USING, *(f"Channel 00/0 : 0[0] -> 1[1] [send] via {via}" for via in vias)).passages == ()  # of a collective


def test_two_ports_of_a_card_as_one_device():
    using = (
        "NET/IB : Using [0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [1]={[2] mlx5_0:1/RoCE, [3] mlx5_1:1/IB} [RO]; OOB bond0:192.0.2.2<0>"
    )
    assert transport("NET/IBext_v8/0/GDRDMA", using) == ("RoCE", True)
    assert transport("NET/IBext_v8/1/GDRDMA", using) == ("unknown (NET/IBext)", True)  # ports of two kinds
    found = log(using, "Channel 00/1 : 0[0] -> 1[1] via NET/IBext_v8/0/GDRDMA")
    assert [one.device for one in found.passages] == ["mlx5_2", "mlx5_3"]


def test_merged_devices_are_each_of_their_parts():
    both = "NET/IB : Made virtual device [0] name=mlx5_0+mlx5_2 speed=800000 ndevs=2"
    found = log(USING, both, "Channel 00/1 : 0[0] -> 1[1] via NET/IB/0/GDRDMA")
    assert found.passages == (Passage(0, 1, "mlx5_0"), Passage(0, 1, "mlx5_2"))


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        ("NET/OFI Selected Provider is efa (found 4 nics)", "EFA"),
        ("NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)", "EFA"),
        ("NET/OFI Selected provider is efa, fabric is efa (found 1 nics)", "EFA"),
        ("NET/OFI Selected provider is sockets", "unknown (NET/AWS Libfabric of sockets)"),
        ("NET/OFI Initializing aws-ofi-nccl 1.16.2", "unknown (NET/AWS Libfabric of no provider)"),
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


@pytest.mark.parametrize(
    "front",
    [
        "[2026-11-22 13:00:18] ",
        "  | 2026-11-22T13:00:18.222-07:00 | ",  # a cloud's log
        "[1,3]<stdout>:",  # mpirun
        "192.0.2.1: ",  # a parallel shell
        "(Worker pid=1, ip=192.0.2.1) ",  # Ray
    ],
)
def test_a_line_with_something_in_front(front):
    line = f"{front}node-01:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
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


NO_DRIVER = "libibverbs: Warning: couldn't load driver 'lib{}-rdmav34.so': lib{}-rdmav34.so: cannot open shared object file: No such file"


@pytest.mark.parametrize(
    ("provider", "drivers", "harmless"),
    [
        ("vmw_pvrdma", {"mlx5_core"}, True),
        ("vmw_pvrdma", set(), True),  # a node without RDMA devices
        ("mlx5", {"mlx5_core"}, False),
        ("irdma", {"mlx5_core", "ice"}, False),
        ("rxe", {"mlx5_core"}, True),
        ("rxe", {"software"}, False),
        ("rxe", {"a driver of tomorrow"}, False),  # which may need it
        ("mlx5", Missing(Why.NOT_PERMITTED, "/sys/class/infiniband"), False),
    ],
)
def test_a_library_of_rdma_is_missed_only_by_a_device_that_needs_it(provider, drivers, harmless):
    line = NO_DRIVER.format(provider, provider)
    found = unexpected_warnings([line], lambda: drivers if isinstance(drivers, Missing) else frozenset(drivers))
    assert found["libibverbs"] == ([] if harmless else [line])


def test_warnings_in_logs_from_the_field():
    lines = (CASES / "20_warnings.txt").read_text(encoding="utf-8").splitlines()
    found = unexpected_warnings(lines, lambda: frozenset({"mlx5_core"}))
    assert found["libibverbs"] == [DRIVER]
    assert [text.split(" ", 1)[0] for text in found["nccl"]] == ["misc/ibvwrap.cc:187", "transport/net_ib.cc:900"]


def test_each_harmless_one_has_a_reason_and_is_on_the_page():
    page = (LOGS.parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    assert all(HARMLESS_WARNINGS.values())
    assert [pattern for pattern in HARMLESS_WARNINGS if re.split(r"[\[\\(]|'lib", pattern)[0].rstrip(" '") not in page] == []
