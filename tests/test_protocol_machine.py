"""A run ends in time, all live ranks agree, a report is written, and ACCEPTED is true, whatever happens and in whatever order.

The real modules run; time, store, launcher, signals and workers are virtual (tests/virtual/). This test is deterministic.
`GPU_ACCEPTANCE_MACHINE_RUNS=5000` makes that many random runs instead.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from virtual.invariants import check
from virtual.world import Shape, World, validations

from gpu_acceptance.verdict.reasons import FORMATION

pytestmark = pytest.mark.slow

LONG_RUN = int(os.environ.get("GPU_ACCEPTANCE_MACHINE_RUNS", "0"))
ENDLESS_S = 5000.0  # far beyond any bound; only to end a run that does not end
ENDS = ("exit", "signal", "hang", "hang without a stack")
KINDS = {
    "setup": (*ENDS, "skip", "error", "slow", "late", "late", "late", "garbled", "of a fork"),
    "call": (*ENDS, "miss", "assert", "assert late", "error", "slow", "unstable", "late", "garbled", "of a fork"),
    "teardown": (*ENDS, "error", "slow"),
    "fence": (*ENDS, "error"),
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
in_a_validation = st.sampled_from([(phase, kind) for phase, kinds in KINDS.items() for kind in kinds])
faults = st.tuples(any_rank, st.integers(0, 3), st.sampled_from([1, 1, 1, 2]), in_a_validation)

Fault = tuple[int, int, int, tuple[str, str]]  # rank, validation, attempt, phase and kind


class RunInSteps(RuleBasedStateMachine):
    """Lets a run go on in steps."""

    def begin(self, shape: Shape, two_nodes: bool, has_begun: bool, faults: list[Fault]) -> None:
        if two_nodes and shape.world_size % 2 == 0:
            shape = replace(shape, num_nodes=2)
        self.folder = Path(tempfile.mkdtemp(prefix="virtual-run-"))
        self.world = World(shape, self.folder)
        for fault in faults:
            self.plan(fault)
        if has_begun:
            self.world.run_to_the_plan()

    def rank(self, number: int) -> int:
        return number % self.world.shape.world_size

    def plan(self, fault: Fault) -> None:
        rank, number, attempt, (phase, kind) = fault
        nodeids = [validation.nodeid for validation in self.world.shape.validations]
        self.world.faults[self.rank(rank), nodeids[number % len(nodeids)], attempt, phase] = kind

    @rule()
    def run_the_next_validation(self) -> None:
        self.world.run_next()

    def check(self) -> None:
        check(self.world)

    def teardown(self) -> None:
        try:
            self.world.finish(ENDLESS_S)
            self.check()
        finally:
            self.world.close()
            shutil.rmtree(self.folder)


def settings_of(num_examples: int, num_steps: int) -> settings:
    return settings(
        max_examples=LONG_RUN or num_examples,
        derandomize=not LONG_RUN,
        print_blob=bool(LONG_RUN),
        stateful_step_count=num_steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


class Protocol(RunInSteps):
    """Does harm to a run between its steps."""

    @initialize(
        shape=shapes,
        two_nodes=st.booleans(),
        has_begun=st.sampled_from([True, True, True, False]),
        faults=st.lists(faults, max_size=3),
        blows=st.sampled_from([0, 0, 1, 2]),
    )
    def start(self, shape: Shape, two_nodes: bool, has_begun: bool, faults: list[Fault], blows: int) -> None:
        self.begin(shape, two_nodes, has_begun, faults)
        self.blows_left = blows  # harm that ends a run, or a rank

    def strike(self, blow: Callable[..., None], *arguments: object) -> None:
        self.blows_left -= 1
        blow(*arguments)

    @rule(fault=faults)
    def plan_a_fault(self, fault: Fault) -> None:
        self.plan(fault)

    @rule(rank=any_rank, generation=st.sampled_from([1, 2, 2, 3]), fault=st.sampled_from(FORMING))
    def plan_a_fault_of_a_formation(self, rank: int, generation: int, fault: tuple[str, str]) -> None:
        phase, kind = fault
        self.world.faults[self.rank(rank), FORMATION, generation, phase] = kind

    @rule(rank=any_rank, fault=st.sampled_from(ENDING))
    def plan_a_fault_of_an_end(self, rank: int, fault: tuple[str, str]) -> None:
        phase, kind = fault
        self.world.faults[self.rank(rank), "worker_end", 1, phase] = kind

    @rule(seconds=seconds)
    def let_time_pass(self, seconds: float) -> None:
        self.world.advance(seconds)

    @precondition(lambda self: self.blows_left)
    @rule(rank=any_rank, number=st.sampled_from([signal.SIGTERM, signal.SIGINT, signal.SIGHUP]))
    def send_a_signal(self, rank: int, number: int) -> None:
        self.strike(self.world.signal, self.rank(rank), number)

    @precondition(lambda self: self.blows_left)
    @rule(rank=st.one_of(st.just(0), any_rank))
    def kill_a_supervisor(self, rank: int) -> None:
        self.strike(self.world.kill, self.rank(rank))

    @precondition(lambda self: self.blows_left and self.world.shape.num_nodes == 2)
    @rule(node=st.integers(0, 1))
    def kill_a_node(self, node: int) -> None:
        self.strike(self.world.kill_node, node)

    @precondition(lambda self: self.blows_left)
    @rule(rank=any_rank, seconds=st.sampled_from([0.5, 5.0, 1e6]))
    def cut_a_link(self, rank: int, seconds: float) -> None:
        self.strike(self.world.cut_off, self.rank(rank), seconds)

    @precondition(lambda self: self.blows_left)
    @rule(seconds=st.sampled_from([2.0, 6.0, 12.0, 20.0]))
    def keep_the_leader_busy(self, seconds: float) -> None:
        self.world.keep_busy(0, seconds)

    @precondition(lambda self: self.blows_left == 2)
    @rule()
    def lose_the_store(self) -> None:
        self.strike(self.world.lose_store)


Protocol.TestCase.settings = settings_of(num_examples=150, num_steps=12)
TestProtocol = Protocol.TestCase
