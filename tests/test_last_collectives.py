"""What is told of a flight recorder's dump. The dump itself, and the thread that asks for it: test_worker_process.py."""

from gpu_acceptance.last_collectives import last_collectives


def entry(group: str, number: int, name: str, **more) -> dict:
    base = {"process_group": ["0", group], "collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False, "profiling_name": name}
    return {**base, "input_sizes": [[4]], "input_dtypes": ["Float"], "retired": True, **more}


def test_the_last_one_of_each_group_is_told():
    dump = {"entries": [entry("world", 1, "nccl:all_reduce"), entry("pair", 1, "nccl:barrier"), entry("world", 2, "nccl:all_gather")]}
    told = [str(one) for one in last_collectives(dump)]
    assert told == ["pair: number 1, nccl:barrier [[4]] Float", "world: number 2, nccl:all_gather [[4]] Float"]


def test_one_that_has_not_ended_says_so():
    (told,) = last_collectives({"entries": [entry("world", 1, "nccl:all_reduce", retired=False)]})
    assert str(told) == "world: number 1, nccl:all_reduce [[4]] Float, unfinished"


def test_a_group_without_a_description_goes_by_its_number():
    (told,) = last_collectives({"entries": [entry("", 1, "nccl:all_reduce")]})
    assert told.group == "0"


def test_point_to_point_is_counted_apart():
    (told,) = last_collectives({"entries": [entry("world", 5, "nccl:send 0->1", is_p2p=True, p2p_seq_id=3)]})
    assert str(told) == "world: number 3, nccl:send 0->1 [[4]] Float"


def test_an_empty_recorder_tells_nothing():
    assert last_collectives({"version": "2.10"}) == []
