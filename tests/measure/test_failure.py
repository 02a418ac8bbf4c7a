"""Real jobs under torchrun on gloo whose last rank dies: one that does not end, and one that never comes so far.

How those end that should: test_rank.py, and test_end_to_end_failure_propagation.py.
"""

import os
import re
import socket

import pytest
import torch.distributed as dist
from failing import folder, marked, nodes, place, plant

from gpu_acceptance.measure import failure as job
from gpu_acceptance.measure.failure import Ended, held_port, measure

pytestmark = pytest.mark.launcher
DEAF = """
if os.environ["RANK"] == "0":
    rank._end_at_sigterm = signal.SIG_IGN
"""


def test_a_rank_that_ignores_sigterm_is_found_and_killed_with_its_launcher(tmp_path, monkeypatch):
    plant(DEAF, tmp_path, monkeypatch)
    ended = measure("kill", place(), folder(tmp_path), end_s=2)
    assert ended.end_s >= 2
    assert ended == Ended(ended.end_s, 2, "", "the launcher had not ended by then, and was killed")  # itself and the deaf one
    assert marked() == []


@pytest.mark.parametrize(
    ("module", "devices", "problem"),
    [
        ("gpu_acceptance.measure.nobody", "", r"No module named gpu_acceptance\.measure\.nobody"),
        ("gpu_acceptance.measure.failure_rank", "GPU-0", "Error: .*(cuda|CUDA|NVIDIA)"),  # no job on the CPU in their place
    ],
)
def test_a_job_that_never_comes_so_far_has_no_time(module, devices, problem, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_RANK", module)
    ended = measure("kill", place(num_ranks=1), tmp_path, devices=devices)
    assert (ended.end_s, ended.num_left, ended.blamed) == (None, 0, "")
    assert re.match(rf"not all ranks met within 60 s, or the job ended before: .*{problem}", ended.problem), ended.problem


def test_where_a_port_is_held_a_launcher_can_listen_and_nobody_else_gets_it():
    with held_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", port))
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        store.set("met", "here")
        assert dist.TCPStore("127.0.0.1", port, wait_for_workers=False).get("met") == b"here"


def test_nothing_of_the_outer_rank_reaches_the_job_but_what_a_user_set():
    outer = {"RANK": "3", "GROUP_RANK": "1", "MASTER_ADDR": "a", "TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    outer |= {"CUDA_LAUNCH_BLOCKING": "1", "PET_NNODES": "4", "NCCL_DEBUG": "INFO", "NCCL_NVLS_ENABLE": "1", "NCCL_P2P_DISABLE": "0"}
    made = job._environment({**outer, "PYTHONPATH": "mine"}, place(), "GPU-1,GPU-2")
    paths = made.pop("PYTHONPATH").split(os.pathsep)
    assert paths[-1] == "mine"
    own = {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "NCCL_RAS_ENABLE": "0"}
    own |= {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1"}  # whatever a user set
    own |= {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    assert made == {"NCCL_DEBUG": "INFO", **own}
    assert "GLOO_SOCKET_IFNAME" not in job._environment(outer, nodes(1, 1)[0], "")
