"""The slot for one rank's worker: it starts, watches and kills each worker, and cleans up after it."""

import os
import secrets
import selectors
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from gpu_acceptance.base.exit import ExitStatus
from gpu_acceptance.base.janitor import MARK, Segments, kill_marked, start_janitor, stop, with_descendants
from gpu_acceptance.base.model import ChannelError, LineReader
from gpu_acceptance.base.process import can_be_shown, descendants, kill_descendants
from gpu_acceptance.base.scratch import SCRATCH, Scratch
from gpu_acceptance.control.control import Control, generation_prefix
from gpu_acceptance.folder.files import RunFiles
from gpu_acceptance.inventory import nvml
from gpu_acceptance.inventory.answer import Answer, Missing
from gpu_acceptance.inventory.cpu import CpuTime, cpu_time
from gpu_acceptance.inventory.needs import imported_for
from gpu_acceptance.record.counters import LogWarnings
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import RankIdentity
from gpu_acceptance.record.row import CpuUse
from gpu_acceptance.supervisor.gpu_watch import CounterWatch, TelemetryWatch
from gpu_acceptance.supervisor.process_watch import ProcessWatch
from gpu_acceptance.supervisor.worker_process import ForkServerProcess, Imports, WorkerProcess
from gpu_acceptance.verdict.judge import alarm
from gpu_acceptance.worker.messages import Form, Place, RunFacts, WorkerMessage, World
from gpu_acceptance.worker.worker import worker_command

_JANITOR_S = 1.0
_REMOVING_S = 1.0  # what is not gone by then the janitor removes
_MEMORY_SLACK_BYTES = 1 << 30  # an idle driver was seen to hold 618 MiB
_MOST_READS = 32  # of 64 KiB in one wait; the pipe of a dead worker holds 1 MiB at most
_MOST_MESSAGES = 100  # in one wait: the two sides take turns, an honest worker is a few messages ahead


@dataclass(frozen=True)
class WorkerConfig:
    """Facts that a worker needs to collect the same validations as its supervisor, and to run them as the other workers do."""

    rootdir: Path
    ini: Path
    files: list[str]
    run: RunFacts
    group_timeout_s: float
    counters: frozenset[str]  # metrics of the counters that are judged here
    most_risen: dict[str, float]  # how far each of them may rise, where a limit is a number
    ahead: tuple[str, ...] = ()  # modules that validations of this run import
    allow_busy: bool = False  # memory in use may belong to others


def read_messages(reader: LineReader[WorkerMessage]) -> tuple[list[WorkerMessage | ChannelError], bool]:
    """Return what a worker has sent, and True where more may come. After an error no later byte can be trusted."""
    found: list[WorkerMessage | ChannelError] = []
    try:
        for _ in range(_MOST_READS):  # a worker that writes faster than this reads must not block the loop
            messages = reader.read()
            if not messages:
                return found, messages is not None
            found += messages
            if len(found) > _MOST_MESSAGES:  # to handle them all would block the loop
                return [ChannelError(f"a flood of {len(found)} messages at once; allowed: {_MOST_MESSAGES}")], False
    except ChannelError as error:
        return [*found, error], False
    return found, True


class WorkerSlot:
    """The worker of one rank, if there is one at the moment, and all that is read for it from outside.

    `selector`: is to wake up for the worker, the fork server and the counters.
    """

    def __init__(self, control: Control, selector: selectors.BaseSelector, files: RunFiles, identity: RankIdentity) -> None:
        self.worker: WorkerProcess | None = None
        self.distrusted = ""  # reason, where the worker was killed between two attempts
        self.start_problem = ""  # reason why the requested worker cannot start
        self._control = control
        self._selector = selector
        self._files = files
        self.config: WorkerConfig | None = None  # once the validations are agreed on
        self._coming: WorkerProcess | None = None  # requested from the fork server
        self._fork_server: ForkServerProcess | None = None  # started with the first worker
        self._known: list[psutil.Process] | None = None  # descendants before the first worker, which a conftest of the user started
        # Read before the validations are collected here: an import must not change what workers get.
        self._folder = Path.cwd()
        run = f"{control.prefix}-"  # of the marks of all its ranks
        self._mark = f"{run}{identity.rank}-{os.getpid()}-{secrets.token_hex(4)}"
        self._identity = identity  # its GPUs are as they were before the first worker
        self._gpu_index = identity.gpu.index if identity.gpu else None
        self._gpu_uuid = ""  # of the GPU that the worker opened
        self._counters = CounterWatch(reads_ports=identity.local_rank == 0)
        self.processes = ProcessWatch(run, identity.local_world_size, identity.gpus)
        for watch in (self._counters, self.processes):
            selector.register(watch.wake_fd, selectors.EVENT_READ)
        self._log = LogWarnings()
        self._warnings: tuple[Figure, ...] = ()
        self.telemetry = TelemetryWatch()
        self._scratch = Scratch(self._mark)
        self._environment = {**os.environ, MARK: self._mark, "TMPDIR": str(self._scratch.temporary)}
        self._segments = Segments()
        self._janitor, self._janitor_seen_s = start_janitor(self._mark, self._scratch.folders, self._scratch.locks), time.monotonic()

    def start(self, env: dict[str, str], generation: int, needs: Sequence[str] = ()) -> None:
        """Request a worker, whose validations import these libraries; `attend` notices that it has started."""
        assert self.config
        assert self.worker is None
        assert self._coming is None
        try:
            if self._known is None:
                if can_be_shown():  # else a janitor could not find what its workers leave: /proc would show them as something else
                    self._fork_server = ForkServerProcess(self._environment, self._folder, self._files.worker_log)
                self._known = descendants()  # with the fork server
            self.distrusted = self.start_problem = ""
            with self._files.worker_log.open("a") as log:
                log.write(f"=== generation {generation} ===\n")
            # Paths relative to the worker's folder: pytest takes a bracket or `::` in a parent folder for the end of a file's name.
            paths = [os.path.join(os.curdir, os.path.relpath(file, self._folder)) for file in self.config.files]  # noqa: PTH118
            command = worker_command(sys.executable, self.config.rootdir, self.config.ini, paths)
            environment = {**self._environment, **env, SCRATCH: str(self._scratch.name_next())}
            asks_nccl = self._identity.num_gpus > 0 and self._control.place.local_rank == 0
            files = self._folder, self._files.worker_log, self._files.stacks
            # The first worker starts at once: its server has had no time to import anything beside its own start.
            imports = Imports(imported_for(needs) if generation > 1 else (), self.config.ahead)
            self._coming = WorkerProcess(command, environment, *files, asks_nccl=asks_nccl, fork_server=self._fork_server, imports=imports)
            if self._fork_server:
                self._selector.register(self._fork_server.fd, selectors.EVENT_READ)
            self.attend()
        except OSError as error:
            self.start_problem = f"no process could be started: {error.strerror}"

    def attend(self) -> None:
        """Take a worker that has started, and write on to one that is there. Call this after each wait."""
        try:
            has_come = self._coming is not None and self._coming.is_up()
        except OSError as error:
            self._abandon()
            self.start_problem = f"no process could be started: {error.strerror}"
            return
        if has_come:
            self.worker = self._let_come()
            self._selector.register(self.worker.reader.fd, selectors.EVENT_READ)
            self._selector.register(self.worker.pidfd, selectors.EVENT_READ)
        elif self.worker:
            self.worker.flush()
        now = time.monotonic()
        if now - self._janitor_seen_s > _JANITOR_S:  # not each time: it is a system call, and a validation has a dozen waits
            self._janitor_seen_s = now
            if self._janitor.poll() is not None:  # another process killed it
                self._janitor = start_janitor(self._mark, self._scratch.folders, self._scratch.locks)

    def _let_come(self) -> WorkerProcess:
        coming, self._coming = self._coming, None
        assert coming
        if self._fork_server:
            self._selector.unregister(self._fork_server.fd)
        return coming

    def _abandon(self) -> None:
        """Give up a worker that was requested and has not started."""
        if self._coming:
            self._let_come().abandon()

    def receive(self, ready: set[int]) -> tuple[list[WorkerMessage | ChannelError], ExitStatus | None]:
        """Return what the worker has sent, and how it ended where it has. `ready`: descriptors that can be read."""
        messages, status, worker = list[WorkerMessage | ChannelError](), None, self.worker
        if worker and worker.reader.fd in self._selector.get_map() and ready & {worker.reader.fd, worker.pidfd}:
            messages, is_open = read_messages(worker.reader)
            if not is_open:
                self._selector.unregister(worker.reader.fd)  # it would stay readable for ever
        if worker and worker.pidfd in ready:
            status = worker.exit_status() or ExitStatus(None)
        return messages, status

    def reap(self) -> str:
        """Release a worker that has ended; returns the end of its log."""
        worker, self.worker = self.worker, None
        assert worker is not None
        for fd in self._selector.get_map().keys() & {worker.reader.fd, worker.pidfd}:
            self._selector.unregister(fd)
        log_tail = worker.log_tail()
        worker.close()
        return log_tail

    def form_command(self, seq: int, generation: int, *, group: bool) -> Form:
        """Return the command to open the device and to form a group with the other workers of the generation."""
        assert self.config
        place, config = self._control.place, self.config
        shape = {name: getattr(place, name) for name in ("rank", "local_rank", "world_size", "local_world_size", "num_nodes")}
        host, num_gpus = self._identity.host, self._identity.num_gpus
        world = World(
            store_host=place.store_host,
            store_port=self._control.port,
            prefix=f"{self._control.prefix}/{generation_prefix(generation)}",
            rank=place.rank,
            world_size=place.world_size,
            timeout_s=config.group_timeout_s,
        )
        return Form(
            seq=seq,
            group=group,
            expects_gpu=num_gpus > 0,
            place=Place(**shape, node=place.node, host=host, num_gpus=num_gpus, launcher=shape),
            world=world,
            gpus=self._identity.gpus,
            run=config.run,
        )

    def opened(self, gpu_uuid: str) -> None:
        """Watch memory, counters and telemetry of this GPU, which the worker has opened."""
        self._gpu_index = next((gpu.index for gpu in self._identity.gpus if gpu.uuid == gpu_uuid), self._gpu_index)
        self._gpu_uuid = gpu_uuid
        self.telemetry.watch(gpu_uuid)
        self.processes.watch(gpu_uuid, self.worker.pid if self.worker else 0)

    def cpu_time(self) -> Answer[CpuTime]:
        """Return the processor time of this machine and of all processes of this rank, up to now."""
        return cpu_time(with_descendants(os.getpid()))

    def cpu_since(self, before: Answer[CpuTime]) -> CpuUse | None:
        """Return the processor time since then."""
        now = self.cpu_time()
        if isinstance(now, Missing) or isinstance(before, Missing):
            return None
        spent = ((one, getattr(now, f"{one}_s") - getattr(before, f"{one}_s")) for one in ("busy", "own"))
        return CpuUse(length_s=now.at_s - before.at_s, num_cpus=now.num_cpus, **{f"{one}_s": max(0.0, seconds) for one, seconds in spent})

    def read_processes(self) -> None:
        """Request who is on the GPU at the end of an attempt. Children of a worker that was killed may still be there."""
        self.processes.ask(is_idle=self.worker is not None and not self.worker.killed_for_s)

    def read_counters(self, *, each_link: bool = False, is_poll: bool = False) -> None:
        """Request the counters of the GPU, and the warnings, that rose since the last request; `counters` returns them.

        `is_poll`: in the middle of a validation. `alarm` returns these, and the next `counters` returns them again.
        """
        assert self.config
        if not is_poll:
            self._warnings = self._log.figures(self._files.worker_log, self.config.counters)
        devices = str(self.config.run.parameters.get("infiniband.devices", "*"))
        self._counters.ask(self._gpu_uuid, self.config.counters, devices=devices, each_link=each_link, is_poll=is_poll)

    def counters(self) -> tuple[Figure, ...] | None:
        """Return risen counters and warnings; None while NVML has not answered, for a moment. Without a GPU no counter rises."""
        risen = self._counters.figures()
        return None if risen is None else (*risen, *self._warnings)

    def alarm(self) -> str | None:
        """Return the counters that rose further than allowed at the last poll; None while NVML has not answered."""
        assert self.config
        risen = self._counters.figures()
        return None if risen is None else alarm(risen, self.config.most_risen)

    @property
    def may_share(self) -> bool:
        assert self.config
        return self.config.allow_busy

    def memory_held_bytes(self) -> int | None:
        """Return the GPU memory in use beyond that before the first worker; 0 where it is within the driver's own; None: unknown."""
        if self._gpu_index is None:
            return 0
        used = nvml.memory_used_bytes(self._gpu_index)
        before = next((gpu.use.used_bytes for gpu in self._identity.gpus if gpu.index == self._gpu_index and gpu.use), None)
        if used is None or before is None or isinstance(before, Missing):
            return None
        return used - before if used - before > _MEMORY_SLACK_BYTES else 0

    def kill_worker(self) -> None:
        """SIGKILL the worker and its process group; its exit is an event. Its /dev/shm segments are removed with the strays."""
        if self.worker:
            stop(self.worker.pid)
            self._segments.note(self.worker.pid)
            self.worker.kill()

    def kill_strays(self) -> None:
        """Kill all processes that the last worker left: by its mark, and as children of this process, which adopts orphans."""
        if self._known is None:  # there was no worker
            return
        self._abandon()
        kill_marked(self._mark, rounds=4, spare=self._fork_server.pid if self._fork_server else 0, note=self._segments.note)
        kill_descendants(timeout_s=0.2, spare=self._janitor.pid, known=self._known)
        self._segments.remove()
        self._scratch.remove_of_ended()

    def kill_everything(self) -> None:
        """SIGKILL the worker and all that it ever started, and remove its folder. No worker starts any more.

        What reads the GPU ends too, so that no thread is inside NVML when Python ends.
        """
        self.telemetry.end()
        self.processes.end()
        self._abandon()
        if self._fork_server:
            self._fork_server.close()
        if self.worker:
            self.kill_worker()
            self.reap()
        kill_marked(self._mark, rounds=20, note=self._segments.note)
        kill_descendants(spare=self._janitor.pid)
        self._segments.remove()
        self._scratch.remove(within_s=_REMOVING_S)
