"""One rank's supervisor: owns the rank worker, keeps step with the other ranks, never touches CUDA, never blocks for long.

Rank 0's is also the leader (leader.py): it says what runs, collects and judges. All others follow.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_acceptance.board import GRACE_S, LOST_AFTER_S, Board
from gpu_acceptance.control import Control, ControlError, Message
from gpu_acceptance.events import Event, Events, StopSignals
from gpu_acceptance.files import Journal, RecordError, encode
from gpu_acceptance.inventory import nvml
from gpu_acceptance.launch import Rank
from gpu_acceptance.processes import kill_descendants
from gpu_acceptance.rank_attempt import FormAttempt, RankAttempt, RunAttempt
from gpu_acceptance.record import Outcome, RankIdentity, RankRecord, clip
from gpu_acceptance.run_files import RunFiles
from gpu_acceptance.worker import worker_command
from gpu_acceptance.worker_process import WorkerProcess

JOIN_S = 120.0  # for all ranks to say hello: nodes of one job start within seconds of each other
IDLE_S = 120.0  # for rank 0 to say what is next
_STOP_S = 5.0  # for answers after the run was told to end: torchrun kills 30 s after its SIGTERM
_MEMORY_SLACK_BYTES = 1 << 30  # an idle driver was seen to hold 618 MiB


class RefusedError(ValueError):
    """The run may not start: a mistake of the user's, said before any GPU is touched. The same text on every rank."""


@dataclass(frozen=True)
class Suite:
    """What the workers need to collect the same validations as their supervisor."""

    rootdir: Path
    ini: Path
    files: list[str]


class Supervisor:
    """The event loop and the state of one rank. Its methods are called from pytest's main thread only."""

    def __init__(self, place: Rank, control: Control, stop: StopSignals) -> None:
        self.place = place
        self.control = control
        self.stop_signals = stop
        self.worker: WorkerProcess | None = None
        self.ended: str | None = None  # why no further validation runs; the same on every rank
        self.stopping: str | None = None  # a stop is under way
        self.board: Board | None = None
        self.mail: dict[str, dict[int, Message]] = {}  # rank 0: answers to questions outside attempts
        self.on_tick: Callable[[], None] = lambda: None
        self._events = Events(control, stop)
        self._attempt: RankAttempt | None = None
        self._seq = 0  # of the attempt in progress
        self._casts: deque[Message] = deque()
        self._heard_rank_0 = time.monotonic()
        self._stop_asked: float | None = None
        self._store_lost = ""  # why; nothing can be awaited any more
        self._suite: Suite | None = None
        self._parameters: Message = {}
        self._group_timeout_s = 0.0
        self._files: RunFiles | None = None
        self._journal: Journal | None = None
        self._obstacle: list[str] = []  # why this rank cannot take part
        self._gpus: dict[str, int] = {}  # UUID -> index
        self._gpu_index: int | None = None
        self._expects_gpu = False
        self._memory_baseline: dict[int, int | None] = {}  # by GPU index, before the first worker

    # --- joining -------------------------------------------------------------------------------------------------------------

    def join(self, identity: RankIdentity, refusal: str | None, welcome: Callable[[list[RankIdentity]], Message]) -> Message:
        """Says hello, and returns rank 0's welcome once every rank has. Collective. Raises RefusedError with one text for all."""
        self.tell_rank_0({"type": "hello", "identity": encode(identity), "refusal": refusal})
        if self.place.rank == 0:
            self.control.cast(self._answer_hellos(welcome))
        answer = self._refuse_or(self.await_cast("welcome", JOIN_S + 30))
        self._parameters = answer["parameters"]
        return answer

    def open_files(self, files: RunFiles, identity: RankIdentity) -> None:
        """Opens this rank's journal. Where that fails, the rank says so when the ranks next speak (agree_on_suite)."""
        self._files = files
        self._gpus = {gpu.uuid: gpu.index for gpu in identity.gpus}
        self._gpu_index = identity.gpu.index if identity.gpu else None
        self._expects_gpu = identity.num_gpus > 0
        self._memory_baseline = {index: nvml.memory_used_bytes(index) for index in self._gpus.values()}
        try:
            files.make_folders()
            self._journal = Journal(files.journal)
            self._journal.append(identity)
        except (OSError, RecordError) as error:
            self._obstacle = [f"cannot write to {files.folder}: {error}"]

    def agree_on_suite(self, suite: Suite, nodeids: list[str], errors: list[str], group_timeout_s: float) -> list[str]:
        """The validations in rank 0's order. Collective. Raises RefusedError where ranks collected different ones, or one could not."""
        self._suite = suite
        self.tell_rank_0(
            {"type": "collected", "nodeids": nodeids, "errors": [clip(error, 4000) for error in [*self._obstacle, *errors][:3]]}
        )
        if self.place.rank == 0:
            answers = self.await_mail("collected", JOIN_S)
            problem = find_collection_problem(answers, self.place.world_size)
            agreed = {"type": "agreed", "nodeids": nodeids, "group_timeout_s": group_timeout_s}
            self.control.cast({"type": "refused", "message": problem} if problem else agreed)
        answer = self._refuse_or(self.await_cast("agreed", JOIN_S + 30))
        self._group_timeout_s = answer["group_timeout_s"]
        order: list[str] = answer["nodeids"]
        return order

    def _answer_hellos(self, welcome: Callable[[list[RankIdentity]], Message]) -> Message:
        hellos = self.await_mail("hello", JOIN_S)
        absent = [rank for rank in range(self.place.world_size) if rank not in hellos]
        if absent:
            return {"type": "refused", "message": f"rank {absent[0]} (of {len(absent)} missing) did not arrive within {JOIN_S:g} s"}
        refusals = [hello["refusal"] for _, hello in sorted(hellos.items()) if hello["refusal"]]
        if refusals:
            return {"type": "refused", "message": refusals[0]}
        try:
            return {"type": "welcome", **welcome([RankIdentity.model_validate_json(hellos[rank]["identity"]) for rank in sorted(hellos)])}
        except RefusedError as error:
            return {"type": "refused", "message": str(error)}

    def _refuse_or(self, message: Message) -> Message:
        if message["type"] == "refused":
            self.say_bye()
            raise RefusedError(message["message"])
        return message

    # --- waiting -------------------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Handles what happens next; returns within half a second. Raises ControlError when the store is gone."""
        for event in self._events.wait():
            self._dispatch(event)
        if self._store_lost:
            raise ControlError(self._store_lost)
        if self._attempt:
            self._attempt.tick()
        if self.board:
            self.board.advance()
        if self._stop_asked and not self.stopping and time.monotonic() - self._stop_asked > _STOP_S:
            raise ControlError(f"rank 0 did not react to {self.stop_signals.reason} within {_STOP_S:g} s")
        self.on_tick()

    def await_cast(self, kind: str, silence_s: float) -> Message:
        """The next cast of this kind (or `refused`). Raises ControlError when rank 0 stays silent for `silence_s`."""
        self._heard_rank_0 = time.monotonic()
        while True:
            while self._casts:
                message = self._casts.popleft()
                if message["type"] in {kind, "refused"}:
                    return message
            limit = silence_s + (self._attempt.go["deadline_s"] if self._attempt else 0)
            if time.monotonic() - self._heard_rank_0 > limit:
                raise ControlError(f"rank 0 was silent for {limit:.0f} s where a {kind} message was due: its supervisor or node is gone")
            self.pump()

    def await_mail(self, kind: str, timeout_s: float, ranks: Iterable[int] | None = None) -> dict[int, Message]:
        """Rank 0: what the ranks (default: all) answered so far, when all did or time ran out."""
        expected = set(ranks if ranks is not None else range(self.place.world_size))
        end = time.monotonic() + timeout_s
        while not expected <= self.mail.setdefault(kind, {}).keys() and time.monotonic() < end and not self.stopping:
            self.pump()
        return self.mail[kind]

    # --- attempts ------------------------------------------------------------------------------------------------------------

    def follow(self) -> Message:
        """Takes part in whatever attempts rank 0 announces, until it announces a verdict."""
        verdict = self.await_cast("verdict", IDLE_S + GRACE_S + LOST_AFTER_S)
        self.ended = verdict["ended"]
        return verdict

    def lead_attempt(self, go: Message) -> Board:
        """Rank 0: announces an attempt and collects it."""
        self.board = board = Board(go, self.place.world_size, self.control.cast)
        self.control.cast(go)
        while not board.done:
            self.pump()
        self.board = None
        return board

    def tell_rank_0(self, message: Message) -> None:
        self.control.send(0, message)

    def start_worker(self, env: dict[str, str], generation: int) -> None:
        assert self._suite
        assert self._files
        command = worker_command(sys.executable, self._suite.rootdir, self._suite.ini, self._suite.files)
        with self._files.worker_log.open("a") as log:
            log.write(f"=== generation {generation} ===\n")
        self.worker = WorkerProcess(command, env, self._files.worker_log, self._files.stacks)
        self._events.watch(self.worker)

    def form_command(self, generation: int, *, group: bool) -> Message:
        place = self.place
        shape = {
            "rank": place.rank,
            "local_rank": place.local_rank,
            "world_size": place.world_size,
            "local_world_size": place.local_world_size,
            "num_nodes": place.num_nodes,
        }
        world = {
            "store_host": place.store_host,
            "store_port": self.control.port,
            "prefix": f"{self.control.prefix}/generation-{generation}",
            "rank": place.rank,
            "world_size": place.world_size,
            "timeout_s": self._group_timeout_s,
        }
        return {
            "type": "form",
            "group": group,
            "expects_gpu": self._expects_gpu,
            "place": {**shape, "node": place.node, "host": place.host, "launcher": shape},
            "world": world,
            "parameters": self._parameters,
        }

    def memory_held_bytes(self) -> int | None:
        """GPU memory in use beyond what was in use before the first worker; 0 where that is nothing to speak of; None: unknown."""
        if self._gpu_index is None:
            return 0
        used, before = nvml.memory_used_bytes(self._gpu_index), self._memory_baseline.get(self._gpu_index)
        if used is None or before is None:
            return None
        return used - before if used - before > _MEMORY_SLACK_BYTES else 0

    def kill_strays(self) -> None:
        """Ends what the last worker left behind: its orphans have become children of this process."""
        kill_descendants(timeout_s=0.4)

    def publish(self, record: RankRecord, facts: dict[str, str]) -> None:
        """Keeps the record in this rank's journal, then tells rank 0."""
        assert self._journal
        self._journal.append(record)
        if "gpu_uuid" in facts:
            self._gpu_index = self._gpus.get(facts["gpu_uuid"], self._gpu_index)
        message = {"type": "published", "seq": self._seq, "record": encode(record), "facts": facts}
        try:
            self.tell_rank_0(message)
        except ControlError as error:
            short = record.model_copy(update={"outcome": Outcome.ERROR, "message": f"record not sent: {error}", "figures": ()})
            self.tell_rank_0({**message, "record": encode(short)})

    # --- the end -------------------------------------------------------------------------------------------------------------

    def quit_worker(self, timeout_s: float = 10.0) -> None:
        """Lets a healthy worker tear down its session fixtures, then leaves no process behind."""
        self._attempt = None
        if self.worker:
            self.worker.send({"type": "quit"})
        end = time.monotonic() + timeout_s
        while self.worker and time.monotonic() < end and not self.stopping:
            self.pump()
        self.kill_everything()

    def kill_everything(self) -> list[str]:
        """SIGKILLs the worker and every other descendant; names what would not die."""
        if self.worker:
            self.worker.kill()
        return kill_descendants()

    def say_bye(self) -> None:
        """The exit handshake: nobody leaves while another still needs the store. Collective; bounded; signals are ignored from here.

        torchrun SIGTERMs all ranks of a node when the first one fails, and the node that hosts the store takes it along.
        """
        self.stop_signals.ignore()
        self.tell_rank_0({"type": "bye"})
        try:
            if self.place.rank == 0:
                self.await_mail("bye", timeout_s=10)
                self.control.cast({"type": "leave"})
            else:
                self.await_cast("leave", silence_s=15)
        except ControlError:
            return
        finally:
            self.control.close(timeout_s=5)

    # --- events --------------------------------------------------------------------------------------------------------------

    def _dispatch(self, event: Event) -> None:
        match event.kind:
            case "worker" if self._attempt:
                self._attempt.on_worker(event.message)
            case "exit":
                self._reap(event.message["text"])
            case "stop":
                self._stop_asked = time.monotonic()
                self.tell_rank_0({"type": "stop_request", "reason": event.message["reason"]})
            case "control":
                self._on_control(event.sender, event.message)

    def _reap(self, text: str) -> None:
        worker = self.worker
        assert worker is not None
        self._events.unwatch()
        log_tail = worker.log_tail()
        worker.close()
        self.worker = None
        if self._attempt:
            self._attempt.on_exit(text, log_tail)

    def _on_control(self, sender: int, message: Message) -> None:
        if sender == 0:
            self._heard_rank_0 = time.monotonic()
        match message["type"]:
            case "store_lost":
                self._store_lost = f"the control store is gone: {message['reason']}"
            case "hello" | "collected" | "bye":
                self.mail.setdefault(message["type"], {})[sender] = message
            case "vote" | "published" | "gather":
                self._to_board(sender, message)
            case "stop_request":
                if not self.stopping:
                    self.control.cast({"type": "stop", "reason": message["reason"]})
            case "stop":
                self._stop(message["reason"])
            case "go":
                self._begin(message)
            case "enter" | "gathered" | "peer_bad":
                if self._attempt and message["seq"] == self._seq:
                    self._attempt.on_control(message)
            case _:
                self._casts.append(message)

    def _to_board(self, sender: int, message: Message) -> None:
        if self.board is None or message["seq"] != self.board.go["seq"]:
            return
        match message["type"]:
            case "vote":
                self.board.vote(sender, message)
            case "published":
                self.board.publish(sender, message)
            case _:
                self.board.gather(sender, message)

    def _begin(self, go: Message) -> None:
        self._seq = go["seq"]
        self._attempt = (FormAttempt if go["kind"] == "form" else RunAttempt)(self, {**go, "rank": self.place.rank})
        if self.stopping:
            self._attempt.interrupt(self.stopping)

    def _stop(self, reason: str) -> None:
        self.stopping = self.stopping or reason
        if self._attempt:
            self._attempt.interrupt(reason)
        if self.board:
            self.board.hurry(_STOP_S)


def find_collection_problem(answers: dict[int, Message], world_size: int) -> str:
    """Empty where all ranks collected the same set; else who could not, or who lacks or adds what against rank 0."""
    absent = [rank for rank in range(world_size) if rank not in answers]
    if absent:
        return f"rank {absent[0]} (of {len(absent)} missing) did not finish collecting within {JOIN_S:g} s"
    for rank, answer in sorted(answers.items()):
        if answer["errors"]:
            return "\n".join([f"rank {rank} cannot take part:", *answer["errors"]])
    return _difference({rank: answers[rank]["nodeids"] for rank in sorted(answers)})


def _difference(nodeids: dict[int, list[str]]) -> str:
    reference = set(nodeids[0])
    lines = []
    for rank, ids in nodeids.items():
        lines += [f"  - rank {rank} lacks {nodeid}" for nodeid in sorted(reference - set(ids))]
        lines += [f"  + rank {rank} adds  {nodeid}" for nodeid in sorted(set(ids) - reference)]
    if not lines:
        return ""
    shown = lines[:20] + ([f"  ... and {len(lines) - 20} more"] if len(lines) > 20 else [])
    return "\n".join(["ranks collected different validations (rank 0 is the reference); is the checkout the same everywhere?", *shown])
