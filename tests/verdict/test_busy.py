"""GPUs that another program uses: which of them stop a run before it starts, and the message."""

import pytest
from judging import make_identity, make_limit, make_profile

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu import GpuProcess, GpuUse
from gpu_acceptance.verdict.busy import find_busy, use_text
from tests.judging import shipped_profile

MiB = 2**20
PROFILE = shipped_profile("h200-sxm")
IDLE = GpuUse((), 615 * MiB)
NOT_SUPPORTED, NOT_PERMITTED = Missing(Why.NOT_SUPPORTED), Missing(Why.NOT_PERMITTED, "nvml: Insufficient Permissions")
TAKEN = GpuUse((GpuProcess(1607, 1204 * MiB), GpuProcess(1700, NOT_SUPPORTED)), 1831 * MiB)
HIDDEN = GpuUse((), 1831 * MiB)
HEAD = "another program uses {} of this job, so that no figure would be that of the hardware:"
TODO = "end what runs there (pids are those of the host), or take other GPUs; --allow-busy runs all the same, and the verdict says so"


def job(busy, num_ranks=8, environment=None, num_nodes=1):
    """Ranks of nodes with 8 GPUs; `busy`: index -> what is on that GPU of each node."""
    ranks = []
    for rank in range(num_ranks * num_nodes):
        identity = make_identity(rank, 8 * num_nodes, 8)
        gpus = tuple(gpu.model_copy(update={"use": busy.get(gpu.index, IDLE)}) for gpu in identity.gpus)
        update = {"gpus": gpus, "gpu_uuid": "", "local_world_size": num_ranks, "environment": environment or {}}
        ranks.append(identity.model_copy(update=update))
    return ranks


def test_idle_gpus_are_not_busy():
    assert find_busy(job({}), PROFILE) is None


def test_node_gpu_serial_pids_and_bytes_are_named():
    assert find_busy(job({5: TAKEN, 6: HIDDEN}), PROFILE).splitlines() == [
        HEAD.format("2 GPUs"),
        "  node-00, GPU 5, serial 165390005: 2 processes (pid 1607: 1204 MiB, pid 1700: memory not supported), 1831 MiB in use",
        "  node-00, GPU 6, serial 165390006: no process that NVML shows, 1831 MiB in use",
        TODO,
    ]


def test_a_busy_gpu_of_any_node_stops_all():
    text = find_busy(job({5: TAKEN}, num_nodes=2), PROFILE)
    assert "  node-00, GPU 5, serial 165390005: " in text
    assert "  node-01, GPU 5, serial 165390105: " in text


def test_many_are_counted():
    text = find_busy(job(dict.fromkeys(range(8), TAKEN), num_nodes=3), PROFILE)
    assert text.startswith(HEAD.format("24 GPUs"))
    assert text.splitlines()[-2] == "  ... and 4 more"


@pytest.mark.parametrize(
    ("environment", "busy", "is_refused"),
    [
        ({}, 5, False),
        ({}, 1, True),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, 1, False),
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, 5, True),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0-4,GPU-0-5"}, 1, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-0-4,GPU-0-5"}, 5, True),
        # It is not known which GPU these ranks will open, so it may be this one.
        ({"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, 7, True),
        ({"CUDA_VISIBLE_DEVICES": "4"}, 7, True),
        ({"CUDA_VISIBLE_DEVICES": "4,99"}, 7, True),
    ],
)
def test_with_fewer_ranks_than_gpus_those_of_others_do_not_matter(environment, busy, is_refused):
    assert bool(find_busy(job({busy: TAKEN}, num_ranks=2, environment=environment), PROFILE)) is is_refused


def test_a_gpu_that_this_process_may_not_use_is_not_counted():
    """CUDA numbers what is left: local rank 0 opens GPU 1."""
    ranks = job({0: TAKEN, 1: IDLE}, num_ranks=1)
    hidden = ranks[0].gpus[0].model_copy(update={"uuid": ""})
    assert find_busy([ranks[0].model_copy(update={"gpus": (hidden, *ranks[0].gpus[1:])})], PROFILE) is None


@pytest.mark.parametrize("use", [GpuUse(NOT_SUPPORTED, 615 * MiB), GpuUse((), NOT_PERMITTED), GpuUse(NOT_PERMITTED, NOT_PERMITTED), None])
def test_what_nvml_does_not_tell_is_not_refused(use):
    """It is not measured: the row says so later, and the run is not ACCEPTED by it."""
    assert find_busy(job({5: use}), PROFILE) is None


def test_of_two_signs_one_is_enough():
    said = "  node-00, GPU 5, serial 165390005: processes not supported, 1831 MiB in use"
    assert said in find_busy(job({5: GpuUse(NOT_SUPPORTED, 1831 * MiB)}), PROFILE).splitlines()
    said = "1 process (pid 9: 512 MiB), memory not permitted (nvml: Insufficient Permissions)"
    assert use_text(GpuUse((GpuProcess(9, 512 * MiB),), NOT_PERMITTED)) == said
    assert find_busy(job({5: GpuUse((GpuProcess(9, 512 * MiB),), NOT_PERMITTED)}), PROFILE)


def test_the_limits_of_the_profile_hold_here_too():
    allows_two = make_profile(make_limit("gpu_health.processes.foreign", at_most=2, unit="count"))
    assert find_busy(job({5: TAKEN}), allows_two) is None
    assert find_busy(job({5: TAKEN}), make_profile(make_limit("gpu_health.processes.foreign", at_most=1, unit="count")))


def test_a_profile_that_says_nothing_of_it_allows_no_process():
    assert find_busy(job({5: TAKEN}), make_profile())
    assert find_busy(job({5: HIDDEN}), make_profile()) is None


def test_a_process_list_is_cut():
    many = GpuUse(tuple(GpuProcess(pid, 512 * MiB) for pid in range(1, 11)), 6000 * MiB)
    assert use_text(many).startswith("10 processes (pid 1: 512 MiB, pid 2: 512 MiB, ")
    assert use_text(many).endswith("pid 8: 512 MiB, 2 more), 6000 MiB in use")
