"""The sampler of a supervisor, over a stand-in for the C library, and what of it a record keeps."""

import itertools
import threading
import time
from types import SimpleNamespace

import pynvml
import pytest
from inventory.fake_nvml import install
from judging import make_identity
from waiting import wait_until

from gpu_acceptance import telemetry_watch, worker_hold
from gpu_acceptance.gpu_telemetry import GpuTelemetry
from gpu_acceptance.inventory import event_reasons
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.telemetry.sample import SOURCES, Sample, unread
from gpu_acceptance.telemetry.series import Series
from gpu_acceptance.telemetry_watch import TelemetryWatch, told

FIRST, SECOND = (f"GPU-0000000{n}-0000-4000-8000-00000000000{n}" for n in (1, 2))


@pytest.fixture
def watch(monkeypatch):
    install(monkeypatch)
    monkeypatch.setattr(telemetry_watch, "LEAST_S", 0.0)
    made = TelemetryWatch()
    yield made
    made.end()


BEGAN_S = time.monotonic()


def so_far(watch):
    return watch.during(BEGAN_S, time.monotonic())


def wait_for_samples(watch, number):
    assert wait_until(lambda: so_far(watch).num_samples >= number)


def test_what_the_gpu_did(watch):
    watch.watch(FIRST)
    wait_for_samples(watch, 1)
    begin_s = time.monotonic()
    wait_for_samples(watch, 4)
    found = watch.during(begin_s, time.monotonic())
    assert found.levels["sm_clock_mhz"].mean == found.mean("sm_clock_mhz") > 0
    assert found.seen_s <= found.length_s
    assert GpuTelemetry.model_validate_json(found.model_dump_json()) == found


def test_the_same_gpu_again_is_sampled_on_and_another_one_anew(watch):
    watch.watch(FIRST)
    wait_for_samples(watch, 3)
    watch.watch(FIRST)
    assert so_far(watch).num_samples >= 3
    second_s = time.monotonic()
    watch.watch(SECOND)
    wait_for_samples(watch, 1)
    first_to_second = watch.during(BEGAN_S, second_s)
    assert (first_to_second.num_samples, first_to_second.seen_s) == (0, 0.0)


def test_without_a_gpu_there_is_nothing(watch):
    watch.watch("")
    assert so_far(watch) is None
    watch.watch(FIRST)
    watch.end()
    assert so_far(watch) is None


def test_of_less_than_a_second_nothing_is_told(watch, monkeypatch):
    watch.watch(FIRST)
    wait_for_samples(watch, 2)
    monkeypatch.setattr(telemetry_watch, "LEAST_S", 1.0)
    now_s = time.monotonic()
    assert watch.during(now_s - 0.999, now_s) is None
    assert watch.during(now_s - 1.001, now_s) is not None


def test_a_machine_without_nvml_is_told_as_missing(watch, monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: (_ for _ in ()).throw(pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)))
    watch.watch(FIRST)
    assert wait_until(lambda: "Library Not Found" in str(so_far(watch).missing.get("sm_clock_mhz")))
    assert so_far(watch).levels == {}


@pytest.mark.parametrize(
    ("begin_s", "end_s"), [(2.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0), (1.0, float("inf")), (1.0, 1e12), ("1", 2.0), (None, 2.0)]
)
def test_moments_that_are_none(watch, begin_s, end_s):
    watch.watch(FIRST)
    with pytest.raises(
        ValueError, match=r"^telemetry from .* to .*: wanted are two moments of time.monotonic\(\) that have been, the earlier"
    ):
        watch.during(begin_s, end_s)


@pytest.fixture
def hold(monkeypatch, tmp_path):
    """A supervisor's hold on its worker; it starts and kills no process here."""
    install(monkeypatch)
    monkeypatch.setattr(worker_hold, "start_janitor", lambda _: 0)
    for name in ("kill_marked", "kill_descendants"):
        monkeypatch.setattr(worker_hold, name, lambda *_, **__: None)
    control, events = SimpleNamespace(prefix="telemetry"), SimpleNamespace(listen=lambda _: None)
    made = worker_hold.WorkerHold(control, events, tmp_path, make_identity(0, 1, 1))
    yield made
    made.kill_everything()


def lately(hold):
    now_s = time.monotonic()
    return hold.telemetry(now_s - 2.0, now_s)


def samplers():
    return [thread for thread in threading.enumerate() if thread.name == "telemetry"]


def test_the_hold_samples_what_its_worker_opened_until_all_is_over(hold):
    assert (lately(hold), samplers()) == (None, [])
    hold.opened(FIRST)
    assert len(samplers()) == 1
    assert wait_until(lambda: lately(hold).num_samples > 0)
    hold.kill_everything()
    assert samplers() == []


def series(*samples):
    made = Series(0.05)
    for sample in samples:
        made.add(sample)
    return made


def sample(number, **changes):
    return Sample(0.05 * number, **{**dict.fromkeys(SOURCES, 1), **changes})


def test_throttling_is_told_by_its_reason_and_what_is_missing_by_its_channel():
    braked = itertools.chain((event_reasons.HW_POWER_BRAKE | 0x4000,) * 20, (0,) * 21)
    lacks = Missing(Why.NOT_SUPPORTED, "Not Supported")
    window = series(*(sample(number, event_reasons=mask, power_w=lacks) for number, mask in enumerate(braked))).window(0.0, 2.0)
    found = told(window)
    assert found.throttled_s == {"hw power brake slowdown": pytest.approx(1.0), "bits 0x4000": pytest.approx(1.0)}
    assert found.missing == {"power_w": str(lacks)}
    assert (found.reasons_held_s, found.levels["sm_clock_mhz"].held_s) == (pytest.approx(2.0), pytest.approx(2.0))
    assert (found.length_s, found.seen_s, found.num_samples) == (2.0, pytest.approx(2.0), 40)


def test_a_window_of_which_nothing_was_read_has_no_level():
    found = told(series(*(unread(0.05 * number, "x" * 1000) for number in range(21))).window(0.0, 1.0))
    assert found.levels == found.throttled_s == {}
    assert set(found.missing) >= {"sm_clock_mhz", "event_reasons"}
    assert found.mean("sm_clock_mhz") == Missing(Why.NOT_THERE, found.missing["sm_clock_mhz"])
    assert str(found.mean("fan")) == "not there (no channel fan)"


def test_a_mean_that_is_known_of_a_part_of_the_time_is_none():
    known = [sample(number) for number in range(16)]
    found = told(series(*known, *(unread(0.05 * number, "gone") for number in range(16, 21))).window(0.0, 1.0))
    assert found.seen_s == pytest.approx(1.0)
    assert found.mean("sm_clock_mhz") == Missing(Why.UNREADABLE, "sm_clock_mhz is known for 0.8 of 1.0 s")
    assert told(series(*known).window(0.0, 0.75)).mean("sm_clock_mhz") == 1.0
