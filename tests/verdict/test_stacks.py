"""Who waits for whom, from the stacks of stuck workers."""

import pytest

from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import LastCollective, RankRecord
from gpu_acceptance.verdict.attempts import causes_before_victims, frames, own_frame, waits, where

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
  File "/suite/src/gpu_acceptance/worker/messages.py", line 25 in read
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
  File "/suite/src/gpu_acceptance/worker/messages.py", line 25 in read
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


def stuck(rank: int, stack: str, *collectives: LastCollective) -> RankRecord:
    said = {"message": "deadline of 3 s passed", "stack": stack, "collectives": collectives}
    return RankRecord(nodeid="a", attempt=1, generation=1, rank=rank, outcome=Outcome.STUCK, phase="call", **said)


def outcomes(*stacks: str) -> list[str]:
    return [record.outcome for record in causes_before_victims([stuck(rank, stack) for rank, stack in enumerate(stacks)])]


def test_frames_are_those_of_the_main_thread():
    assert [str(frame) for frame in frames(IN_ALL_REDUCE)][:1] == ["distributed_c10d.py:3252 in all_reduce"]
    assert frames("nothing that is a stack") == []
    assert frames("") == []


@pytest.mark.parametrize(
    ("stack", "expected"),
    [(IN_ALL_REDUCE, True), (IN_SYNCHRONIZE, True), (IN_GATHER, True), (IN_EXCHANGE, True), (ASLEEP, False), ("", False)],
)
def test_waits(stack, expected):
    assert waits(frames(stack)) is expected


def test_the_own_frame_is_no_library_s():
    assert str(own_frame(frames(IN_ALL_REDUCE))) == "test_hangs.py:15 in test_hangs"
    assert str(own_frame(frames(IN_SYNCHRONIZE))) == "test_nccl.py:15 in test_large"
    assert own_frame([]) is None


@pytest.mark.parametrize(
    ("stack", "text"),
    [
        (IN_ALL_REDUCE, "all_reduce (distributed_c10d.py:3252), at test_hangs.py:15 in test_hangs"),
        (ASLEEP, "test_hangs.py:14 in test_hangs"),
        (IN_GATHER, "read (messages.py:25), at test_gathers.py:9 in test_gathers"),
        (WAITS_FOR_WORD, ""),
        (AFTER_THE_LAST_LINE, "synchronize (__init__.py:1162), after the last line of the validation"),
        (FORMING, "synchronize (__init__.py:1162)"),
        ("", ""),
    ],
)
def test_where(stack, text):
    assert where(stack) == text


def test_who_waits_for_the_one_that_never_came_is_a_victim():
    first, second, third = causes_before_victims([stuck(0, IN_ALL_REDUCE), stuck(1, ASLEEP), stuck(2, IN_SYNCHRONIZE)])
    assert [first.outcome, second.outcome, third.outcome] == [Outcome.VICTIM, Outcome.STUCK, Outcome.VICTIM]
    assert first.message == "waits for rank 1 in all_reduce, at test_hangs.py:15 in test_hangs"


def test_who_waits_for_its_gpu_says_for_which_collective():
    """NCCL's collectives return before they are done: the stack shows only that the GPU is not."""
    first, _ = causes_before_victims([stuck(0, AFTER_THE_LAST_LINE, last(4)), stuck(1, ASLEEP, last(3, finished=True))])
    place = "waits for rank 1 in synchronize, after the last line of the validation"
    assert first.message == f"{place}; unfinished collective on default_pg: number 4, all_reduce"


def test_where_some_gather_those_are_named_that_do_not():
    """A link that falls silent between two of many: no flight recorder knows what gloo sends and receives."""
    assert outcomes(IN_GATHER, IN_EXCHANGE, IN_GATHER, IN_EXCHANGE) == ["victim", "stuck", "victim", "stuck"]
    assert outcomes(IN_EXCHANGE, IN_EXCHANGE) == ["stuck", "stuck"]
    assert outcomes(IN_GATHER, IN_EXCHANGE, ASLEEP) == ["victim", "victim", "stuck"]


def test_who_gathers_while_most_reduce_is_the_one_that_is_elsewhere():
    assert outcomes(IN_GATHER, IN_ALL_REDUCE, IN_ALL_REDUCE) == ["stuck", "victim", "victim"]


def test_one_that_could_not_say_where_it_is_did_not_arrive():
    assert outcomes(IN_ALL_REDUCE, "", IN_ALL_REDUCE) == ["victim", "stuck", "victim"]


def test_who_waits_elsewhere_than_most_is_stuck():
    assert outcomes(IN_ALL_REDUCE, IN_ALL_REDUCE, elsewhere(20), IN_ALL_REDUCE) == ["victim", "victim", "stuck", "victim"]


@pytest.mark.parametrize(
    "stacks",
    [(IN_ALL_REDUCE, IN_ALL_REDUCE), (IN_ALL_REDUCE, elsewhere(20)), (ASLEEP, ASLEEP), ("", "")],
    ids=["all", "tie", "none", "mute"],
)
def test_where_nothing_tells_them_apart_all_are_stuck(stacks):
    assert outcomes(*stacks) == ["stuck", "stuck"]


def last(number: int, name: str = "all_reduce", group: str = "default_pg", *, finished: bool = False) -> LastCollective:
    return LastCollective(group=group, number=number, operation=name, finished=finished)


def test_who_issued_another_collective_than_most_is_stuck_though_all_wait_at_one_line():
    told = [last(2)] * 3 + [last(1, "all_gather")]
    records = causes_before_victims([stuck(rank, IN_SYNCHRONIZE, one) for rank, one in enumerate(told)])
    assert [record.outcome for record in records] == ["victim", "victim", "victim", "stuck"]


def test_who_was_let_through_a_collective_that_another_mistook_is_not_to_blame():
    """As 8 ranks were seen on NCCL: rank 2 had issued an all_gather; rank 0 got all that the ring owed it, and stood in the next one."""
    told = [last(5, "all_gather"), last(4), last(4, "all_gather"), *[last(4)] * 5]
    records = causes_before_victims([stuck(rank, AFTER_THE_LAST_LINE, one) for rank, one in enumerate(told)])
    assert [record.rank for record in records if record.outcome == "stuck"] == [2]
    assert records[0].message.startswith("waits for rank 2 in synchronize")


def test_who_came_but_is_not_in_a_group_that_most_are_in_is_not_to_blame():
    """A cable drops inside an all_reduce of all four, after three of them have used a group of their own."""
    own = last(7, "all_gather", group="1", finished=True)
    records = causes_before_victims([*(stuck(rank, IN_SYNCHRONIZE, own, last(9)) for rank in range(3)), stuck(3, IN_SYNCHRONIZE, last(9))])
    assert [record.outcome for record in records] == ["stuck"] * 4


def test_a_group_that_is_done_hides_nobody_who_stands_elsewhere():
    own = last(7, "all_gather", group="1", finished=True)
    told = [(own, last(9)), (last(9),), (own, last(9)), (own, last(8, "broadcast"))]
    records = causes_before_victims([stuck(rank, IN_SYNCHRONIZE, *some) for rank, some in enumerate(told)])
    assert [record.rank for record in records if record.outcome == "stuck"] == [3]


def test_a_message_between_two_ranks_is_not_ahead_of_a_collective():
    """Rank 2 took a recv for the all_reduce of the others; its messages are counted apart, and it has sent many."""
    recv = last(90, "recv 2<-3").model_copy(update={"is_p2p": True})
    told = [last(5, "all_gather"), last(4), recv, *[last(4)] * 5]
    records = causes_before_victims([stuck(rank, AFTER_THE_LAST_LINE, one) for rank, one in enumerate(told)])
    assert [record.rank for record in records if record.outcome == "stuck"] == [2]


@pytest.mark.parametrize("name", ["scatter", "gather", "all_to_all"])
def test_where_each_rank_brings_its_own_size_the_sizes_tell_nothing(name):
    told = [last(4, f"nccl:{name} [[2, 4]] Float"), *[last(4, f"nccl:{name} [] ")] * 3]
    records = causes_before_victims([stuck(rank, AFTER_THE_LAST_LINE, one) for rank, one in enumerate(told)])
    assert [record.outcome for record in records] == ["stuck"] * 4


def test_where_all_bring_the_same_size_another_one_tells_who_is_elsewhere():
    told = [last(4, "nccl:reduce_scatter [[8]] Float"), *[last(4, "nccl:reduce_scatter [[4]] Float")] * 3]
    records = causes_before_victims([stuck(rank, AFTER_THE_LAST_LINE, one) for rank, one in enumerate(told)])
    assert [record.rank for record in records if record.outcome == "stuck"] == [0]


def test_collectives_tell_places_only_where_every_rank_told_them():
    records = [stuck(0, IN_ALL_REDUCE, last(2)), stuck(1, elsewhere(20), last(2)), stuck(2, elsewhere(20))]
    assert [record.outcome for record in causes_before_victims(records)] == ["stuck", "victim", "victim"]


@pytest.mark.parametrize("stack", [ASLEEP, ""], ids=["in a line of its own", "mute"])
def test_who_waits_in_c_for_a_collective_that_another_never_issued_is_a_victim(stack):
    """`int(tensor)` and `work.wait()` show the line of the validation, as a loop there does."""
    records = [stuck(0, stack, last(2)), stuck(1, stack, last(2)), stuck(2, ASLEEP, last(1, finished=True))]
    first, second, third = causes_before_victims(records)
    assert [first.outcome, second.outcome, third.outcome] == ["victim", "victim", "stuck"]
    assert first.message.startswith("waits for rank 2")


def test_who_waits_in_c_for_a_rank_that_died_is_its_victim():
    died = stuck(1, "").model_copy(update={"outcome": Outcome.DIED})
    assert [record.outcome for record in causes_before_victims([stuck(0, ASLEEP, last(2)), died])] == ["victim", "died"]


def test_where_all_came_and_the_collective_hangs_nobody_is_blamed_for_the_way_it_waits():
    records = [stuck(0, IN_SYNCHRONIZE, last(2)), stuck(1, ASLEEP, last(2))]
    assert [record.outcome for record in causes_before_victims(records)] == ["stuck", "stuck"]


def test_a_rank_whose_collectives_are_all_done_and_that_does_not_wait_is_the_one():
    records = [stuck(0, IN_ALL_REDUCE, last(2)), stuck(1, ASLEEP, last(1, finished=True)), stuck(2, ASLEEP, last(1, finished=True))]
    assert [record.outcome for record in causes_before_victims(records)] == ["victim", "stuck", "stuck"]


def test_of_two_the_one_that_did_not_issue_what_the_other_waits_in_is_stuck():
    """It was through with its call, and waits for its supervisor's word, which waits for the other."""
    records = [stuck(0, IN_ALL_REDUCE, last(4)), stuck(1, WAITS_FOR_WORD, last(3, "all_gather", finished=True))]
    assert [record.outcome for record in causes_before_victims(records)] == ["victim", "stuck"]


def test_of_three_the_one_that_issued_one_more_is_stuck():
    through = [stuck(rank, WAITS_FOR_WORD, last(3, "all_gather", finished=True)) for rank in (1, 2)]
    assert [record.outcome for record in causes_before_victims([stuck(0, IN_ALL_REDUCE, last(4)), *through])] == [
        "stuck",
        "victim",
        "victim",
    ]


def test_messages_between_two_ranks_are_not_counted_alike_and_leave_nobody_behind():
    records = [
        stuck(0, IN_ALL_REDUCE, last(4)),
        stuck(1, WAITS_FOR_WORD, last(3, "send", finished=True).model_copy(update={"is_p2p": True})),
    ]
    assert [record.outcome for record in causes_before_victims(records)] == ["stuck", "stuck"]


def test_to_wait_for_another_thread_is_not_to_wait_for_a_peer():
    in_event = 'Stack (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 331 in wait\n'
    assert not waits(frames(in_event))


def test_frames_end_where_the_frames_inside_c_begin():
    native = 'Process 17: python\nThread 17 (idle): "MainThread"\n  File "/suite/other.py", line 1 in other\n'
    assert frames(IN_ALL_REDUCE + native) == frames(IN_ALL_REDUCE)
    assert frames(native) == []
