"""What is told of a flight recorder's dump. The dump itself, and the thread that asks for it: test_worker_process.py."""

from gpu_acceptance.worker.group import last_collectives


def entry(group: str, number: int, name: str, **more) -> dict:
    base = {"process_group": group.split("/"), "collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False, "profiling_name": name}
    return {**base, "input_sizes": [[4]], "input_dtypes": ["Float"], "retired": True, **more}


def test_the_last_one_of_each_group_is_told():
    dump = {
        "entries": [
            entry("0/default_pg", 1, "nccl:all_reduce"),
            entry("1/undefined", 1, "nccl:barrier"),
            entry("0/default_pg", 2, "nccl:all_gather"),
        ]
    }
    told = [str(one) for one in last_collectives(dump)]
    ends = ["1: number 1, nccl:barrier [[4]] Float", "default_pg: number 2, nccl:all_gather [[4]] Float"]
    assert told == [f"last collective on {one}" for one in ends]


def test_one_that_has_not_ended_says_so():
    (told,) = last_collectives({"entries": [entry("0/default_pg", 1, "nccl:all_reduce", retired=False)]})
    assert str(told) == "unfinished collective on default_pg: number 1, nccl:all_reduce [[4]] Float"


def test_of_several_that_have_not_ended_the_first_is_told():
    """On NCCL a rank issues the next ones without waiting, and torch says `completed` of one that was not launched yet."""
    ended, hangs = (
        entry("0/default_pg", 1, "nccl:all_reduce"),
        entry("0/default_pg", 2, "nccl:all_gather", retired=False, state="scheduled"),
    )
    later = entry("0/default_pg", 3, "nccl:broadcast", retired=False, state="completed")
    (told,) = last_collectives({"entries": [ended, hangs, later]})
    assert str(told) == "unfinished collective on default_pg: number 2, nccl:all_gather [[4]] Float"


def test_groups_of_one_description_are_told_apart():
    """As torch 2.13 writes them: number and description."""
    told = last_collectives({"entries": [entry("2/tp", 4, "gloo:barrier"), entry("3/tp", 5, "gloo:barrier")]})
    assert [one.group for one in told] == ["tp 2", "tp 3"]


def test_point_to_point_is_counted_apart():
    (told,) = last_collectives({"entries": [entry("0/default_pg", 5, "nccl:send 0->1", is_p2p=True, p2p_seq_id=3)]})
    assert told.is_p2p
    assert str(told) == "last collective on default_pg: number 3, nccl:send 0->1 [[4]] Float"


def in_batch(number: int, *, ends: bool) -> list[dict]:
    """`batch_isend_irecv` on NCCL, as torch records it: of its messages it never sees the end."""
    p2p = {"is_p2p": True, "p2p_seq_id": number}
    messages = [entry("0/default_pg", 1, f"nccl:{name}", **p2p, retired=False) for name in ("send 0->1", "recv 0<-1")]
    return [*messages, entry("0/default_pg", 1, "nccl:coalesced", **p2p, input_sizes=[], input_dtypes=[], retired=ends)]


def test_messages_that_were_sent_as_one_have_ended_with_it():
    hangs = entry("0/default_pg", 2, "nccl:all_reduce", retired=False)
    (told,) = last_collectives({"entries": [*in_batch(1, ends=True), *in_batch(2, ends=True), hangs]})
    assert str(told) == "unfinished collective on default_pg: number 2, nccl:all_reduce [[4]] Float"


def test_messages_that_were_sent_as_one_hang_as_one():
    hangs = entry("0/default_pg", 2, "nccl:all_reduce", retired=False)
    (told,) = last_collectives({"entries": [*in_batch(1, ends=True), *in_batch(2, ends=False), hangs]})
    assert (told.is_p2p, told.number, told.operation) == (True, 2, "nccl:coalesced [] ")


def test_a_batch_that_was_not_sent_yet_is_told_by_its_last_message():
    (told,) = last_collectives({"entries": in_batch(1, ends=True)[:2]})
    assert str(told) == "unfinished collective on default_pg: number 1, nccl:recv 0<-1 [[4]] Float"


def test_an_empty_recorder_tells_nothing():
    assert last_collectives({"version": "2.10"}) == []
