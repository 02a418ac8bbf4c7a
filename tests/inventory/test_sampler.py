"""A thread that samples over a stand-in for NVML: on time, past what fails, and left behind where the driver hangs."""

import ctypes
import itertools
import re
import threading
import time
from types import SimpleNamespace

import pynvml
import pytest
from inventory.fake_nvml import FIELDS, fields, install, out
from waiting import wait_until

from gpu_acceptance.inventory import telemetry_sampler
from gpu_acceptance.inventory import telemetry_sampler as sampler_module
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.telemetry import GAP_PERIODS
from gpu_acceptance.inventory.telemetry_sampler import Sampler

FIRST, SECOND = (f"GPU-0000000{n}-0000-4000-8000-00000000000{n}" for n in (1, 2))
PERIOD_S = 0.01


class Nvml:
    """It hangs and breaks on demand; `asked` counts the samples."""

    def __init__(self, monkeypatch):
        self.asked = 0
        self.error = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        install(monkeypatch, nvmlDeviceGetFieldValues=self._fields)

    def _fields(self, *arguments):
        self.asked += 1
        assert self.may_answer.wait(60)
        if self.error:
            raise self.error
        return fields(FIELDS)(*arguments)


@pytest.fixture
def nvml(monkeypatch):
    made = Nvml(monkeypatch)
    yield made
    made.may_answer.set()


@pytest.fixture
def started(nvml):
    """Samplers that are stopped at the end, whatever happens."""
    made = []

    def start(uuid=FIRST, period_s=PERIOD_S):
        sampler = Sampler(uuid, period_s=period_s)
        sampler.start()
        made.append(sampler)
        return sampler

    yield start
    nvml.may_answer.set()
    for sampler in made:
        sampler.stop(60)


def num_samples(sampler):
    return sampler.window(0.0, time.monotonic() + 60).num_samples


def test_it_samples_until_it_is_stopped(started):
    begin_s = time.monotonic()
    sampler = started()
    assert wait_until(lambda: num_samples(sampler) >= 20)
    sampled = sampler.stop(60)
    end_s = time.monotonic()
    window = sampled.series.window(begin_s, end_s)
    assert (sampled.problem, sampled.failures) == ("", {})
    assert 20 <= sampled.series.num_samples <= (end_s - begin_s) / PERIOD_S + 1
    assert window.spans["sm_clock_mhz"].mean == 345
    assert 0 < sampled.cpu_s < end_s - begin_s
    assert not sampler._thread.is_alive()


class Clock:
    """Time passes where somebody waits, and while NVML answers: `reading_s` each, by turns. It ends after a second."""

    def __init__(self, nvml, monkeypatch, reading_s):
        self.now_s, self.reading_s = 0.0, itertools.cycle(reading_s)
        for module in (sampler_module, telemetry_sampler):
            monkeypatch.setattr(
                module, "time", SimpleNamespace(monotonic=lambda: self.now_s, thread_time=time.thread_time, sleep=time.sleep)
            )
        answer = nvml._fields
        install(monkeypatch, nvmlDeviceGetFieldValues=lambda *arguments: self._read(answer, *arguments))

    def _read(self, answer, *arguments):
        self.now_s += next(self.reading_s)
        return answer(*arguments)

    def wait(self, seconds):
        self.now_s += seconds
        return self.now_s >= 1.0


def times_of(nvml, monkeypatch, reading_s):
    clock = Clock(nvml, monkeypatch, reading_s)
    sampler = Sampler(FIRST, period_s=0.05)
    sampler._should_stop = clock
    sampler._run()
    times = [one.begin_s for one in sampler._series.bins()]
    return [round(at_s - times[0], 6) for at_s in times]


def test_a_reading_that_takes_its_time_moves_none_after_it(nvml, monkeypatch):
    times = times_of(nvml, monkeypatch, [0.03])
    assert times == [round(number * 0.05, 6) for number in range(len(times))]
    assert len(times) == 20


def test_samples_that_a_long_reading_ran_over_are_left_out_and_not_made_up_for(nvml, monkeypatch):
    times = times_of(nvml, monkeypatch, [0.0, 0.12, 0.0])
    assert times[:5] == [0.0, 0.15, 0.2, 0.25, 0.4]  # in turns: 0.12 s, none, none


def test_each_sampler_reads_its_own_gpu(started, monkeypatch):
    def temperature(device, _sensor, target):
        return out(40 + ctypes.cast(device, ctypes.c_void_p).value)(device, target)

    install(monkeypatch, nvmlDeviceGetTemperature=temperature)
    one, other = started(FIRST), started(SECOND)
    assert wait_until(lambda: one.latest() and other.latest())
    assert [sampler.latest().gpu_temperature_c for sampler in (one, other)] == [41, 42]


def test_a_driver_that_hangs_is_not_waited_for(started, nvml):
    sampler = started()
    assert wait_until(lambda: num_samples(sampler) >= 2)
    nvml.may_answer.clear()
    asked = nvml.asked
    assert wait_until(lambda: nvml.asked > asked)
    before = num_samples(sampler)
    time.sleep(GAP_PERIODS * PERIOD_S * 2)
    now = time.monotonic()
    assert sampler.window(now - GAP_PERIODS * PERIOD_S * 2, now).longest_pause.length_s > GAP_PERIODS * PERIOD_S
    sampled = sampler.stop(patience_s=0.2)
    said = re.fullmatch(r"NVML has not answered for (\d+\.\d) s: the thread that asked is left behind", sampled.problem)
    assert said
    assert float(said[1]) >= 0.2
    nvml.may_answer.set()
    sampler._thread.join(60)
    assert sampled.series.num_samples == before  # what came late is not added to what was given away


def test_a_driver_that_hangs_for_a_while_leaves_a_gap(started, nvml):
    sampler = started()
    assert wait_until(lambda: num_samples(sampler) >= 2)
    nvml.may_answer.clear()
    asked = nvml.asked
    assert wait_until(lambda: nvml.asked > asked)
    time.sleep(0.2)
    nvml.may_answer.set()
    before = num_samples(sampler)
    assert wait_until(lambda: num_samples(sampler) > before + 5)
    bins = sampler.stop(60).series.bins()
    assert max(one.longest_pause.length_s for one in bins) >= 0.2


def test_a_reading_that_breaks_is_counted_and_the_next_one_counts(started, nvml):
    sampler = started()
    assert wait_until(sampler.latest)
    nvml.error = RuntimeError("no such thing")
    why = Missing(Why.UNREADABLE, "RuntimeError while a sample was read: no such thing")
    assert wait_until(lambda: sampler.latest() and sampler.latest().sm_clock_mhz == why)
    nvml.error = None
    assert wait_until(lambda: sampler.latest() and sampler.latest().sm_clock_mhz == 345)
    assert sampler.stop(60).failures["sample"] >= 1


def test_without_a_driver_it_says_so(monkeypatch):
    install(monkeypatch, nvmlInitWithFlags=lambda _flags: pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    begin_s = time.monotonic()
    sampler = Sampler(FIRST)
    sampler.start()
    sampled = sampler.stop(60)
    assert sampled.problem == "NVML does not start: Driver Not Loaded"
    window = sampled.series.window(begin_s, begin_s + 60)
    assert window.spans["sm_clock_mhz"] == Missing(Why.UNREADABLE, "NVML does not start: Driver Not Loaded")


@pytest.mark.parametrize("period_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_period_that_cannot_be(period_s):
    with pytest.raises(ValueError, match=r"period_s=.*: a finite number of seconds above 0"):
        Sampler(FIRST, period_s=period_s)


def test_what_breaks_before_the_first_sample_is_told(started, monkeypatch):
    def breaks(*_, **__):
        raise KeyError("a bug")

    monkeypatch.setattr(sampler_module, "open_reader", breaks)
    sampler = started()
    assert wait_until(lambda: sampler.latest())
    sampled = sampler.stop(60)
    assert sampled.problem == "KeyError when the GPU was opened: 'a bug'"
    assert sampler.latest().sm_clock_mhz == Missing(Why.UNREADABLE, sampled.problem)
