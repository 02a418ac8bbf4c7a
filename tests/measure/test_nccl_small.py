"""Each collective once, and the latency of small messages, on two real ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_acceptance.measure import nccl_latency, nccl_once

ROOT = Path(__file__).parents[2]
SCENES = ROOT / "tests" / "measure" / "nccl_small_world.py"


def start(rank, store_file):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCENES), str(rank), str(store_file)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each of two real ranks printed."""
    store_file = tmp_path_factory.mktemp("gloo") / "store"
    with start(0, store_file) as first, start(1, store_file) as second:
        try:
            return [json.loads(rank.communicate(timeout=100)[0]) for rank in (first, second)]
        finally:
            first.kill()
            second.kill()


def test_every_collective_runs_once_over_whole_elements_for_each_rank(answers):
    for answer in answers:
        assert answer["once"] == {"returned": 4_000, "asked": list(nccl_once.COLLECTIVES)}


def test_a_message_without_an_element_for_each_rank(answers):
    assert answers[0]["too_small"] == "num_bytes=7: less than one fp32 element for each of 2 ranks"


def test_latency_called_one_by_one(answers):
    for answer in answers:
        assert answer["latency"]["num_bytes"] == 8
        assert 0 < answer["latency"]["latency_us"] < 1e6
        assert answer["latency"]["block_cv_percent"] >= 0


def test_the_sizes_and_the_variable_that_a_graph_needs():
    assert nccl_latency.SIZES == {"8b": 8, "32k": 32_768, "1m": 1_048_576}
    assert nccl_latency.ENVIRONMENT == {"NCCL_GRAPH_MIXING_SUPPORT": "0"}
