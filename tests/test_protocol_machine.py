"""Whatever happens to a run, in whatever order: it ends in time, all live ranks agree, a report is written, and ACCEPTED is true.

The real modules run; time, store, launcher, signals and workers are virtual (tests/virtual/). Every run of this test is the same one.
`GPU_ACCEPTANCE_MACHINE_RUNS=5000` makes that many others.
"""

import os
import shutil
import signal
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from virtual.invariants import check
from virtual.world import Shape, World, validations

from gpu_acceptance.objections import FORMATION

LONG_RUN = int(os.environ.get("GPU_ACCEPTANCE_MACHINE_RUNS", "0"))
SETTINGS = settings(
    max_examples=LONG_RUN or 150,
    derandomize=not LONG_RUN,
    print_blob=bool(LONG_RUN),
    stateful_step_count=12,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
ENDLESS_S = 5000.0  # far beyond any bound; only to end a run that does not end
ENDS = ("exit", "signal", "hang", "hang without a stack")
KINDS = {
    "setup": (*ENDS, "skip", "error", "slow", "late", "garbled", "of a fork"),
    "call": (*ENDS, "miss", "assert", "assert late", "error", "slow", "unstable", "late", "garbled", "of a fork"),
    "teardown": (*ENDS, "error", "slow"),
    "seal": (*ENDS, "error"),
}
FORMING = [("start", kind) for kind in (*ENDS, "slow")] + [("form", kind) for kind in (*ENDS, "error", "slow")]
ENDING = [("end", kind) for kind in (*ENDS, "error", "slow")]

markers = st.fixed_dictionaries(
    {},
    optional={
        "deadline_s": st.sampled_from([4.0, 9.0]),
        "needs_group": st.just(False),
        "min_ranks": st.sampled_from([2, 4]),
        "fresh": st.just(True),
        "env": st.just({"NCCL_ALGO": "Ring"}),
    },
)
shapes = st.builds(
    Shape,
    seed=st.integers(0, 1 << 30),
    world_size=st.sampled_from([2, 2, 3, 4, 8]),
    shared_disk=st.booleans(),
    validations=st.lists(markers, min_size=2, max_size=4).map(lambda changes: validations(*changes)),
    confirm=st.sampled_from([0, 0, 1]),
    collectives_tell=st.booleans(),
    launcher_kills=st.booleans(),
)
any_rank = st.integers(0, 7)
seconds = st.sampled_from([0.01, 0.1, 0.5, 3.0, 8.0])


class Protocol(RuleBasedStateMachine):
    """Lets a run go on in steps, and does harm to it in between."""

    @initialize(shape=shapes, two_nodes=st.booleans(), has_begun=st.sampled_from([True, True, True, False]))
    def start(self, shape: Shape, two_nodes: bool, has_begun: bool) -> None:
        if two_nodes and shape.world_size % 2 == 0:
            shape = Shape(**{**vars(shape), "num_nodes": 2})
        self.folder = Path(tempfile.mkdtemp(prefix="virtual-run-"))
        self.world = World(shape, self.folder)
        if has_begun:
            self.world.run_to_the_plan()
        self.blows = 0  # harm that ends a run, or a rank

    def rank(self, number: int) -> int:
        return number % self.world.shape.world_size

    @rule(rank=any_rank, number=st.integers(0, 3), attempt=st.sampled_from([1, 1, 1, 2]), data=st.data())
    def plan_a_fault(self, rank: int, number: int, attempt: int, data: st.DataObject) -> None:
        nodeids = [validation.nodeid for validation in self.world.shape.validations]
        phase = data.draw(st.sampled_from(list(KINDS)))
        kind = data.draw(st.sampled_from(KINDS[phase]))
        self.world.faults[self.rank(rank), nodeids[number % len(nodeids)], attempt, phase] = kind

    @rule(rank=any_rank, generation=st.sampled_from([1, 2, 2, 3]), fault=st.sampled_from(FORMING))
    def plan_a_fault_of_a_formation(self, rank: int, generation: int, fault: tuple[str, str]) -> None:
        phase, kind = fault
        self.world.faults[self.rank(rank), FORMATION, generation, phase] = kind

    @rule(rank=any_rank, fault=st.sampled_from(ENDING))
    def plan_a_fault_of_an_end(self, rank: int, fault: tuple[str, str]) -> None:
        phase, kind = fault
        self.world.faults[self.rank(rank), "worker_end", 1, phase] = kind

    @rule()
    def run_the_next_validation(self) -> None:
        self.world.run_next()

    @rule(seconds=seconds)
    def let_time_pass(self, seconds: float) -> None:
        self.world.advance(seconds)

    @precondition(lambda self: self.blows < 2)
    @rule(rank=any_rank, number=st.sampled_from([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
    def send_a_signal(self, rank: int, number: int) -> None:
        self.blows += 1
        self.world.signal(self.rank(rank), number)

    @precondition(lambda self: self.blows < 2)
    @rule(rank=any_rank)
    def kill_a_supervisor(self, rank: int) -> None:
        self.blows += 1
        self.world.kill(self.rank(rank))

    @precondition(lambda self: self.blows < 2)
    @rule(node=st.integers(0, 1))
    def kill_a_node(self, node: int) -> None:
        self.blows += 1
        self.world.kill_node(node % self.world.shape.num_nodes)

    @precondition(lambda self: self.blows < 2)
    @rule(rank=any_rank, seconds=st.sampled_from([0.5, 5.0, 1e6]))
    def cut_a_link(self, rank: int, seconds: float) -> None:
        self.blows += 1
        self.world.cut_off(self.rank(rank), seconds)

    @precondition(lambda self: self.blows < 2)
    @rule()
    def lose_the_store(self) -> None:
        self.blows += 1
        self.world.lose_store()

    def teardown(self) -> None:
        try:
            self.world.finish(ENDLESS_S)
            check(self.world)
        finally:
            self.world.close()
            shutil.rmtree(self.folder)


Protocol.TestCase.settings = SETTINGS
TestProtocol = Protocol.TestCase
