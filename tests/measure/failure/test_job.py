"""Real jobs under torchrun on gloo whose last rank dies: one that ends, one that does not, and one that never comes so far."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu_acceptance.measure.failure import EXIT_CODE, job
from gpu_acceptance.measure.failure.job import Ended, Place, blame, measure

pytestmark = pytest.mark.launcher
DEAF = """
import os, signal
if os.environ.get("LOCAL_RANK") == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""


def place(node=0, num_nodes=1, num_ranks=2, port=0):
    return Place(node, num_nodes, num_ranks, "127.0.0.1", port or free_port())


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def marked():
    """Processes of any such job."""
    return job._marked(f"{job._MARK}=")


def test_on_two_nodes_both_launchers_end_and_that_of_the_dead_rank_names_it(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    port = free_port()
    with ThreadPoolExecutor(2) as hosts:
        first, last = hosts.map(lambda node: measure("exit", place(node, 2, 1, port)), range(2))
    assert last.blamed == blame(1, "exit") == f"rank 1, exit code {EXIT_CODE}"
    for ended in (first, last):
        assert 0 < ended.end_s < job.END_S
        assert (ended.num_left, ended.told) == (0, "")
    assert marked() == []


def test_a_rank_that_ignores_sigterm_is_found_and_killed_with_its_launcher(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(DEAF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = measure("kill", place(), end_s=2)
    assert ended.end_s >= 2
    assert ended == Ended(ended.end_s, 2, "", "the launcher had not ended by then, and was killed")  # itself and the deaf one
    assert marked() == []


def test_a_job_that_never_comes_so_far_has_no_time(monkeypatch):
    monkeypatch.setattr(job, "_RANK", "gpu_acceptance.measure.nobody")
    ended = measure("kill", place(num_ranks=1))
    assert (ended.end_s, ended.num_left, ended.blamed) == (None, 0, "")
    assert ended.told.startswith("not all ranks met within 60 s, or the job ended before: ")
    assert "No module named gpu_acceptance.measure.nobody" in ended.told


def test_nothing_of_the_outer_rank_reaches_the_job_but_what_a_user_set():
    outer = {
        "RANK": "3",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "a",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "PET_NNODES": "4",
        "NCCL_NVLS_ENABLE": "0",
    }
    made = job._environment({**outer, "PYTHONPATH": "mine"}, place(), "GPU-1,GPU-2")
    paths = made.pop("PYTHONPATH").split(os.pathsep)
    assert paths[-1] == "mine"
    assert made == {"NCCL_NVLS_ENABLE": "0", "CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    assert "GLOO_SOCKET_IFNAME" not in job._environment(outer, place(num_nodes=2), "")
