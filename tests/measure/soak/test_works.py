"""The works of a round, on a CPU and at sizes that take no time."""

from dataclasses import replace

import pytest
import torch

from gpu_acceptance.measure import hbm
from gpu_acceptance.measure.gemm import correctness
from gpu_acceptance.measure.soak import UNITS, Sizes, measure, works

CPU = torch.device("cpu")
SIZES = Sizes(gemm_size=32, gemm_dtype="fp32", gemm_s=0.01, hbm_bytes=4096, hbm_s=0.01, nccl_bytes=4096, nccl_s=0.01, num_blocks=3)


def test_one_rank_alone_runs_no_collective():
    assert list(works(SIZES, device=CPU, world_size=1)) == ["gemm", "hbm"]
    assert list(works(SIZES, device=CPU, world_size=2)) == list(UNITS) == ["gemm", "hbm", "nccl"]


def test_a_load_on_a_cpu_is_right_and_has_rates_and_moments():
    load = measure(works(SIZES, device=CPU, world_size=1), duration_s=0.1)
    assert load.length_s >= 0.1
    for one in load.rounds:
        for name, done in one.done.items():
            assert done.rate > 0
            assert load.num_wrong(name) == 0
            assert one.begin_s <= done.begin_s < done.end_s <= one.end_s


@pytest.mark.parametrize(("module", "work"), [(correctness, "gemm"), (hbm, "hbm")])
def test_a_wrong_element_is_told_with_its_round(module, work, monkeypatch):
    monkeypatch.setattr(module, "_count_wrong", lambda *_: 2)
    load = measure({work: works(SIZES, device=CPU, world_size=1)[work]}, duration_s=0.001)
    assert load.num_wrong(work) == 2 * len(load.rounds)


def test_a_share_is_split_into_the_blocks_and_two_more(monkeypatch):
    asked = {}
    real = hbm.measure
    monkeypatch.setattr(hbm, "measure", lambda kernel, **options: asked.update(options) or real(kernel, **options))
    works(replace(SIZES, hbm_s=0.05), device=CPU, world_size=1)["hbm"]()
    assert asked["block_s"] == pytest.approx(0.01)
