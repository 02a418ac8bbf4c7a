"""Attempts: causes before victims, the ranks that did not arrive, the stacks of stuck workers, and validations that are too large."""

import pytest

from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import LastCollective, RankRecord
from gpu_acceptance.record.run_record import WHOLE, RunEnd
from gpu_acceptance.supervisor.leader import Validation
from gpu_acceptance.verdict.attempts import bare_row, causes_before_victims, frames, is_poison, own_frame, too_small, waits, where
from gpu_acceptance.verdict.reasons import broken_off
from gpu_acceptance.verdict.verdict import conclude
from tests.journals import LARGE_JOB, told
from tests.judging import make_job, make_record

TORCH = "/venv/lib/python3.11/site-packages/torch"
IN_ALL_REDUCE = f'''Stack (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/suite/acceptance/test_hangs.py", line 15 in test_hangs
  File "/venv/lib/python3.11/site-packages/_pytest/python.py", line 187 in pytest_pyfunc_call
'''
IN_SYNCHRONIZE = f'''Stack (most recent call first):
  File "{TORCH}/cuda/__init__.py", line 1085 in synchronize
  File "/suite/src/gpu_acceptance/measure/timing.py", line 118 in _elapsed_s
  File "/suite/acceptance/test_nccl.py", line 15 in test_large
'''
IN_GATHER = """Stack (most recent call first):
  File "/suite/src/gpu_acceptance/base/model.py", line 90 in read
  File "/suite/src/gpu_acceptance/worker/plugin.py", line 173 in _receive
  File "/suite/src/gpu_acceptance/worker/plugin.py", line 150 in _gather
  File "/suite/acceptance/test_gathers.py", line 9 in test_gathers
"""
IN_EXCHANGE = """Stack (most recent call first):
  File "/suite/src/gpu_acceptance/measure/exchange.py", line 102 in _run
  File "/suite/src/gpu_acceptance/measure/timing.py", line 143 in _elapsed_s
  File "/suite/acceptance/test_gathers.py", line 9 in test_gathers
"""
ASLEEP = 'Stack (most recent call first):\n  File "/suite/acceptance/test_hangs.py", line 14 in test_hangs\n'
WAITS_FOR_WORD = """Stack (most recent call first):
  File "/suite/src/gpu_acceptance/base/model.py", line 90 in read
  File "/suite/src/gpu_acceptance/worker/plugin.py", line 204 in _receive
  File "<frozen runpy>", line 88 in _run_code
"""
AFTER_THE_LAST_LINE = f"""Stack (most recent call first):
  File "{TORCH}/cuda/__init__.py", line 1162 in synchronize
  File "/suite/src/gpu_acceptance/worker/group.py", line 68 in wait_for_device
  File "/suite/src/gpu_acceptance/worker/plugin.py", line 139 in _wait_for_device
  File "/suite/src/gpu_acceptance/worker/plugin.py", line 105 in _run
"""
FORMING = f"""Stack (most recent call first):
  File "{TORCH}/cuda/__init__.py", line 1162 in synchronize
  File "/suite/src/gpu_acceptance/worker/group.py", line 68 in wait_for_device
  File "/suite/src/gpu_acceptance/worker/group.py", line 54 in form_group
"""


def elsewhere(line: int) -> str:
    return IN_ALL_REDUCE.replace("line 15", f"line {line}")


def last(number: int, name: str = "all_reduce", group: str = "default_pg", *, finished: bool = False) -> LastCollective:
    return LastCollective(group=group, number=number, operation=name, finished=finished)


def stuck(rank: int, stack: str, *collectives: LastCollective) -> RankRecord:
    facts = {"message": "deadline of 3 s passed", "stack": stack, "collectives": collectives}
    return RankRecord(nodeid="a", attempt=1, generation=1, rank=rank, outcome=Outcome.STUCK, phase="call", **facts)


def ranks_that_stay_stuck(*ranks):
    """Each rank is a stack, or a stack and its collectives."""
    each = [one if isinstance(one, tuple) else (one,) for one in ranks]
    records = causes_before_victims([stuck(rank, *one) for rank, one in enumerate(each)])
    assert {record.outcome for record in records} <= {Outcome.STUCK, Outcome.VICTIM}
    return [record.rank for record in records if record.outcome is Outcome.STUCK]


def test_frames_are_those_of_the_main_thread():
    native = 'Process 17: python\nThread 17 (idle): "MainThread"\n  File "/suite/other.py", line 1 in other\n'
    assert [str(frame) for frame in frames(IN_ALL_REDUCE)][:1] == ["distributed_c10d.py:3252 in all_reduce"]
    assert frames(IN_ALL_REDUCE + native) == frames(IN_ALL_REDUCE)
    assert frames(native) == frames("nothing that is a stack") == frames("") == []


IN_EVENT = 'Stack (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 331 in wait\n'


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        *((stack, True) for stack in (IN_ALL_REDUCE, IN_SYNCHRONIZE, IN_GATHER, IN_EXCHANGE)),
        (IN_GATHER.replace("base/model", "worker/messages"), True),  # an older record
        *((stack, False) for stack in (ASLEEP, IN_EVENT, "")),
    ],
)
def test_which_stacks_wait_for_other_ranks(stack, expected):
    assert waits(frames(stack)) is expected


def test_the_own_frame_is_outside_of_libraries():
    assert str(own_frame(frames(IN_ALL_REDUCE))) == "test_hangs.py:15 in test_hangs"
    assert str(own_frame(frames(IN_SYNCHRONIZE))) == "test_nccl.py:15 in test_large"
    assert own_frame([]) is None


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        (IN_ALL_REDUCE, "all_reduce (distributed_c10d.py:3252), at test_hangs.py:15 in test_hangs"),
        (ASLEEP, "test_hangs.py:14 in test_hangs"),
        (IN_GATHER, "read (model.py:90), at test_gathers.py:9 in test_gathers"),
        (WAITS_FOR_WORD, ""),
        (AFTER_THE_LAST_LINE, "synchronize (__init__.py:1162), after the last line of the validation"),
        (FORMING, "synchronize (__init__.py:1162)"),
        ("", ""),
    ],
)
def test_the_place_of_a_stuck_rank(stack, text):
    assert where(stack) == text


def test_a_rank_that_waits_for_one_that_never_came_is_a_victim():
    first, second, third = causes_before_victims([stuck(0, IN_ALL_REDUCE), stuck(1, ASLEEP), stuck(2, IN_SYNCHRONIZE)])
    assert [first.outcome, second.outcome, third.outcome] == [Outcome.VICTIM, Outcome.STUCK, Outcome.VICTIM]
    assert first.message == "waits for rank 1 in all_reduce, at test_hangs.py:15 in test_hangs"


def test_a_rank_that_waits_for_its_gpu_names_the_collective():
    """NCCL's collectives return before they are done: the stack shows only that the GPU is not."""
    first, _ = causes_before_victims([stuck(0, AFTER_THE_LAST_LINE, last(4)), stuck(1, ASLEEP, last(3, finished=True))])
    place = "waits for rank 1 in synchronize, after the last line of the validation"
    assert first.message == f"{place}; unfinished collective on default_pg: number 4, all_reduce"


OWN_GROUP = last(7, "all_gather", group="1", finished=True)
THROUGH = last(3, "all_gather", finished=True)
P2P = {"is_p2p": True}


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        # A link that falls silent between two of many: no flight recorder knows what gloo sends and receives.
        pytest.param([IN_GATHER, IN_EXCHANGE, IN_GATHER, IN_EXCHANGE], [1, 3], id="some gather and others do not"),
        pytest.param([IN_EXCHANGE, IN_EXCHANGE], [0, 1], id="none gathers"),
        pytest.param([IN_GATHER, IN_EXCHANGE, ASLEEP], [2], id="one does not wait at all"),
        pytest.param([IN_GATHER, IN_ALL_REDUCE, IN_ALL_REDUCE], [0], id="one gathers while most reduce"),
        pytest.param([IN_ALL_REDUCE, "", IN_ALL_REDUCE], [1], id="one has no stack"),
        pytest.param([IN_ALL_REDUCE, IN_ALL_REDUCE, elsewhere(20), IN_ALL_REDUCE], [2], id="one waits elsewhere than most"),
        pytest.param([IN_ALL_REDUCE, IN_ALL_REDUCE], [0, 1], id="all wait at one place"),
        pytest.param([IN_ALL_REDUCE, elsewhere(20)], [0, 1], id="a tie"),
        pytest.param([ASLEEP, ASLEEP], [0, 1], id="none waits"),
        pytest.param(["", ""], [0, 1], id="no stacks"),
        pytest.param([*[(IN_SYNCHRONIZE, last(2))] * 3, (IN_SYNCHRONIZE, last(1, "all_gather"))], [3], id="another collective at one line"),
        # A cable drops inside an all_reduce of all four, after three of them have used a group of their own.
        pytest.param([*[(IN_SYNCHRONIZE, OWN_GROUP, last(9))] * 3, (IN_SYNCHRONIZE, last(9))], [0, 1, 2, 3], id="outside of one group"),
        pytest.param(
            [
                *((IN_SYNCHRONIZE, *some) for some in ((OWN_GROUP, last(9)), (last(9),), (OWN_GROUP, last(9)))),
                (IN_SYNCHRONIZE, OWN_GROUP, last(8, "broadcast")),
            ],
            [3],
            id="a finished group hides no other place",
        ),
        # Rank 2 took a recv for the all_reduce of the others; its messages are counted apart, and it has sent many.
        pytest.param(
            [
                (AFTER_THE_LAST_LINE, last(5, "all_gather")),
                (AFTER_THE_LAST_LINE, last(4)),
                (AFTER_THE_LAST_LINE, last(90, "recv 2<-3").model_copy(update=P2P)),
                *[(AFTER_THE_LAST_LINE, last(4))] * 5,
            ],
            [2],
            id="a message between two ranks is not ahead of a collective",
        ),
        *(
            pytest.param(
                [(AFTER_THE_LAST_LINE, last(4, f"nccl:{name} [[2, 4]] Float")), *[(AFTER_THE_LAST_LINE, last(4, f"nccl:{name} [] "))] * 3],
                [0, 1, 2, 3],
                id=f"sizes of {name} differ by nature",
            )
            for name in ("scatter", "gather", "all_to_all")
        ),
        pytest.param(
            [
                (AFTER_THE_LAST_LINE, last(4, "nccl:reduce_scatter [[8]] Float")),
                *[(AFTER_THE_LAST_LINE, last(4, "nccl:reduce_scatter [[4]] Float"))] * 3,
            ],
            [0],
            id="another size of one collective",
        ),
        pytest.param([(IN_ALL_REDUCE, last(2)), (elsewhere(20), last(2)), elsewhere(20)], [0], id="one rank has no collectives"),
        # `int(tensor)` and `work.wait()` show the line of the validation, as a loop there does.
        pytest.param([(ASLEEP, last(2)), (ASLEEP, last(2)), (ASLEEP, last(1, finished=True))], [2], id="waiting in C, in its own line"),
        pytest.param([("", last(2)), ("", last(2)), (ASLEEP, last(1, finished=True))], [2], id="waiting in C, without a stack"),
        pytest.param([(IN_SYNCHRONIZE, last(2)), (ASLEEP, last(2))], [0, 1], id="all came and the collective hangs"),
        pytest.param([(IN_ALL_REDUCE, last(2)), *[(ASLEEP, last(1, finished=True))] * 2], [1, 2], id="done with its collectives"),
        # It was through with its call, and waits for its supervisor's message, which waits for the other.
        pytest.param([(IN_ALL_REDUCE, last(4)), (WAITS_FOR_WORD, THROUGH)], [1], id="one of two did not issue it"),
        pytest.param([(IN_ALL_REDUCE, last(4)), *[(WAITS_FOR_WORD, THROUGH)] * 2], [0], id="one of three issued one more"),
        pytest.param(
            [(IN_ALL_REDUCE, last(4)), (WAITS_FOR_WORD, last(3, "send", finished=True).model_copy(update=P2P))],
            [0, 1],
            id="messages between two ranks are not compared",
        ),
    ],
)
def test_which_ranks_did_not_arrive(ranks, expected):
    assert ranks_that_stay_stuck(*ranks) == expected


def test_a_rank_that_was_let_through_by_a_wrong_collective_is_a_victim():
    """As 8 ranks were seen on NCCL: rank 2 had issued an all_gather; rank 0 got all that the ring owed it, and stood in the next one."""
    collectives = [last(5, "all_gather"), last(4), last(4, "all_gather"), *[last(4)] * 5]
    records = causes_before_victims([stuck(rank, AFTER_THE_LAST_LINE, one) for rank, one in enumerate(collectives)])
    assert [record.rank for record in records if record.outcome == "stuck"] == [2]
    assert records[0].message.startswith("waits for rank 2 in synchronize")


def test_a_rank_that_waits_in_c_for_one_that_died_is_its_victim():
    died = stuck(1, "").model_copy(update={"outcome": Outcome.DIED})
    assert [record.outcome for record in causes_before_victims([stuck(0, ASLEEP, last(2)), died])] == ["victim", "died"]


@pytest.mark.parametrize(
    ("outcome", "phase", "poison"),
    [
        (Outcome.PASSED, "", False),
        (Outcome.SKIPPED, "setup", False),
        (Outcome.NOT_RUN, "setup", False),
        (Outcome.DIED, "setup", True),
        (Outcome.STUCK, "call", True),
        (Outcome.LOST, "", True),
        (Outcome.VICTIM, "call", True),
        (Outcome.INTERRUPTED, "setup", True),
        (Outcome.INTERRUPTED, "call", True),
        (Outcome.ERROR, "setup", False),
        (Outcome.ERROR, "call", True),
        (Outcome.ERROR, "teardown", True),
        (Outcome.FAILED, "call", True),
        (Outcome.FAILED, "teardown", True),
    ],
)
def test_which_records_leave_their_generation_in_an_unknown_state(outcome, phase, poison):
    assert is_poison(make_record(0, outcome, phase=phase)) is poison


@pytest.mark.parametrize("cause", [Outcome.DIED, Outcome.STUCK, Outcome.LOST])
def test_an_error_in_the_call_beside_a_death_is_its_echo(cause):
    records = (
        make_record(0, Outcome.ERROR, phase="call", message="Connection reset by peer"),
        make_record(1, cause),
        make_record(2, Outcome.ERROR, phase="setup", message="no room"),
        make_record(3, Outcome.FAILED, phase="call", message="assert 1 == 2"),
    )
    assert [record.outcome for record in causes_before_victims(records)] == [Outcome.VICTIM, cause, Outcome.ERROR, Outcome.FAILED]


def test_a_rank_waits_for_the_one_that_died_and_not_for_its_echoes():
    records = (
        stuck(0, IN_ALL_REDUCE),
        make_record(1, Outcome.DIED, message="the worker ended with signal SIGSEGV"),
        make_record(2, Outcome.ERROR, phase="call", message="Connection reset by peer"),
    )
    first, died, echo = causes_before_victims(records)
    assert (first.outcome, first.message.split(" in ")[0]) == (Outcome.VICTIM, "waits for rank 1")
    assert died == records[1]
    assert (echo.outcome, echo.message) == (Outcome.VICTIM, "echo of a peer's end: Connection reset by peer")


@pytest.mark.parametrize("other", [Outcome.VICTIM, Outcome.FAILED])
def test_an_error_without_a_cause_stays_an_error(other):
    records = (make_record(0, Outcome.ERROR, phase="call"), make_record(1, other, phase="call"))
    assert causes_before_victims(records) == records


@pytest.mark.parametrize(
    ("needed", "reason"),
    [
        ({"min_ranks": 4, "min_ranks_per_node": 2, "min_nodes": 2}, "None"),
        ({"min_ranks": 16}, "needs at least 16 ranks, this job has 4"),
        ({"min_ranks": 4, "min_ranks_per_node": 3}, "needs at least 3 ranks on a node, this job has 2"),
        ({"min_nodes": 3}, "needs at least 3 nodes, this job has 2"),
    ],
)
def test_a_job_that_is_too_small(needed, reason):
    assert str(too_small(Validation(nodeid=LARGE_JOB, deadline_s=60, **needed), make_job(4, 2))) == reason


def test_a_bare_row_has_the_subject_of_its_validation():
    row = bare_row(LARGE_JOB, Outcome.NOT_RUN, "why", 60.0)
    assert (row.subject, row.outcome, row.message, row.deadline_s, row.attempts) == ("rail", Outcome.NOT_RUN, "why", 60.0, ())


def test_a_run_without_a_conclusion_is_incomplete_whatever_it_proved():
    run = told()
    rows = run.rows()[:3]
    plan = run.plan.model_copy(
        update={"validations": tuple(one for one in run.plan.validations if one.nodeid in {row.nodeid for row in rows})}
    )
    conclusion = conclude(plan, run.job, rows, RunEnd(not_concluded=("no reporter saw the end", "line 3 is cut off")))
    assert (conclusion.verdict, conclusion.line, conclusion.exit_code) == ("INCOMPLETE", "INCOMPLETE: no reporter saw the end", 6)
    assert conclusion.reasons == ("no reporter saw the end", "line 3 is cut off")
    assert list(broken_off(False, WHOLE)) == []
