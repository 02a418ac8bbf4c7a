"""GPU and CPUs of a rank, and values whose host memory must be beside the GPU."""

from dataclasses import replace

import pytest
from inventory.rdma_trees import NDR_PORT, add_device, fill
from snapshots import healthy_h200, snapshot_of

from gpu_acceptance.inventory import binding, infiniband
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.binding import HostSide, Opened
from gpu_acceptance.inventory.cpu import NumaNode
from gpu_acceptance.inventory.pci_topology import Place, place
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.verdict.rows import make_row
from tests.judging import make_job, make_record, shipped_profile

NODE = snapshot_of(healthy_h200()).node
GPUS = NODE.gpus.gpus
UUIDS = [gpu.uuid for gpu in GPUS]
IN_BUS_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
CPU = NODE.cpu  # NUMA nodes 0 (CPUs 0-1,4-5) and 1 (2-3,6-7)
PROFILE = shipped_profile("h200-sxm")
UNKNOWN = Missing(Why.NOT_SUPPORTED, "0000:18:00.0: the kernel knows no NUMA node of it")


def at(numa):
    return Place("00000000:18:00.0", "pci0000:15/0000:15:01.0/0000:18:00.0", numa)


def allowed(cpu_list):
    return replace(CPU, affinity_cpu_list=cpu_list)


def row(topic, findings_by_rank):
    """The row of a job in which each rank found this."""
    records = []
    for rank, findings in enumerate(findings_by_rank):
        figures = [make_figure(metric, value, unit, judged=True, detail=where) for metric, value, unit, where in findings]
        records.append(make_record(rank, figures=tuple(figures)))
    attempts = [Attempt(number=1, ranks=tuple(records))]
    return make_row(f"acceptance/test_binding.py::test_{topic}", attempts, PROFILE, make_job(len(records)), {}, 60.0)


def rank_on(uuid, local_rank=0, ranks=(0,), environ=None, num_visible=8, gpus=GPUS):
    return binding.gpu(Opened(uuid, local_rank, num_visible), ranks, gpus, environ or {})


def test_every_rank_on_its_own_gpu():
    found = row("gpu", [rank_on(uuid, rank, (rank,)) for rank, uuid in enumerate(UUIDS)])
    assert (found.outcome, found.message) == (Outcome.PASSED, "")


def test_two_ranks_on_one_gpu_are_both_named():
    owners = [(0,), (1, 3), (2,), (1, 3)]
    found = row("gpu", [rank_on(UUIDS[1 if rank == 3 else rank], rank, owners[rank]) for rank in range(4)])
    assert found.outcome is Outcome.FAILED
    assert "binding.gpu.ranks = 2 count (ranks 1,3), need == 1 count [base.yaml: policy: each rank has a GPU of its own]" in found.message
    assert "and 1 more: rank 3; to do: look at CUDA_VISIBLE_DEVICES of the ranks that are named" in found.message


@pytest.mark.parametrize(
    ("environ", "local_rank", "opened", "num_visible"),
    [
        ({}, 3, 3, 8),
        ({}, 3, 5, 8),  # without an order nothing says which one is number 3
        (IN_BUS_ORDER, 3, 3, 8),
        ({"CUDA_VISIBLE_DEVICES": "4,5", **IN_BUS_ORDER}, 1, 5, 2),
        ({"CUDA_VISIBLE_DEVICES": " 4, 5,-1,6", **IN_BUS_ORDER}, 1, 5, 2),
        ({"CUDA_VISIBLE_DEVICES": f"{UUIDS[7]},{UUIDS[2]}"}, 1, 2, 2),
        ({"CUDA_VISIBLE_DEVICES": "7,2"}, 0, 2, 2),
    ],
)
def test_a_promise_of_the_launcher_that_holds(environ, local_rank, opened, num_visible):
    _, (_, broken, _, detail) = rank_on(UUIDS[opened], local_rank, environ=environ, num_visible=num_visible)
    assert (broken, detail) == (0, "")


@pytest.mark.parametrize(
    ("environ", "local_rank", "opened", "num_visible", "says"),
    [
        ({}, 0, 0, 7, "CUDA shows 7 GPUs, NVML shows 8"),
        ({"CUDA_VISIBLE_DEVICES": "0,1,9,3"}, 0, 0, 2, "CUDA shows 2 GPUs, CUDA_VISIBLE_DEVICES=0,1,9,3 names 4"),
        (IN_BUS_ORDER, 3, 5, 8, f"opened {UUIDS[5]}, and local rank 3 was given {UUIDS[3]}"),
        ({"CUDA_VISIBLE_DEVICES": f"{UUIDS[7]}"}, 0, 2, 1, f"opened {UUIDS[2]}, and local rank 0 was given {UUIDS[7]}"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, 0, 2, 1, f"opened {UUIDS[2]}, and local rank 0 was given MIG-1"),
        ({"CUDA_VISIBLE_DEVICES": "4"}, 1, 5, 2, "CUDA shows 2 GPUs, CUDA_VISIBLE_DEVICES=4 names 1"),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0, 0, 8, "CUDA shows 8 GPUs, CUDA_VISIBLE_DEVICES= names 0"),
    ],
)
def test_a_promise_that_does_not_hold_is_named(environ, local_rank, opened, num_visible, says):
    found = row("gpu", [rank_on(UUIDS[opened], local_rank, environ=environ, num_visible=num_visible)])
    assert found.outcome is Outcome.FAILED
    assert f"binding.gpu.unexpected = 1 count ({says}), need <= 0 count [base.yaml: policy: a rank sees the GPUs that " in found.message


def test_gpus_that_this_process_may_not_use_do_not_count():
    hidden = tuple(replace(gpu, uuid=Missing(Why.NOT_PERMITTED)) for gpu in GPUS[:6])
    _, (_, broken, _, _) = rank_on(UUIDS[6], 0, environ=IN_BUS_ORDER, num_visible=2, gpus=(*hidden, *GPUS[6:]))
    assert broken == 0


def test_without_nvml_the_promise_is_unknown():
    found = row("gpu", [rank_on(UUIDS[0], gpus=Missing(Why.NOT_THERE, "NVML does not start"))])
    assert found.outcome is Outcome.ERROR
    assert "binding.gpu.unexpected has no value: not there (NVML does not start), need <= 0 count [" in found.message


@pytest.mark.parametrize(("cpu_list", "numa", "share"), [("0-1,4-5", 0, 100.0), ("2", 1, 100.0), ("0-7", 1, 50.0), ("0-2", 1, 100 / 3)])
def test_a_rank_that_may_run_beside_its_gpu(cpu_list, numa, share):
    found = row("affinity", [binding.affinity(allowed(cpu_list), at(numa))])
    assert (found.outcome, found.message) == (Outcome.PASSED, "")
    ((_, value, unit, _),) = binding.affinity(allowed(cpu_list), at(numa))
    assert (value, unit) == (share, "%")


def test_a_rank_on_the_wrong_numa_node():
    found = row("affinity", [binding.affinity(allowed("0-1,4-5"), at(0)), binding.affinity(allowed("0-1,4-5"), at(1))])
    assert found.outcome is Outcome.FAILED
    assert "binding.affinity.own_node = 0 % (CPUs 0-1,4-5; NUMA node 1 has 2-3,6-7), need >= 1 % [base.yaml: policy: " in found.message
    assert "on rank 1 (node-00, GPU 1, serial 165390001); to do: look at taskset, numactl" in found.message


@pytest.mark.parametrize("where", [at(UNKNOWN), UNKNOWN])
def test_one_numa_node_is_the_own_one_of_every_gpu(where):
    """As in the virtual machine with 8 H200 that was read. A node of memory alone is no other one."""
    single = replace(allowed("0-127"), numa_nodes=(NumaNode(0, "0-127", 7 * 2**30), NumaNode(1, "", 96 * 2**30)))
    ((_, value, _, told),) = binding.affinity(single, where)
    assert (value, told) == (100.0, "CPUs 0-127; NUMA node 0 has 0-127")


def test_an_unknown_numa_node_of_several_is_not_measured():
    found = row("affinity", [binding.affinity(allowed("0-7"), at(UNKNOWN))])
    assert found.outcome is Outcome.ERROR
    why = "not supported (0000:18:00.0: the kernel knows no NUMA node of it; there are NUMA nodes 0-1)"
    assert f"binding.affinity.own_node has no value: {why}, need >= 1 % [base.yaml: " in found.message


HIDDEN = Missing(Why.NOT_PERMITTED, "cpulist")
ONE_HIDDEN = replace(CPU, numa_nodes=(CPU.numa_nodes[0], NumaNode(1, HIDDEN, 2**30)))


@pytest.mark.parametrize(
    ("cpu", "numa", "expected"),
    [
        (replace(CPU, numa_nodes=Missing(Why.NOT_THERE, "node")), 0, Missing(Why.NOT_THERE, "node")),
        (allowed(Missing(Why.NOT_PERMITTED, "status")), 0, Missing(Why.NOT_PERMITTED, "status")),
        (allowed(""), 0, Missing(Why.UNREADABLE, "the process may run on no CPU")),
        (CPU, 7, Missing(Why.UNREADABLE, "NUMA node 7 is unknown; the kernel has NUMA nodes 0-1")),
        (ONE_HIDDEN, 1, HIDDEN),
        (ONE_HIDDEN, UNKNOWN, Missing(Why.NOT_SUPPORTED, f"{UNKNOWN.detail}; there are NUMA nodes 0-1")),  # it may be the hidden one
    ],
)
def test_a_missing_answer_stays_missing(cpu, numa, expected):
    ((_, value, _, _),) = binding.affinity(cpu, at(numa))
    assert value == expected


def test_from_rank_to_network_in_one_line(tmp_path):
    switch = "pci0000:15/0000:15:01.0/0000:16:00.0"
    gpu = fill(tmp_path / f"sys/devices/{switch}/0000:17:00.0/0000:18:00.0", {"numa_node": 1})
    add_device(tmp_path, "mlx5_3", f"{switch}/0000:17:01.0/0000:19:00.0", ports={"1": NDR_PORT}, numa=1)
    (tmp_path / "sys/bus/pci/devices" / gpu.name).symlink_to(gpu)
    where, devices = place("00000000:18:00.0", tmp_path), infiniband.read(tmp_path).devices
    found = binding.placement(GPUS[3], allowed("2-3,6-7"), where, devices)
    assert found == {"gpu": 3, "numa_node": "1", "cpus": "2-3,6-7", "card": "mlx5_3", "distance": "PIX"}
    line = binding.describe(found)
    assert line == "GPU 3, NUMA node 1, CPUs 2-3,6-7, nearest RDMA device mlx5_3 PIX"
    nowhere = "not there (there is no RDMA device)"
    assert binding.describe(binding.placement(GPUS[3], CPU, where, ())) == f"GPU 3, NUMA node 1, CPUs 0-3, nearest RDMA device {nowhere}"


NODE_1 = NumaNode(1, "48-50,60", 2**30)
UNKNOWN_NODE = Missing(Why.NOT_SUPPORTED, "0000:18:00.0: the kernel knows no NUMA node of it; there are NUMA nodes 0-1")
NOT_BESIDE = "pages of host memory were not on NUMA node 1, beside the GPU, and at most 1 % may be: it has no room, or a policy forbids it"


def reading(node, pages_by_node, is_bound=True):
    return HostSide(node).reading(55.0, pages_by_node, num_pages=sum(pages_by_node.values()), is_bound=is_bound)


@pytest.mark.parametrize(
    ("node", "cpus"),
    [
        (NODE_1, frozenset({48, 49, 50, 60})),
        (NumaNode(2, "", 2**30), None),
        (NumaNode(1, UNKNOWN_NODE, 2**30), None),
        (UNKNOWN_NODE, None),
        (None, None),
    ],
)
def test_the_cpus_beside_a_gpu(node, cpus):
    assert HostSide(node).cpus == cpus


@pytest.mark.parametrize(("node", "is_bound"), [(None, False), (NODE_1, True), (NODE_1, False)])
def test_a_reading_beside_the_gpu_counts_and_any_without_a_gpu(node, is_bound):
    assert reading(node, {1: 131072}, is_bound) == 55.0


@pytest.mark.parametrize(("far", "counts"), [(1, True), (100, True), (101, False), (9999, False)])
def test_one_percent_may_lie_elsewhere(far, counts):
    assert (reading(NODE_1, {0: far, 1: 10_000 - far}) == 55.0) == counts


def told_of(known, num_pages):
    return f"not supported (/proc/self/numa_maps places {known} of {num_pages} pages of host memory)"


@pytest.mark.parametrize(
    ("node", "pages_by_node", "is_bound", "num_pages", "text"),
    [
        *(
            (NODE_1, pages, True, 16384, told_of(sum(pages.values()), 16384))
            for pages in ({1: 4096}, {1: 16383}, {0: 1, 1: 16384})  # unknown pages do not count
        ),
        (UNKNOWN_NODE, {0: 10}, False, 10, str(UNKNOWN_NODE)),
        (NODE_1, {}, True, 0, "not supported (/proc/self/numa_maps does not say where the host memory was)"),
        (
            *(NODE_1, {0: 10, 1: 5}, False, 15),
            "not permitted (this process may run on no CPU of NUMA node 1, beside the GPU: the host memory was elsewhere)",
        ),
        (NODE_1, {0: 10, 1: 90}, True, 100, f"not there (10 of 100 {NOT_BESIDE})"),
        (NODE_1, {0: 1, 2: 2}, True, 3, f"not there (3 of 3 {NOT_BESIDE})"),
    ],
)
def test_a_reading_from_elsewhere_has_a_reason(node, pages_by_node, is_bound, num_pages, text):
    found = HostSide(node).reading(55.0, pages_by_node, num_pages=num_pages, is_bound=is_bound)
    assert isinstance(found, Missing)
    assert str(found) == text
