"""A whole run in one process: every rank with the real modules from hello to bye, in a virtual outside world.

Time and threads, the launcher and its store, signals, rank workers and the inventory are virtual. The disk is a folder.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from judging import make_identity, make_limit, make_profile
from virtual.outside import VirtualRelays, VirtualSignals, VirtualStore, virtual_queue, virtual_selectors, virtual_threading
from virtual.schedule import Schedule
from virtual.worker import Group, VirtualWorker

from gpu_acceptance.base import budget
from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.control import broadcast, control, fan_in, heartbeats, session
from gpu_acceptance.control.control import ControlError
from gpu_acceptance.control.rank import TORCHRUN, USAGE, Rank, RefusedError, interrupted
from gpu_acceptance.control.secret import Secret
from gpu_acceptance.run import joining, run, starting
from gpu_acceptance.run.collecting import Collected
from gpu_acceptance.run.run import Run
from gpu_acceptance.run.settings import Settings
from gpu_acceptance.supervisor import attempt_state, generation_attempt, leader, rank_attempt, standby, supervisor, worker_slot
from gpu_acceptance.supervisor.leader import Validation
from gpu_acceptance.verdict.reasons import FORMATION

DEADLINE_S = 6.0  # of a validation and of a formation
# modules that read a clock
_TIMED = (
    *(attempt_state, budget, control, generation_attempt, joining, leader),
    *(session, fan_in, heartbeats, rank_attempt, standby, supervisor),
)
RUN_ID = "20261120-070000-ab12"
SECRET = Secret(b"of this run", is_of_run=True)


@dataclass(frozen=True)
class Shape:
    """The parts of a run."""

    seed: int = 0
    world_size: int = 2
    num_nodes: int = 1
    shared_disk: bool = True
    validations: tuple[Validation, ...] = ()
    confirm: int = 0
    expected_s: float | None = None  # of each validation
    collectives_tell: bool = True  # a collective ends with an error where a peer died (gloo); else never (NCCL)
    launcher_kills: bool = True  # torchrun sends SIGTERM to the ranks of a node of which one failed, and SIGKILL 30 s later

    @property
    def ranks_per_node(self) -> int:
        return self.world_size // self.num_nodes

    def node_of(self, rank: int) -> int:
        return rank // self.ranks_per_node


def validations(*changes: dict[str, Any]) -> tuple[Validation, ...]:
    return tuple(
        Validation(**{"nodeid": f"acceptance/test_v{number}.py::test_v{number}", "deadline_s": DEADLINE_S, **change})
        for number, change in enumerate(changes)
    )


@dataclass(frozen=True)
class Fired:
    """A fault that happened: when, on which rank, and where in the run."""

    at: float
    rank: int
    nodeid: str
    attempt: int
    phase: str
    kind: str


@dataclass
class RankEnd:
    """The end of the process of one rank."""

    at: float
    exit_code: int
    lines: tuple[str, ...]


@dataclass
class World:
    """One run of virtual ranks. `faults` will happen, by rank, node id, attempt and phase."""

    shape: Shape
    folder: Path
    faults: dict[tuple[int, str, int, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.schedule = Schedule(self.shape.seed)
        self.store = VirtualStore(self.schedule)
        self.began = self.schedule.now
        self.fired: list[Fired] = []
        self.done: set[tuple[int, str]] = set()  # rank and phase that ended as they should
        self.ends: dict[int, RankEnd] = {}
        self.killed: dict[int, float] = {}
        self.killed_by_launcher: list[int] = []
        self.stopped: dict[int, float] = {}  # when it got its first signal
        self.cut_s: Counter[int] = Counter()  # for how long it was cut off from the store
        self.store_gone_at: float | None = None
        self.busy_s: Counter[int] = Counter()  # for how long its main thread was in foreign code, and deaf
        self._busy_next_s: Counter[int] = Counter()
        self.runs: dict[int, Run] = {}
        self.signals: dict[int, VirtualSignals] = {}
        self.controls: list[Any] = []
        self._tries: Counter[tuple[int, str]] = Counter()
        self._groups: dict[str, Group] = {}
        self._workers: list[VirtualWorker] = []
        self._tasks: dict[int, Any] = {}
        self._patch = pytest.MonkeyPatch()
        self._replace_the_outside()
        for rank in range(self.shape.world_size):
            self._tasks[rank] = self.schedule.start(lambda rank=rank: self._process(rank), rank)

    @property
    def live(self) -> list[int]:
        return [rank for rank in range(self.shape.world_size) if rank not in self.killed and rank not in self.ends]

    def advance(self, seconds: float) -> None:
        self.schedule.wait(lambda: not self.live, seconds)

    def run_to_the_plan(self) -> None:
        """Run until all ranks have agreed on the plan."""
        self.schedule.wait(lambda: len(self.runs) == self.shape.world_size and all(run.plan for run in self.runs.values()), 10.0)

    def run_next(self) -> None:
        """Run until the next verdict is announced, or the run is over."""
        told = self._num_verdicts
        self.schedule.wait(lambda: not self.live or self._num_verdicts > told, 1000.0)

    def finish(self, within_s: float) -> None:
        self.schedule.wait(lambda: not self.live, within_s)

    def kill(self, rank: int) -> None:
        """SIGKILL a supervisor; its worker goes with it."""
        if rank in self.live:
            self.killed[rank] = self.schedule.now
            self._gone(rank, failed=True)

    def kill_node(self, node: int) -> None:
        for rank in self._ranks_of(node):
            self.kill(rank)
        if node == 0:
            self.lose_store()

    def signal(self, rank: int, number: int = signal.SIGTERM) -> None:
        if rank in self.live and rank in self.signals and not self.signals[rank].ignored:
            self.stopped.setdefault(rank, self.schedule.now)
            if number == signal.SIGINT and self.signals[rank].interrupted:
                self.kill(rank)  # a second SIGINT ends it at once
            else:
                self.signals[rank].send(number)

    def cut_off(self, rank: int, seconds: float) -> None:
        """Cut its way to the store for so long."""
        if rank in self.live and rank not in self.store.cut_off:
            self.cut_s[rank] += seconds
            self.store.cut_off.add(rank)
            self.schedule.call_later(seconds, lambda: self.store.heal(rank))

    def keep_busy(self, rank: int, seconds: float) -> None:
        """Let a hook of its pytest take so long, after the validation in progress; its heartbeats go on."""
        self._busy_next_s[rank] += seconds

    def lose_store(self) -> None:
        if self.live and not self.store.gone:
            self.store_gone_at = self.schedule.now
            self.store.gone = True

    def take(self, rank: int, nodeid: str, phase: str) -> str:
        if phase in {"start", "setup", "end"}:
            self._tries[rank, nodeid] += 1
            self.done -= {(rank, nodeid)}
        attempt = self._tries[rank, nodeid] + (phase == "before")
        kind = self.faults.get((rank, nodeid, attempt, phase), "")
        if kind:
            self.fired.append(Fired(self.schedule.now, rank, nodeid, attempt, phase, kind))
        return kind

    def completed(self, rank: int, nodeid: str) -> None:
        self.done.add((rank, nodeid))

    def group(self, prefix: str) -> Group:
        return self._groups.setdefault(prefix, Group(self.schedule, self.shape.world_size, self.shape.collectives_tell))

    def run_folder(self, rank: int) -> Path:
        return self._reports(rank) / RUN_ID

    def journals(self, rank: int) -> list[Path]:
        """Return the journals of one rank, in any folder of its node: where ranks did not meet it may have named that itself."""
        return sorted(self._reports(rank).glob(f"*/journal/rank-{rank:05d}.jsonl"))

    @property
    def run_folders(self) -> list[Path]:
        """The run folders, each once, in the order of ranks."""
        return list(dict.fromkeys(self.run_folder(rank) for rank in range(self.shape.world_size)))

    @property
    def crashes(self) -> dict[int, BaseException]:
        return {rank: task.crash for rank, task in self._tasks.items() if task.crash}

    def close(self) -> None:
        self.schedule.end()
        for worker in self._workers:
            worker.close()
        for one in self.runs.values():
            if one.supervisor.records.journal:
                one.supervisor.records.journal.close()
            one.supervisor.selector.close()
            if one.supervisor.slot:
                for watch in (one.supervisor.slot._counters, one.supervisor.slot.processes):
                    os.close(watch.wake_fd)
                    os.close(watch._wake_write)
        for one in self.controls:
            os.close(one.wake_fd)
        for signals in self.signals.values():
            signals.close()
        self._patch.undo()

    def _process(self, rank: int) -> None:
        """Do as the hooks of plugin.py."""
        place = self._place(rank)
        try:
            one = self.runs[rank] = starting.start_run(self._settings(rank), place, None, say=lambda _line: None)
        except RefusedError as error:
            return self._exit(rank, error.exit_code, str(error))
        except ControlError as error:
            return self._exit(rank, USAGE, str(error))
        try:
            self._session(one)
        except RefusedError:
            pass
        except ControlError as error:
            one.go_wrong(str(error))
        if one.plan is None:
            stopped = one.supervisor.stop_signals.reason
            early = RefusedError(one.problem or "pytest stopped before it had collected", one.exit_code(3))
            one.withdraw(interrupted(stopped) if stopped else early)
        else:
            one.finish()
        code, lines = one.exit_code(0), one.last_lines
        one.leave()
        return self._exit(rank, code, *lines)

    def _session(self, one: Run) -> None:
        config = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugins=list))
        facts = {"path": Path("x.py"), "config": config, "fixturenames": [], "get_closest_marker": lambda _name: None}
        items = [SimpleNamespace(nodeid=validation.nodeid, validation=validation, **facts) for validation in self._validations]
        order = one.agree(Collected(items=items), self.folder, self.folder / "pytest.ini")  # type: ignore[arg-type]
        if one.place.rank == 0:
            one.lead_with(lambda _line: None)
        for nodeid in order:
            one.run(nodeid)
            self._hook(one.place.rank)
        one.finish()

    def _hook(self, rank: int) -> None:
        seconds = self._busy_next_s.pop(rank, 0.0)
        self.busy_s[rank] += seconds
        self.schedule.sleep(seconds)

    def _exit(self, rank: int, code: int, *lines: str) -> None:
        self.ends[rank] = RankEnd(self.schedule.now, code, lines)
        self._gone(rank, failed=code != 0)

    def _gone(self, rank: int, *, failed: bool) -> None:
        """End its threads and its worker, and let its launcher notice."""
        self.schedule.kill(rank)
        for worker in self._workers:
            if worker.rank == rank:
                worker._end(ExitStatus(-signal.SIGKILL))
        if not failed or not self.shape.launcher_kills:
            return
        node = self.shape.node_of(rank)
        self.schedule.call_later(0.1, lambda: self._all_of(node, self.signal))
        self.schedule.call_later(30.1, lambda: self._all_of(node, self._launcher_kills))

    def _launcher_kills(self, rank: int) -> None:
        self.killed_by_launcher += [rank] if rank in self.live else []
        self.kill(rank)

    def _all_of(self, node: int, do: Callable[[int], None]) -> None:
        for rank in self._ranks_of(node):
            do(rank)

    def _ranks_of(self, node: int) -> Iterator[int]:
        return (rank for rank in range(self.shape.world_size) if self.shape.node_of(rank) == node)

    def _replace_the_outside(self) -> None:
        replace = self._patch.setattr
        for module in _TIMED:
            replace(module, "time", self.schedule.time)
        for module in (control, heartbeats):
            replace(module, "threading", virtual_threading(self.schedule))
        replace(standby, "CANDIDATES", 2)
        replace(control, "queue", virtual_queue(self.schedule))
        relays = VirtualRelays(self.schedule, lambda rank: rank in self.killed or rank in self.ends)
        replace(broadcast, "make_relay", relays.relay)
        replace(broadcast, "link_to", relays.link_to)
        replace(control, "store_client", self.store.client)
        replace(control, "PrefixStore", lambda _prefix, client: client)
        replace(supervisor, "selectors", virtual_selectors(self.schedule))
        replace(starting, "StopSignals", self._make_signals)
        replace(starting, "become_subreaper", lambda: None)
        replace(starting, "Control", self._make_control)
        replace(starting, "read_identity", self._identity)
        replace(starting, "find_secret", lambda *_: SECRET)
        replace(starting, "choose_profile", lambda *_, **__: self._profile)
        replace(run, "suite_digest", lambda _rootdir: "")
        replace(run, "own_digest", lambda *_: "")
        replace(run, "read_validations", lambda items, _deadline_s, _parameters: ({item.nodeid: item.validation for item in items}, []))
        replace(worker_slot, "WorkerProcess", self._make_worker)
        replace(worker_slot, "can_be_shown", lambda: False)
        replace(worker_slot, "start_janitor", lambda *_: SimpleNamespace(pid=0, poll=lambda: None))
        replace(worker_slot, "kill_marked", lambda _mark, **_how: None)
        replace(worker_slot, "descendants", list)
        replace(worker_slot, "kill_descendants", lambda **_how: None)
        replace(os, "fsync", self._fsync)

    def _fsync(self, _fd: int) -> None:
        """A disk takes its time: a rank may be killed here."""
        if self.schedule.rank is not None:
            self.schedule.sleep(0.001)

    def _make_signals(self, _node: str, *, has_launcher: bool) -> VirtualSignals:
        assert self.schedule.rank is not None
        made = self.signals[self.schedule.rank] = VirtualSignals()
        return made

    def _make_control(self, *how: Any, **more: Any) -> control.Control:
        made = control.Control(*how, **more)
        self.controls.append(made)
        return made

    def _make_worker(self, *_command: object, **_how: object) -> VirtualWorker:
        assert self.schedule.rank is not None
        self._workers.append(VirtualWorker(self, self.schedule.rank, pid=100_000 + len(self._workers)))
        return self._workers[-1]

    def _place(self, rank: int) -> Rank:
        size = self.shape.ranks_per_node
        return Rank(
            rank, rank % size, self.shape.world_size, size, rank // size, self.shape.num_nodes, "127.0.0.1", 29500, "virtual", TORCHRUN
        )

    def _identity(self, place: Rank) -> Any:
        return make_identity(place.rank, self.shape.world_size, self.shape.ranks_per_node, has_gpus=False)

    def _reports(self, rank: int) -> Path:
        return self.folder if self.shape.shared_disk else self.folder / f"node-{self.shape.node_of(rank)}"

    def _settings(self, rank: int) -> Settings:
        reports = self._reports(rank)
        return Settings(confirm=self.shape.confirm, profiles=self.folder, suite=self.folder, report_dir=reports, run_id=RUN_ID)

    @property
    def _profile(self) -> Any:
        subjects = {f"v{number}": one.min_ranks <= self.shape.world_size for number, one in enumerate(self.shape.validations)}
        limits = [make_limit(f"{subject}.value", at_least=1, spread_at_most=5.0) for subject, fits in subjects.items() if fits]
        expected_s = dict.fromkeys(subjects, self.shape.expected_s) if self.shape.expected_s else {}
        about = {"name": "cpu", "device_name": None, "deadline_s": DEADLINE_S, "expected_s": expected_s}
        return make_profile(*limits, requires=frozenset(subjects), **about)

    @property
    def _validations(self) -> list[Validation]:
        return [Validation(nodeid=FORMATION, deadline_s=DEADLINE_S), *self.shape.validations]

    @property
    def _num_verdicts(self) -> int:
        return sum(key.startswith("cast/") and '"type":"verdict"' in text for _, key, text in self.store.traffic)
