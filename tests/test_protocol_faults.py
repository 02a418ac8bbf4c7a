"""One fault each in a virtual run. The state machine of the protocol (test_protocol_machine.py) found these once."""

import pytest
from virtual.invariants import check
from virtual.world import RUN_ID, Shape, World, validations

from gpu_acceptance.cli import verbs as cli
from gpu_acceptance.folder.files import read_results
from gpu_acceptance.folder.journal import read_journal
from gpu_acceptance.record.row import WORKER_END
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.verdict.reasons import FORMATION

V0, V1 = (one.nodeid for one in validations({}, {}))


@pytest.fixture
def world_with(tmp_path):
    """Return a function that makes a world with these faults, by rank, node id, attempt and phase."""
    made = []

    def world(faults, **shape) -> World:
        made.append(World(Shape(**{"world_size": 3, "validations": validations({}, {}), **shape}), tmp_path, faults))
        return made[-1]

    yield world
    for one in made:
        one.close()


@pytest.fixture
def make(world_with):
    """Return a function that makes a world with these faults: (rank, node id, phase, kind), each in the first attempt."""
    return lambda *faults, **shape: world_with({(rank, nodeid, 1, phase): kind for rank, nodeid, phase, kind in faults}, **shape)


def written(world: World) -> RunRecord:
    return read_results(next(folder for folder in world.run_folders if (folder / "results.json").exists()))


def attempts_at(world: World, nodeid: str) -> list[list[str]]:
    row = next(row for row in written(world).rows if row.nodeid == nodeid)
    return [[str(one.outcome) for one in attempt.ranks] for attempt in row.attempts]


def outcomes(world: World, nodeid: str) -> list[str]:
    return attempts_at(world, nodeid)[0]


def codes(world: World) -> dict[int, int]:
    return {rank: end.exit_code for rank, end in sorted(world.ends.items())}


def ended(world: World) -> World:
    world.finish(5000.0)
    check(world)
    return world


def test_nothing_happens(make):
    world = ended(make())
    assert codes(world) == {0: 0, 1: 0, 2: 0}
    assert world.ends[2].lines[0] == "ACCEPTED (cpu profile: no GPU was tested)"


@pytest.mark.parametrize("phase", ["setup", "call"])
def test_a_message_of_the_attempt_before_is_not_taken(make, phase):
    world = ended(make((1, V0, phase, "late")))
    assert (codes(world), outcomes(world, V1)) == ({0: 0, 1: 0, 2: 0}, ["passed"] * 3)


def test_ranks_whose_relay_is_cut_off_for_a_while_read_for_themselves(make):
    """Rank 2 relays broadcasts to rank 3, and alone is cut off from the store."""
    world = make(world_size=4, num_nodes=2)
    world.run_to_the_plan()
    world.cut_off(2, 5.0)
    assert codes(ended(world)) == dict.fromkeys(range(4), 0)
    assert outcomes(world, V0) == ["passed"] * 4


def test_ranks_whose_relay_is_lost_hear_of_the_end_as_soon_as_all(make):
    world = make(world_size=4, num_nodes=2)
    world.run_next()
    world.cut_off(2, 1e6)
    assert codes(ended(world)) == {0: 6, 1: 6, 2: 3, 3: 6}
    assert outcomes(world, V0)[2] == "lost"
    assert abs(world.ends[3].at - world.ends[1].at) < 0.1


@pytest.mark.parametrize("kind", ["garbled", "of a fork"])
def test_a_worker_that_is_killed_for_a_message_in_its_set_up_is_replaced(make, kind):
    world = ended(make((1, V0, "setup", kind)))
    assert outcomes(world, V0)[1] == "error"
    assert outcomes(world, V1) == ["passed"] * 3
    assert codes(world) == {0: 6, 1: 6, 2: 6}


@pytest.mark.parametrize(("following", "before"), [(V1, V0), (WORKER_END, V1)])
def test_garbage_after_a_validation_ends_the_next_at_once_and_names_the_one_before(make, following, before):
    world = ended(make((1, following, "before", "garbled")))
    assert outcomes(world, before) == ["passed"] * 3
    assert outcomes(world, following)[1] == "error"
    assert codes(world) == {0: 6, 1: 6, 2: 6}
    assert f"after the end of {before}: the worker sent something that is no message" in " ".join(world.ends[2].lines)
    assert world.schedule.now - world.began < 5


def test_the_end_of_a_worker_that_sent_garbage_echoes_in_its_peers(make):
    world = ended(make((1, V0, "call", "garbled"), (0, V0, "call", "slow")))
    assert outcomes(world, V0) == ["victim", "error", "victim"]


@pytest.mark.parametrize("collectives_tell", [True, False])
@pytest.mark.parametrize(
    ("phase", "kind", "outcome"), [("start", "exit", "error"), ("form", "signal", "died"), ("form", "error", "failed")]
)
def test_a_rank_that_waits_in_a_formation_for_a_failed_one_is_its_victim(make, collectives_tell, phase, kind, outcome):
    world = ended(make((1, FORMATION, phase, kind), collectives_tell=collectives_tell))
    assert outcomes(world, FORMATION) == ["victim", outcome, "victim"]
    assert outcomes(world, V0) == ["passed"] * 3


@pytest.mark.parametrize("collectives_tell", [True, False])
def test_a_deadline_that_passes_before_a_lost_rank_is_missed_blames_no_rank_that_waits(make, collectives_tell):
    world = make(collectives_tell=collectives_tell, launcher_kills=False)
    world.run_to_the_plan()
    world.kill(2)
    assert outcomes(ended(world), FORMATION) == ["victim", "victim", "lost"]
    assert codes(world) == {0: 5, 1: 5}


def test_a_stop_while_ranks_are_awaited_ends_the_run_before_the_launcher_loses_its_patience(make):
    world = make()
    world.kill(2)
    ended(world)
    assert world.schedule.now - world.began < 10
    assert {rank: (end.exit_code, end.lines) for rank, end in world.ends.items()} == dict.fromkeys(
        (0, 1), (2, ("interrupted by SIGTERM before the ranks had agreed on what to run",))
    )


def test_a_second_signal_does_not_keep_the_event_loop_awake(make):
    world = make()
    world.run_to_the_plan()
    world.signal(1)
    world.advance(0.2)
    world.signal(1)
    assert set(codes(ended(world)).values()) == {2}


def test_all_give_up_a_leader_together_though_only_its_own_node_was_signalled(make):
    world = make(world_size=4, num_nodes=2, shared_disk=False)
    world.run_next()
    world.kill(0)
    ended(world)
    assert len({end.lines[0] for end in world.ends.values()}) == 1
    assert world.ends[3].lines[0].startswith("INCOMPLETE: no reporter saw this run whole: rebuilt from 4 of 4 journals (rank 0 lost: ")
    assert [(folder / "results.json").exists() for folder in world.run_folders] == [True, False]


@pytest.mark.parametrize("shared_disk", [True, False])
def test_all_live_ranks_report_with_the_lowest_of_them(make, shared_disk):
    world = make(world_size=4, launcher_kills=False, shared_disk=shared_disk)
    world.run_next()
    world.kill(0)
    assert codes(ended(world)) == {1: 5, 2: 5, 3: 5}
    assert len({end.lines[0] for end in world.ends.values()}) == 1


def test_a_standby_can_be_lost_as_well(make):
    world = make(launcher_kills=False, shared_disk=False)
    for _ in ("formation", V0):
        world.run_next()
    world.kill(0)
    world.advance(17.0)
    world.kill(1)
    assert codes(ended(world)) == {2: 6}
    assert outcomes(world, V0) == ["passed"] * 3


@pytest.mark.parametrize(("after_s", "code"), [(0.0, 6), (0.001, 6), (0.01, 3)])
def test_a_store_that_is_gone_while_ranks_join_or_have_just_agreed_is_one_clear_line(make, after_s, code):
    world = make()
    world.advance(after_s)
    world.lose_store()
    assert codes(ended(world)) == dict.fromkeys(range(3), code)
    assert all("control store" in end.lines[0] for end in world.ends.values())


@pytest.mark.parametrize("shared_disk", [True, False])
def test_ranks_that_never_come_are_named_in_the_journals_of_all_that_did(make, shared_disk, capsys):
    world = make(world_size=4, num_nodes=2, launcher_kills=False, shared_disk=shared_disk)
    world.kill(3)
    said = "rank 3 (node 1) did not arrive within 60 s; see what torchrun said there"
    assert {rank: (end.exit_code, end.lines) for rank, end in ended(world).ends.items()} == dict.fromkeys(range(3), (6, (said,)))
    for rank in range(3):
        content = read_journal(world.run_folder(rank) / "journal" / f"rank-{rank:05d}.jsonl")
        assert (content.identity.rank, content.identity.run_id, content.refusal.message) == (rank, RUN_ID, said)
        assert cli.main(["verdict", str(world.run_folder(rank).parent)]) == 6
        assert capsys.readouterr().out.startswith(f"INCOMPLETE: nothing ran: {said} | run {RUN_ID} | ended ")


def test_a_rank_that_never_reaches_the_store_says_so_in_a_folder_of_its_own(make):
    world = make(world_size=4, num_nodes=2, launcher_kills=False, shared_disk=False)
    world.cut_off(2, 1e6)
    assert codes(ended(world)) == dict.fromkeys(range(4), 6)
    assert world.ends[2].lines[0].startswith("no control store at 127.0.0.1:29500 within 60 s: ")
    assert world.ends[3].lines[0].startswith("rank 2 (node 1) did not arrive within 60 s")
    assert len({path.parents[1].name for rank in range(4) for path in world.journals(rank)}) == 2
    assert world.journals(2)[0].parents[1].name != RUN_ID


def test_a_leader_that_never_says_hello_is_reported_by_each_rank_alone(make):
    world = make(launcher_kills=False)
    world.kill(0)
    assert codes(ended(world)) == {1: 6, 2: 6}
    assert {end.lines for end in world.ends.values()} == {("rank 0 lost: silent for 90 s where a welcome message was due",)}
    assert not world.run_folder(1).exists()
    assert [len(world.journals(rank)) for rank in (1, 2)] == [1, 1]


def test_a_leader_that_is_lost_before_the_plan_is_the_last_line_of_journals_that_were_begun(make):
    world = make(launcher_kills=False)
    world.schedule.wait(lambda: len(world.runs) == 3, 10.0)
    world.kill(0)
    assert codes(ended(world)) == {1: 6, 2: 6}
    assert {end.lines for end in world.ends.values()} == {("no verdict: rank 0 lost: no heartbeat for 15 s",)}
    assert [path.parents[1].name for rank in (1, 2) for path in world.journals(rank)] == [RUN_ID] * 2


def test_a_rank_that_is_cut_off_before_it_has_collected_is_named_by_itself_and_by_the_others(make):
    world = make(launcher_kills=False)
    world.schedule.wait(lambda: len(world.runs) == 3, 10.0)
    *others, last = world.runs
    world.cut_off(last, 1e6)
    assert codes(ended(world)) == dict.fromkeys(range(3), 6)
    assert {world.ends[rank].lines for rank in others} == {(f"no verdict: rank {last} did not finish collecting within 120 s",)}
    assert world.ends[last].lines[0].startswith("no verdict: the control store at 127.0.0.1:29500 does not answer: node 0 (")


def test_a_signal_while_ranks_are_missing_leaves_nothing(make):
    world = make(launcher_kills=False)
    world.kill(2)
    world.advance(1.0)
    world.signal(1)
    assert codes(ended(world)) == {0: 2, 1: 2}
    assert [*world.folder.iterdir()] == []


def test_a_signal_while_the_store_is_out_of_reach_leaves_nothing_either(make):
    world = make(launcher_kills=False)
    world.cut_off(2, 1e6)
    world.advance(1.0)
    world.signal(2)
    assert codes(ended(world)) == {0: 6, 1: 6, 2: 2}
    assert world.journals(2) == []


def test_the_first_message_of_a_standby_is_heard_by_ranks_that_elect_it_a_moment_later(make):
    """The lost leader had written its results: there was nothing to rebuild, and so nothing to wait for."""
    world = make(seed=328, world_size=8, validations=validations({"fresh": True}, {}, {}), collectives_tell=False)
    world.run_to_the_plan()
    world.cut_off(0, 1e6)
    world.kill(6)
    assert set(codes(ended(world)).values()) == {2}


def test_a_busy_leader_is_not_given_up(make):
    world = make()
    world.keep_busy(0, 6.0)
    world.run_next()
    world.advance(0.5)
    world.signal(2)
    assert codes(ended(world)) == {0: 2, 1: 2, 2: 2}
    assert world.ends[0].lines[0].startswith("INCOMPLETE: interrupted")
    assert not written(world).rebuilt


@pytest.mark.parametrize("shared_disk", [True, False])
@pytest.mark.parametrize("seconds", [12.0, 14.75, 15.5, 20.0, 28.0])
def test_a_leader_that_does_not_react_is_given_up_by_all_and_by_itself(make, seconds, shared_disk):
    world = make(world_size=4, num_nodes=2, shared_disk=shared_disk)
    world.keep_busy(0, seconds)
    world.run_next()
    world.advance(0.5)
    world.signal(2)
    assert codes(ended(world)) == dict.fromkeys(range(4), 2)
    assert "rank 0 lost: it did not react to SIGTERM within 10 s" in written(world).rebuilt
    assert sum((folder / "results.json").exists() for folder in world.run_folders) == 1


def test_a_leader_that_was_given_up_and_finds_no_rank_alive_reports_alone(make):
    world = make(world_size=2, launcher_kills=False)
    world.keep_busy(0, 20.0)
    world.run_next()
    world.advance(0.5)
    world.signal(1)
    world.advance(11.5)
    world.kill(1)
    assert codes(ended(world)) == {0: 3}
    problem = "internal error: rank 0 lost: it did not react to SIGTERM within 10 s; no other rank is alive"
    assert problem in written(world).conclusion.reasons


def test_a_rank_that_was_cut_off_itself_does_not_give_up_the_leader(make):
    """It asked the leader to stop, and the leader could not hear it."""
    world = make(world_size=3)
    world.run_to_the_plan()
    world.cut_off(2, 12.0)
    world.signal(2)
    ended(world)
    assert not written(world).rebuilt


def test_the_lowest_alive_is_found_beyond_the_first_candidates(make):
    world = make(world_size=8, launcher_kills=False)
    world.run_next()
    for rank in (0, 1, 2, 3, 4):
        world.kill(rank)
    assert codes(ended(world)) == {5: 5, 6: 5, 7: 5}
    assert len({end.lines[0] for end in world.ends.values()}) == 1


ALONE = {"needs_group": False}
WITHOUT_RANK_1 = {(1, FORMATION, number, "form"): "error" for number in (1, 2, 3)}  # two groups, then its worker


@pytest.fixture
def without_rank_1(world_with):
    """Return a function that ends a world in which rank 1 gets no worker, with these faults and validations."""
    return lambda faults, *asked, **shape: ended(world_with({**WITHOUT_RANK_1, **faults}, validations=validations(*asked), **shape))


def test_a_rank_without_a_worker_spoils_no_generation(without_rank_1):
    """Rank 0 alone spoils the generation in which no rank comes up; then both are tried again."""
    world = without_rank_1({(0, FORMATION, 4, "form"): "error"}, ALONE, {**ALONE, "fresh": True}, ALONE, world_size=2)
    assert attempts_at(world, FORMATION)[3:] == [["failed", "not run"], ["passed", "passed"]]
    assert attempts_at(world, validations(ALONE, ALONE, ALONE)[2].nodeid) == [["passed", "passed"]]


def test_variables_with_which_no_group_forms_cost_what_asked_for_them(world_with):
    """Workers without them have a group before and after."""
    own = {"env": {"NCCL_ALGO": "Ring"}}
    faults = {(1, FORMATION, number, "form"): "error" for number in (2, 3)}
    world = ended(world_with(faults, validations=validations(own, {}, own), world_size=2))
    rows = {row.nodeid: row for row in written(world).rows}
    first, second, third = (one.nodeid for one in validations(own, {}, own))
    assert [str(rows[nodeid].outcome) for nodeid in (first, second, third)] == ["not run", "passed", "not run"]
    assert rows[first].message == rows[third].message == f"no process group: 2 formations in a row failed (see {FORMATION})"
    assert attempts_at(world, FORMATION) == [["passed"] * 2, *[["victim", "failed"]] * 2, ["passed"] * 2]


@pytest.mark.parametrize(("kind", "second"), [("hang", "not measured"), ("", "passed")])
def test_what_is_cut_short_after_a_hang_may_only_be_slow(world_with, kind, second):
    """A deadline of 600 s is 60 s for a validation that takes a second."""
    changes = {"deadline_s": 600.0}
    faults = {(1, V0, 1, "call"): "hang", **({(1, V1, 1, "call"): kind} if kind else {})}
    world = ended(world_with(faults, validations=validations(changes, changes), world_size=2, expected_s=1.0))
    rows = {row.nodeid: row for row in written(world).rows}
    assert [str(rows[nodeid].outcome) for nodeid in (V0, V1)] == ["stuck", second]
    assert [rows[nodeid].deadline_s for nodeid in (V0, V1)] == [600, 60]
    if kind:
        why = "deadline of 60 s passed, shortened because another validation was stuck: this one may only be slow"
        assert why in rows[V1].message


def test_a_rank_without_a_worker_was_in_no_phase(without_rank_1):
    world = without_rank_1({}, {**ALONE, "fresh": True}, {**ALONE, "fresh": True})
    row, validation = written(world).rows[:2]
    assert "rank 1 (node-00): not run of attempt 4: no worker: none could be started" in row.message
    assert "rank 1 (node-00): not run: no worker: none could be started" in validation.message


def test_an_unstable_validation_is_repeated_without_a_rank_that_has_no_worker(without_rank_1):
    world = without_rank_1({(0, V0, 1, "call"): "unstable"}, ALONE)
    assert attempts_at(world, V0) == [["passed", "not run", "passed"]] * 2
    assert next(row for row in written(world).rows if row.nodeid == V0).outcome == "not measured"  # and unstable no more


def test_a_miss_is_confirmed_without_a_rank_that_has_no_worker(without_rank_1):
    world = without_rank_1({(0, V0, number, "call"): "miss" for number in (1, 2)}, ALONE, confirm=1)
    assert attempts_at(world, V0) == [["passed", "not run", "passed"]] * 2
    assert "1 limit missed" in written(world).conclusion.line
