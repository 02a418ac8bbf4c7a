"""Processes of others on the GPU under test: a thread of each supervisor reads twice a second who is on it, and tells ours from theirs.

Ours carry the mark of this run in their environment, or descend from a process that does (base/janitor.py): workers of all ranks of this
node, and all that they start. In a container NVML shows the processes of its own pid namespace alone (driver 580, H200): memory that
none of them holds shows the others.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_acceptance.base.janitor import belongs_to_run, marks_of_run, start_of
from gpu_acceptance.base.text import MAX_LINE, one_line, plural
from gpu_acceptance.inventory.answer import Missing, known
from gpu_acceptance.inventory.gpu import Gpu, GpuProcess
from gpu_acceptance.inventory.nvml import Asker, NoNvmlError, Occupants, library, occupants
from gpu_acceptance.record.row import MOST_FOREIGN, MOST_NAME, ForeignUse

PERIOD_S = 0.5  # one reading takes 0.1 ms (H200, driver 580)
CONFIRM_S = 1.5  # for signs that an ending process of ours leaves, too: NVML showed 23 GB of a SIGKILLed worker free within 0.9 s
LONGEST_S = 4.0  # for an answer
HIDDEN_BYTES = 256 << 20  # an idle context takes 500 MiB; what belongs to no process changed by 24 MiB under 60 GB, graphs, NCCL (H200)
GAP_S = 10.0  # without a reading; after that it is not known who else used the GPU
_DOUBT_S = 0.1
_MOST_ENDED = 100  # uses that are kept; an attempt names MOST_FOREIGN
_MPS_SERVER = "nvidia-cuda-mps"  # as /proc/PID/comm cuts it
_PATIENCE_S = 0.5
_HIDDEN = (0, b"")
_Key = tuple[int, bytes]  # pid and start


@dataclass(frozen=True)
class Use:
    """One foreign process on the GPU. Times are of time.monotonic()."""

    pid: int
    name: str
    memory_bytes: int | None
    since_s: float  # of the last reading without it
    first_s: float
    is_certain: bool
    gone_s: float | None = None


@dataclass(frozen=True)
class Target:
    """The GPU that the worker opened. `mates`: UUIDs of all GPUs of this node."""

    uuid: str
    index: int
    worker_pid: int
    mates: tuple[str, ...] = ()
    used_before: int | None = None  # bytes, before the first worker


@dataclass
class Sightings:
    """The foreign processes on one GPU, by one reading after the other. `run`: the beginning of all its marks."""

    run: str
    before: Mapping[int, bytes]  # pid -> start of processes that were there before the first worker: they were refused, or allowed
    target: Target
    own: set[_Key] = field(default_factory=set)
    formed: frozenset[int] = frozenset()  # pids on all GPUs of the node when the workers had formed
    sees_all: bool = True  # the workers of all ranks of its node: else memory that nobody holds may be theirs
    num_strangers: int = 0  # that came while workers formed, as far as only their number tells it
    ended: tuple[Use, ...] = ()
    _open: dict[_Key, Use] = field(default_factory=dict)
    _shows_ours: bool = False  # NVML's pids are those of our own namespace, and marks can be read
    last_s: float | None = None

    @property
    def open(self) -> tuple[Use, ...]:
        return tuple(self._open.values())

    @property
    def doubt(self) -> str:
        """The reason why processes of others may count as ours; empty where there is none."""
        if self._shows_ours or not self.num_strangers:
            return ""
        return f"{plural(self.num_strangers, 'process', 'processes')} more than workers came while these formed: not known whose"

    def form(self, pids: Iterable[int], target: Target, num_ranks: int) -> None:
        """Take the processes on all GPUs of the node when workers have formed: those that are new are theirs, one of each rank."""
        new = frozenset(pids) - {*self.before, *self.formed, *(use.pid for use in self.open)}
        self.target, self.formed, self.num_strangers = target, self.formed | new, max(0, len(new) - num_ranks)

    def take(self, at_s: float, found: Occupants, *, is_idle: bool) -> None:
        """Take one reading. `is_idle`: the worker of this rank is between two validations."""
        self._shows_ours |= self._lists_ours(found) and belongs_to_run(self.target.worker_pid, self.run)
        there = {(one.pid, start_of(one.pid) if self._shows_ours else b""): one for one in known(found.processes)}
        foreign = {key: one for key, one in there.items() if self._is_foreign(key, found, is_idle=is_idle)}
        if self.sees_all and (rest := self._rest(found)) > HIDDEN_BYTES:
            foreign[_HIDDEN] = GpuProcess(0, rest)
        for key, use in [*self._open.items()]:
            if key not in foreign:
                del self._open[key]
                self.ended = (*self.ended, replace(use, gone_s=at_s))[-_MOST_ENDED:] if use.is_certain else self.ended
        for key, one in foreign.items():
            self._open[key] = self._use(key, one, at_s)
        self.last_s = at_s

    def _lists_ours(self, found: Occupants) -> bool:
        return any(one.pid == self.target.worker_pid for one in known(found.processes))

    def _is_foreign(self, key: _Key, found: Occupants, *, is_idle: bool) -> bool:
        pid, start = key
        if not self._shows_ours:  # pids of another namespace: children of a validation are gone once the worker is idle
            return pid not in {*self.before, *self.formed} and (is_idle or key in self._open)
        if self.before.get(pid) == start:
            return False
        if key in self.own or (not start and any(pid == one for one, _ in self.own)):  # without a start it is ending
            return False
        if belongs_to_run(pid, self.run) or self._serves_us(pid, found):
            self.own.add(key)
            return False
        return True

    def _serves_us(self, pid: int, found: Occupants) -> bool:
        """Return True for the MPS server through which our worker works."""
        return self.target.worker_pid in found.clients and name_of(pid) == _MPS_SERVER

    def _rest(self, found: Occupants) -> int:
        """Return the bytes in use that belong neither to the driver nor to a process that NVML shows; 0 where that is not known."""
        before, used, listed = self.target.used_before, found.used_bytes, found.listed_bytes
        is_told = self._lists_ours(found) and not found.clients  # else a server holds the memory of its clients
        if not is_told or before is None or isinstance(used, Missing) or isinstance(listed, Missing):
            return 0
        return used - before - listed

    def _use(self, key: _Key, one: GpuProcess, at_s: float) -> Use:
        pid, start = key
        memory = None if isinstance(one.used_bytes, Missing) else one.used_bytes
        use = self._open.get(key)
        if use is None:
            since_s = at_s if self.last_s is None else self.last_s
            use = Use(pid, name_of(pid) if self._shows_ours else "", memory, since_s, at_s, is_certain=self._shows_ours and bool(start))
        most = max((bytes_ for bytes_ in (use.memory_bytes, memory) if bytes_ is not None), default=None)
        return replace(use, memory_bytes=most, is_certain=use.is_certain or at_s - use.first_s >= CONFIRM_S)


def name_of(pid: int) -> str:
    """Return the name of a process, on one line; empty where there is none to read."""
    try:
        return one_line(Path(f"/proc/{pid}/comm").read_text(errors="backslashreplace").rstrip("\n"))[:MOST_NAME] if pid else ""
    except OSError:
        return ""


@dataclass(frozen=True)
class _State:
    """The result of the last reading, for the main thread."""

    at_s: float
    answered: int  # the last question that it answers
    uses: tuple[Use, ...]
    gap: tuple[float, float] = (0.0, 0.0)  # the last time in which nothing was read for longer than GAP_S
    problem: str = ""

    @property
    def is_free(self) -> bool:
        return not self.problem and all(use.gone_s is not None for use in self.uses)


@dataclass(frozen=True)
class Found:
    """Foreign processes on the GPU during an attempt, or the reason why they are not known."""

    foreign: tuple[ForeignUse, ...] = ()
    unwatched: str = ""


class ProcessWatch:
    """Reads who is on the GPU that the worker opened, from then on until `end`. `wake_fd` is readable when an answer is there.

    NVML may hang: only its thread waits then. Nothing is found out on a CPU.
    """

    def __init__(self, run: str, num_ranks: int, gpus: tuple[Gpu, ...]) -> None:
        self.wake_fd, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._run, self._num_ranks, self._gpus = run, num_ranks, gpus
        self._before = {one.pid: start_of(one.pid) for gpu in gpus if gpu.use for one in known(gpu.use.processes)}
        self._began_s = time.monotonic()
        self._target: Target | None = None
        self._unlisted = ""  # why a GPU that was opened cannot be read
        self._state = _State(self._began_s, 0, ())
        self._asked, self._asked_s, self._is_late, self._is_idle = 0, 0.0, False, False
        self._sightings: Sightings | None = None  # of the thread alone; an error does not end them
        self._is_awaited = threading.Event()
        self._should_stop = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, uuid: str, worker_pid: int) -> None:
        """Read this GPU from now on; empty: none. Call it whenever workers have formed: they are on their GPUs then."""
        gpu = next((one for one in self._gpus if one.uuid == uuid), None)
        self._target = None
        self._unlisted = f"NVML does not list the GPU {one_line(uuid)[:MOST_NAME]}: nothing tells who uses it" if uuid and not gpu else ""
        if gpu is None or not uuid:
            return
        used = gpu.use.used_bytes if gpu.use else None
        mates = tuple(one.uuid for one in self._gpus if one.uuid)
        self._target = Target(uuid, gpu.index, worker_pid, mates, None if isinstance(used, Missing) else used)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, daemon=True, name="processes")
            self._thread.start()

    def ask(self, *, is_idle: bool) -> None:
        """Request a reading at the end of an attempt. `is_idle`: the worker is there, and does nothing."""
        self._is_late, self._is_idle = self._state.answered < self._asked, is_idle
        self._asked, self._asked_s = self._asked + 1, time.monotonic()
        self._is_awaited.set()

    def found(self, begin_s: float, *, at_once: bool = False) -> Found | None:
        """Return who else was there from `begin_s` to the last question; None while that is not known, for LONGEST_S at most."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_fd, 64)
        state, target, now = self._state, self._target, time.monotonic()
        if target is None:
            return Found(unwatched=self._unlisted)
        problem = ""
        if state.answered < self._asked:
            if not (at_once or self._is_late or now - self._asked_s > LONGEST_S):
                return None
            problem = state.problem or f"nothing told in time who uses GPU {target.index}"
        elif state.gap[1] > begin_s:
            problem = f"nothing told for {state.gap[1] - state.gap[0]:.0f} s who uses GPU {target.index}"
        uses = [one for one in state.uses if one.is_certain and one.since_s <= self._asked_s and (one.gone_s or now) >= begin_s]
        return Found(tuple(self._record(one, target.index) for one in uses[-MOST_FOREIGN:]), problem[:MAX_LINE])

    def is_free(self, since_s: float) -> bool:
        """Return True where a reading after this moment found no other process; likewise on a CPU."""
        return not self._unlisted and (self._target is None or (self._state.at_s > since_s and self._state.is_free))

    def end(self) -> None:
        self._should_stop.set()
        self._is_awaited.set()
        if self._thread:
            self._thread.join(_PATIENCE_S)

    def _record(self, use: Use, index: int) -> ForeignUse:
        begin_s, end_s = (max(0.0, at_s - self._began_s) for at_s in (use.since_s, use.gone_s or self._asked_s))
        memory = None if use.memory_bytes is None else max(0, use.memory_bytes)
        return ForeignUse(
            gpu=index, pid=use.pid, name=use.name, memory_bytes=memory, from_s=round(begin_s, 3), to_s=round(max(begin_s, end_s), 3)
        )

    # --- the thread ----------------------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Read until the end; whatever goes wrong is the reason why it is not known who uses the GPU."""
        while not self._should_stop.is_set():
            try:
                with library() as pynvml:
                    self._read_on(Asker(pynvml))
            except NoNvmlError as error:
                self._fail(str(error))
            except Exception as error:  # of any kind: the next reading is wanted too
                self._fail(f"{type(error).__name__} while the processes on the GPU were read: {error}")
            self._should_stop.wait(PERIOD_S)

    def _fail(self, problem: str) -> None:
        self._state = replace(self._state, at_s=time.monotonic(), problem=problem)

    def _read_on(self, asker: Asker) -> None:
        while not self._should_stop.is_set():
            asked, target = self._asked, self._target
            if target is not None:
                self._sightings = self._sightings_of(asker, target)
                self._look(asker, self._sightings, asked)
            self._is_awaited.clear()
            if asked == self._asked:
                self._is_awaited.wait(PERIOD_S if self._state.answered == asked else _DOUBT_S)

    def _sightings_of(self, asker: Asker, target: Target) -> Sightings:
        now = self._sightings
        if now is not None and now.target is target:
            return now
        on_all = [occupants(asker, asker.handle(uuid)) for uuid in target.mates]
        formed = {one.pid for each in on_all for one in known(each.processes)}
        if now is None or now.target.uuid != target.uuid:
            now = Sightings(self._run, self._before, target)
        now.form(formed, target, self._num_ranks)
        now.sees_all = len(marks_of_run(self._run)) >= self._num_ranks
        return now

    def _look(self, asker: Asker, sightings: Sightings, asked: int) -> None:
        at_s = time.monotonic()
        found = occupants(asker, asker.handle(sightings.target.uuid))
        if isinstance(found.processes, Missing):
            self._fail(f"who uses GPU {sightings.target.index} is {found.processes}")
            return
        before = self._state
        last_s = sightings.last_s
        sightings.take(at_s, found, is_idle=self._is_idle and before.answered < asked)
        if sightings.doubt:
            self._fail(sightings.doubt)
            return
        answered = asked if all(use.is_certain for use in sightings.open) else before.answered
        gap = before.gap if last_s is None or at_s - last_s < GAP_S else (last_s, at_s)
        self._state = _State(at_s, answered, (*sightings.ended, *sightings.open), gap)
        if answered != before.answered:
            with contextlib.suppress(BlockingIOError):  # full: the supervisor is awake
                os.write(self._wake_write, b"!")
