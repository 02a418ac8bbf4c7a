"""A stranger writes to the store of a run: never a pass that the ranks did not measure, never a hang, never a false blame.

Texts that a stranger writes change nothing at all. Where it takes messages away, a run may end INCOMPLETE or without a verdict.
"""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from test_protocol_machine import RunInSteps, faults, settings_of, shapes
from virtual.invariants import REJECTS, Checked, accepted_only_if_all_held
from virtual.stranger import FORGES, TAKES, Stranger

pytestmark = pytest.mark.slow

LONGEST_S = 1500.0  # several silences of a leader, one after the other


class Strangers(RunInSteps):
    """Lets a stranger strike between the steps of a run."""

    @initialize(
        shape=shapes,
        two_nodes=st.booleans(),
        has_begun=st.sampled_from([True, True, False]),
        faults=st.lists(faults, max_size=1),
        takes=st.booleans(),
    )
    def start(self, shape, two_nodes, has_begun, faults, takes):
        self.begin(shape, two_nodes, has_begun, faults)
        self.stranger = Stranger(self.world.store, shape.world_size, shape.seed)
        self.takes = takes

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

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 0.5, 3.0]))
    def let_time_pass(self, seconds):
        self.world.advance(seconds)

    def check(self):
        if self.stranger.has_taken:
            check_disturbed(self.world)
        else:
            super().check()


def check_disturbed(world):
    """The run ends, nothing is accepted that was not measured, and nothing rejected without a fault, whatever was taken away."""
    checked = Checked(world)
    assert not world.crashes, world.crashes
    assert not world.live, f"still running: {world.live}"
    took_s = max(end.at for end in world.ends.values()) - world.began
    assert took_s < LONGEST_S, f"{took_s:.0f} s"
    accepted_only_if_all_held(checked, disturbed=True)
    rejecting = [one for one in checked.bad if one.kind in REJECTS or one.kind == "miss"]
    for rank, end in world.ends.items():
        assert end.exit_code != 1 or rejecting, f"rank {rank} rejects what nothing was wrong with: {end.lines}"


Strangers.TestCase.settings = settings_of(num_examples=60, num_steps=16)
TestStrangers = Strangers.TestCase
