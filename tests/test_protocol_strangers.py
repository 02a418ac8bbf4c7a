"""The same machine with a stranger on its store: never a pass that the ranks did not measure, never a hang, never a false blame.

What a stranger only writes changes nothing at all. Where it takes messages away, a run may end INCOMPLETE or without a verdict.
"""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from test_protocol_machine import ENDLESS_S, faults, shapes
from virtual.invariants import REJECTS, Checked, accepted_only_if_all_held, check
from virtual.stranger import FORGES, TAKES, Stranger
from virtual.world import World

pytestmark = pytest.mark.slow

LONG_RUN = int(os.environ.get("GPU_ACCEPTANCE_MACHINE_RUNS", "0"))
SETTINGS = settings(
    max_examples=LONG_RUN or 60,
    derandomize=not LONG_RUN,
    print_blob=bool(LONG_RUN),
    stateful_step_count=16,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
LONGEST_S = 1500.0  # several silences of a leader, one after the other


class Strangers(RuleBasedStateMachine):
    """Lets a run go on in steps, while a stranger does what it likes in between."""

    @initialize(
        shape=shapes,
        two_nodes=st.booleans(),
        has_begun=st.sampled_from([True, True, False]),
        faults=st.lists(faults, max_size=1),
        takes=st.booleans(),
    )
    def start(self, shape, two_nodes, has_begun, faults, takes):
        if two_nodes and shape.world_size % 2 == 0:
            shape = replace(shape, num_nodes=2)
        self.folder = Path(tempfile.mkdtemp(prefix="virtual-run-"))
        self.world = World(shape, self.folder)
        self.stranger = Stranger(self.world.store, shape.world_size, shape.seed)
        self.takes = takes
        for rank, number, attempt, (phase, kind) in faults:
            nodeids = [validation.nodeid for validation in shape.validations]
            self.world.faults[rank % shape.world_size, nodeids[number % len(nodeids)], attempt, phase] = kind
        if has_begun:
            self.world.run_to_the_plan()

    @rule(what=st.sampled_from(FORGES))
    def forge(self, what):
        self.stranger.strike(what)

    @rule(what=st.sampled_from(FORGES), seconds=st.sampled_from([0.001, 0.003, 0.02]))
    def forge_often(self, what, seconds):
        for _ in range(20):
            self.stranger.strike(what)
            self.world.advance(seconds)

    @precondition(lambda self: self.takes)
    @rule(what=st.sampled_from(TAKES))
    def take_away(self, what):
        self.stranger.strike(what)

    @rule()
    def run_the_next_validation(self):
        self.world.run_next()

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 0.5, 3.0]))
    def let_time_pass(self, seconds):
        self.world.advance(seconds)

    def teardown(self):
        try:
            self.world.finish(ENDLESS_S)
            if self.stranger.has_taken:
                check_what_was_disturbed(self.world)
            else:
                check(self.world)
        finally:
            self.world.close()
            shutil.rmtree(self.folder)


def check_what_was_disturbed(world):
    """Whatever was taken away: the run ends, nothing is accepted that was not measured, and nothing rejected without a fault."""
    checked = Checked(world)
    assert not world.crashes, world.crashes
    assert not world.live, f"still running: {world.live}"
    took_s = max(end.at for end in world.ends.values()) - world.began
    assert took_s < LONGEST_S, f"{took_s:.0f} s"
    accepted_only_if_all_held(checked, disturbed=True)
    rejecting = [one for one in checked.bad if one.kind in REJECTS or one.kind == "miss"]
    for rank, end in world.ends.items():
        assert end.exit_code != 1 or rejecting, f"rank {rank} rejects what nothing was wrong with: {end.lines}"


Strangers.TestCase.settings = SETTINGS
TestStrangers = Strangers.TestCase
