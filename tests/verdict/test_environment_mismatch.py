"""Which variables of NCCL differ between the ranks of one node, and on which ranks."""

import pytest

from gpu_acceptance.verdict.rows import environment_mismatch
from tests.judging import make_job, with_environment


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, ""),
        ({rank: {"NCCL_ALGO": "Ring"} for rank in range(8)}, ""),
        ({rank: {"NCCL_SOCKET_IFNAME": "eth0"} for rank in range(4)}, ""),  # the other node has another interface
        ({1: {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "/tmp/1", "OMP_NUM_THREADS": "2"}}, ""),
        (
            {rank: {"NCCL_SHM_DISABLE": "1"} for rank in (4, 5, 7)},
            "NCCL_SHM_DISABLE is '1' on ranks 4-5,7, not set on rank 6 (node-01, GPU 2, serial 165390102)",
        ),
        ({0: {"NCCL_ALGO": ""}}, "NCCL_ALGO is '' on rank 0 (node-00, GPU 0, serial 165390000), not set on ranks 1-3"),
    ],
)
def test_what_differs_within_a_node(variables, told):
    assert environment_mismatch(with_environment(make_job(8, 4), variables)) == told


def test_of_many_some_are_told_and_long_values_are_cut():
    told = environment_mismatch(with_environment(make_job(2), {0: {f"NCCL_{number}": "\n" + "x" * 500 for number in range(6)}}))
    assert told.startswith(r"NCCL_0 is '\nxxx")
    assert told.endswith("; and 2 more")
    assert "x" * 79 in told
    assert "x" * 80 not in told
    assert "\n" not in told
    assert "NCCL_4" not in told
