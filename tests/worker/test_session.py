"""What a worker takes from a validation, and when it takes no more."""

import json
import re

import pytest

from gpu_acceptance.control.control import MAX_MESSAGE_BYTES
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu import Gpu, GpuProcess, GpuUse
from gpu_acceptance.worker.session import MOST_FIGURES, Figures, check_gathered, use_before, worker_session


def test_figures_are_taken_until_the_end_and_noted_after_it():
    late = []
    figures = Figures("acceptance/test_a.py::test_a", late)
    figures.add("a.x.value", 2.0, "GB/s", judged=True, spread_percent=1.5)
    (taken,) = figures.close()
    assert (taken.metric, taken.value, taken.judged, taken.spread_percent) == ("a.x.value", 2.0, True, 1.5)
    figures.add("a.x.value", 0.1, "GB/s", judged=True)
    assert late == ["acceptance/test_a.py::test_a gave a.x.value after it had ended"]
    assert figures.close() == []


def test_too_many_figures_are_refused():
    figures = Figures("a", [])
    for _ in range(MOST_FIGURES):
        figures.add("a.x.value", 1, "count", judged=False)
    with pytest.raises(ValueError, match="more than 2000 figures in one validation"):
        figures.add("a.x.value", 1, "count", judged=False)


@pytest.mark.parametrize("value", [1, 1.5, True, "x" * 2000, ""])
def test_what_may_be_gathered(value):
    check_gathered("key", value, 2)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("key", "x" * 2001, "gather wants a number, a bool or a text of at most 2000 characters, got 'xxx"),
        ("key", [1], r"gather wants a number, a bool or a text of at most 2000 characters, got \[1\]"),
        ("key", None, "got None"),
        ("", 1, "gather wants a key of 1 to 100 characters, got ''"),
        (7, 1, "gather wants a key of 1 to 100 characters, got 7"),
    ],
)
def test_what_may_not(key, value, text):
    with pytest.raises(ValueError, match=text):
        check_gathered(key, value, 2)


@pytest.mark.parametrize("world_size", [90, 1024])
def test_what_all_ranks_gather_fits_into_one_message(world_size):
    """Each character outside ASCII is 6 bytes of JSON, one outside the basic plane 12."""
    with pytest.raises(
        ValueError, match=rf"gather wants at most \d+ bytes of JSON from each of {world_size} ranks, got 24002: '😀😀"
    ) as caught:
        check_gathered("key", "😀" * 2000, world_size)
    most = int(re.search(r"at most (\d+)", str(caught.value))[1])
    value = "é" * ((most - 2) // 6)
    check_gathered("key", value, world_size)
    with pytest.raises(ValueError, match=f"at most {most} bytes of JSON from each of {world_size} ranks, got {most + 1}: "):
        check_gathered("key", value + "x" * (most - len(json.dumps(value)) + 1), world_size)
    message = {"type": "gathered", "seq": 10**9, "values": [value] * world_size}
    assert MAX_MESSAGE_BYTES * 0.9 < len(json.dumps([world_size, message])) < MAX_MESSAGE_BYTES


def test_fixtures_refuse_without_a_supervisor(pytestconfig):
    with pytest.raises(pytest.UsageError, match="no supervisor started this process, so nothing here would be judged"):
        worker_session(pytestconfig)


TAKEN = GpuUse((GpuProcess(1607, 2**30), GpuProcess(1700, Missing(Why.NOT_SUPPORTED))), Missing(Why.NOT_PERMITTED, "nvml"))


def test_who_was_on_a_gpu_before_the_run_is_known_by_its_uuid_in_every_worker():
    gpus = [Gpu(index=0, name="NVIDIA H200", uuid="GPU-0", use=GpuUse((), 0)), Gpu(index=1, name="NVIDIA H200", uuid="GPU-1", use=TAKEN)]
    assert use_before(gpus, "GPU-1") == TAKEN
    assert use_before(gpus, "GPU-0") == GpuUse((), 0)


@pytest.mark.parametrize("gpus", [[], [Gpu(index=0, name="")], [Gpu(index=0, name="", uuid="GPU-0", use=None)]])
def test_who_was_on_a_gpu_that_nvml_did_not_show_is_not_known(gpus):
    unknown = Missing(Why.NOT_THERE, "NVML did not show this GPU before the run began")
    assert use_before(gpus, "GPU-0") == GpuUse(unknown, unknown)


def test_a_validation_cannot_write_what_its_supervisor_reads():
    text = "counters.xids: what rises on a GPU is read by its supervisor; a validation measures under its own subject"
    with pytest.raises(ValueError, match=re.escape(text)):
        Figures("a", []).add("counters.xids", 0, "count", judged=True)
