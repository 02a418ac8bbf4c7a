"""Processes of others on a GPU: told from ours by their marks, by memory that nobody holds, and at last by when they came."""

import os
import re
import select
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from inventory.fake_nvml import UUIDS, GiB, MiB, fails, fill, install, processes
from waiting import wait_until

from gpu_acceptance.base.janitor import MARK, belongs_to_run, marks_of_run, start_of
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.gpu import Gpu, GpuProcess, GpuUse
from gpu_acceptance.inventory.nvml import Occupants
from gpu_acceptance.supervisor import process_watch
from gpu_acceptance.supervisor.process_watch import CONFIRM_S, ProcessWatch, Sightings, Target, name_of

RUN = f"gpu-acceptance/test-{os.getpid()}-"
IDLE = 616 * MiB
UNKNOWN = Missing(Why.NOT_SUPPORTED)


@pytest.fixture
def start():
    """Starts `sleep`, or a shell command, with these variables."""
    started = []

    def begin(command="exec sleep 600", **variables):
        process = subprocess.Popen(["sh", "-c", command], env={"PATH": os.environ["PATH"], **variables}, start_new_session=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        os.killpg(process.pid, 9)
        process.wait()


@pytest.fixture
def worker(start):
    return start(**{MARK: f"{RUN}0-1-aa"})


def on_gpu(*pids, used=None, clients=(), rest=0):
    """Processes with 500 MiB each, or with the memory that stands beside their pid."""
    found = tuple(GpuProcess(*(one if isinstance(one, tuple) else (one, 500 * MiB))) for one in pids)
    listed = sum(0 if isinstance(one.used_bytes, Missing) else one.used_bytes for one in found)
    return Occupants(found, frozenset(clients), IDLE + listed + rest if used is None else used, listed)


def sightings(worker, **changes):
    return replace(Sightings(RUN, {}, Target(UUIDS[0], 0, worker.pid, UUIDS, IDLE)), **changes)


def seen(watched, *looks, is_idle=False):
    """Takes a reading each half second, and returns the pids that are there for certain, and those in doubt."""
    begin_s = 10.0 if watched.last_s is None else watched.last_s + 0.5
    for number, look in enumerate(looks):
        watched.take(begin_s + 0.5 * number, look, is_idle=is_idle)
    return {use.pid for use in watched.open if use.is_certain}, {use.pid for use in watched.open if not use.is_certain}


def test_a_process_without_our_mark_is_foreign_at_once_and_has_a_name_and_a_time(worker, start):
    watched, other = sightings(worker), start()
    assert seen(watched, on_gpu(worker.pid)) == (set(), set())
    assert seen(watched, on_gpu(worker.pid, (other.pid, GiB)), on_gpu(worker.pid, (other.pid, 2 * GiB))) == ({other.pid}, set())
    (use,) = watched.open
    wait_until(lambda: name_of(other.pid) == "sleep")
    assert (use.memory_bytes, use.since_s, use.first_s) == (2 * GiB, 10.0, 10.5)
    assert seen(watched, on_gpu(worker.pid)) == (set(), set())
    assert [one.gone_s for one in watched.ended] == [11.5]


def test_workers_of_other_ranks_and_all_that_they_start_are_ours(worker, start):
    mate = start(**{MARK: f"{RUN}1-2-bb"})
    parent = start(f"env -u {MARK} sleep 600; true", **{MARK: f"{RUN}0-1-aa"})
    wait_until(lambda: children_of(parent.pid))
    (child,) = children_of(parent.pid)
    wait_until(lambda: name_of(child) == "sleep")
    assert seen(sightings(worker), on_gpu(worker.pid, mate.pid, child)) == (set(), set())
    assert belongs_to_run(child, RUN)
    assert not belongs_to_run(child, "gpu-acceptance/another-")
    assert not belongs_to_run(os.getpid(), RUN)
    assert marks_of_run(RUN) == {f"{RUN}0-1-aa", f"{RUN}1-2-bb"}


def children_of(pid):
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_one_of_ours_that_ends_is_never_accused(worker, start):
    """As a zombie that was seen before, as one that was not, and once nothing of it is left in /proc."""
    watched, known_one, short = sightings(worker), start(**{MARK: f"{RUN}1-2-bb"}), start("exit", **{MARK: f"{RUN}1-2-cc"})
    assert seen(watched, on_gpu(worker.pid, known_one.pid)) == (set(), set())
    known_one.kill()
    wait_until(lambda: start_of(known_one.pid) == b"" and start_of(short.pid) == b"")
    assert seen(watched, on_gpu(worker.pid, known_one.pid)) == (set(), set())
    assert seen(watched, on_gpu(worker.pid, short.pid)) == (set(), {short.pid})  # for the time that a kernel takes to end one
    assert seen(watched, on_gpu(worker.pid)) == (set(), set())
    assert watched.ended == ()


def test_a_process_that_proc_does_not_show_is_foreign_once_it_stays(worker):
    watched, hidden = sightings(worker), 4_194_300  # hidepid=2, or of a namespace above
    looks = [on_gpu(worker.pid, hidden)] * (2 + int(CONFIRM_S / 0.5))
    assert seen(watched, *looks) == ({hidden}, set())


def test_what_was_there_before_the_run_was_refused_or_allowed(worker, start):
    other = start()
    assert seen(sightings(worker, before={other.pid: start_of(other.pid)}), on_gpu(worker.pid, other.pid)) == (set(), set())
    assert seen(sightings(worker, before={other.pid: b"1"}), on_gpu(worker.pid, other.pid)) == ({other.pid}, set())  # a pid that came again


def test_memory_that_nobody_holds_shows_what_a_container_hides(worker):
    hidden = on_gpu(worker.pid, rest=874 * MiB)
    watched = sightings(worker)
    assert seen(watched, on_gpu(worker.pid, rest=24 * MiB), hidden, hidden) == (set(), {0})
    assert seen(watched, hidden, hidden) == ({0}, set())
    assert [(use.pid, use.name, use.memory_bytes) for use in watched.open] == [(0, "", 874 * MiB)]


@pytest.mark.parametrize(
    "changes",
    [{"rest": 9 * GiB, "clients": (77,)}, {"used": UNKNOWN}, {"rest": 200 * MiB}],
    ids=["MPS holds it", "memory is unknown", "a driver"],
)
def test_memory_that_may_be_ours_accuses_nobody(worker, changes):
    assert seen(sightings(worker), *[on_gpu(worker.pid, **changes)] * 6) == (set(), set())


def test_nor_does_memory_where_workers_of_other_ranks_are_hidden_or_ours_is_gone(worker):
    hidden = on_gpu(worker.pid, rest=9 * GiB)
    assert seen(sightings(worker, sees_all=False), *[hidden] * 6) == (set(), set())
    watched = sightings(worker)
    assert seen(watched, on_gpu(worker.pid), *[on_gpu(rest=9 * GiB)] * 6) == (set(), set())


def test_the_mps_server_that_works_for_us_is_ours(worker, start, monkeypatch):
    server = start()
    monkeypatch.setattr(process_watch, "name_of", lambda pid: "nvidia-cuda-mps" if pid == server.pid else "")
    assert seen(sightings(worker), on_gpu(server.pid, worker.pid, clients=(worker.pid,))) == (set(), set())
    assert seen(sightings(worker), on_gpu(server.pid, worker.pid)) == ({server.pid}, set())  # ours is no client of it


def test_pids_of_another_namespace_count_once_the_worker_is_idle(worker):
    """None of them is our worker's: what was there when workers formed is ours, and so may be what comes while one works."""
    watched, ours, other = sightings(worker, formed=frozenset({900_001})), 900_001, 900_002
    assert seen(watched, on_gpu(ours), *[on_gpu(ours, other)] * 6) == (set(), set())
    assert seen(watched, *[on_gpu(ours, other)] * 5, is_idle=True) == ({other}, set())
    assert seen(watched, on_gpu(ours, other)) == ({other}, set())
    assert seen(watched, on_gpu(ours)) == (set(), set())


def test_where_marks_cannot_be_read_nobody_is_accused_while_a_worker_works(start):
    """A Python with capabilities of its own hides its environment."""
    unmarked = start()
    watched, other = sightings(unmarked, formed=frozenset({unmarked.pid}), sees_all=False), start()
    assert seen(watched, *[on_gpu(unmarked.pid, other.pid, rest=9 * GiB)] * 6) == (set(), set())
    assert seen(watched, *[on_gpu(unmarked.pid, other.pid)] * 5, is_idle=True) == ({other.pid}, set())


def test_where_no_process_is_shown_nobody_is_accused(worker):
    assert seen(sightings(worker), *[on_gpu(rest=9 * GiB)] * 8, is_idle=True) == (set(), set())


def test_a_reading_that_fails_is_no_sign_that_a_process_went(worker, start):
    failed = Occupants(UNKNOWN, frozenset(), UNKNOWN, UNKNOWN)
    assert seen(sightings(worker), failed) == (set(), set())


# --- the thread -------------------------------------------------------------------------------------------------------------------


class Nvml:
    """Its processes can be set, and it hangs on demand."""

    def __init__(self, monkeypatch):
        self.found = processes()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.install = lambda **more: install(monkeypatch, nvmlDeviceGetComputeRunningProcesses_v3=self._list, **more)
        self.install()

    def _list(self, *arguments):
        assert self.may_answer.wait(60)
        return self.found(*arguments)


@pytest.fixture
def nvml(monkeypatch):
    made = Nvml(monkeypatch)
    yield made
    made.may_answer.set()


@pytest.fixture
def idle(nvml):
    """A watch that reads nothing yet."""
    gpus = tuple(Gpu(index=index, name="NVIDIA H200", uuid=uuid, use=GpuUse((), 616 * MiB)) for index, uuid in enumerate(UUIDS))
    made = ProcessWatch(RUN, 1, gpus)
    yield made
    nvml.may_answer.set()
    made.end()


@pytest.fixture
def watch(idle, nvml, worker):
    nvml.found = processes((worker.pid, 500 * MiB))
    idle.watch(UUIDS[1], worker.pid)
    return idle


def answer(watch, begin_s=0.0):
    end = time.monotonic() + 60
    while (found := watch.found(begin_s)) is None:
        assert time.monotonic() < end
        select.select([watch.wake_fd], [], [], 0.05)
    return found


def test_the_end_of_an_attempt_is_read_and_names_who_was_there_meanwhile(watch, nvml, worker, start):
    watch.ask(is_idle=True)
    assert answer(watch) == process_watch.Found()
    other = start()
    wait_until(lambda: name_of(other.pid) == "sleep")
    asked_s = time.monotonic()
    nvml.found = processes((worker.pid, 500 * MiB), (other.pid, 1204 * MiB))
    watch.ask(is_idle=True)
    (used,) = answer(watch).foreign
    assert (used.gpu, used.pid, used.name, used.memory_bytes) == (1, other.pid, "sleep", 1204 * MiB)
    assert 0 <= used.from_s <= used.to_s
    assert not watch.is_free(asked_s)
    nvml.found = processes((worker.pid, 500 * MiB))
    wait_until(lambda: watch.is_free(asked_s))
    begin_s = time.monotonic()
    watch.ask(is_idle=True)
    assert answer(watch, begin_s).foreign == ()
    assert len(answer(watch, asked_s).foreign) == 1


def test_a_driver_that_hangs_holds_nobody_up_for_long_and_is_told(watch, nvml, monkeypatch):
    monkeypatch.setattr(process_watch, "LONGEST_S", 0.3)
    nvml.may_answer.clear()
    time.sleep(0.7)
    watch.ask(is_idle=True)
    assert answer(watch) == process_watch.Found((), "nothing told in time who uses GPU 1")
    watch.ask(is_idle=True)
    assert watch.found(0.0).unwatched  # at once: it still hangs
    assert not watch.is_free(time.monotonic())


def test_a_driver_that_does_not_tell_is_named(watch, nvml, monkeypatch):
    monkeypatch.setattr(process_watch, "LONGEST_S", 0.7)
    nvml.found = fails(pynvml.NVML_ERROR_NO_PERMISSION)
    time.sleep(0.6)
    watch.ask(is_idle=True)
    assert answer(watch).unwatched.startswith("who uses GPU 1 is not permitted (nvmlDeviceGetComputeRunningProcesses: ")


def test_a_time_without_a_reading_is_told(watch, nvml, monkeypatch):
    watch.ask(is_idle=True)
    answer(watch)
    monkeypatch.setattr(process_watch, "GAP_S", 0.8)
    nvml.may_answer.clear()
    time.sleep(1.6)
    nvml.may_answer.set()
    watch.ask(is_idle=True)
    assert re.fullmatch(r"nothing told for \d s who uses GPU 1", answer(watch).unwatched)
    assert answer(watch, time.monotonic()).unwatched == ""


@pytest.mark.parametrize("stays", [True, False])
def test_who_came_while_workers_formed_is_not_known_where_only_their_number_tells(idle, nvml, worker, stays):
    """NVML shows pids of another namespace."""
    watch, first, second, other = idle, 900_001, 900_002, 900_777
    nvml.found = processes((first, 500 * MiB))
    watch.watch(UUIDS[1], worker.pid)
    watch.ask(is_idle=True)
    assert answer(watch) == process_watch.Found()
    nvml.found = processes((second, 500 * MiB), *[(other, 20 * GiB)] * stays)
    watch.watch(UUIDS[1], worker.pid)
    watch.ask(is_idle=True)
    doubt = "1 process more than workers came while these formed: not known whose" if stays else ""
    assert answer(watch) == process_watch.Found(unwatched=doubt)


def test_a_gpu_that_nvml_does_not_list_is_not_watched_and_that_is_told(worker):
    watch = ProcessWatch(RUN, 1, ())
    watch.watch("MIG-7", worker.pid)
    watch.ask(is_idle=True)
    assert watch.found(0.0).unwatched == "NVML does not list the GPU MIG-7: nothing tells who uses it"
    assert not watch.is_free(0.0)


def test_without_a_gpu_nothing_is_read(worker):
    watch = ProcessWatch(RUN, 1, ())
    watch.watch("", worker.pid)
    watch.ask(is_idle=True)
    assert watch.found(0.0) == process_watch.Found()
    assert watch.is_free(time.monotonic())
    watch.end()


def test_memory_may_grow_between_two_answers_of_nvml(watch, nvml, worker):
    """The memory is read between two lists of processes."""
    lists = iter([100 * MiB, 900 * MiB] * 1000)
    nvml.install(nvmlDeviceGetMemoryInfo=fill(total=GiB, used=(616 + 900) * MiB, free=0))

    def growing(device, count, array):
        if array is None:
            return processes((worker.pid, 1))(device, count, array)
        return processes((worker.pid, next(lists)))(device, count, array)

    nvml.found = growing
    time.sleep(0.2)
    for _ in range(4):
        watch.ask(is_idle=True)
        assert answer(watch).foreign == ()
