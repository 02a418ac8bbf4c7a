"""The device of a rank, and its last collectives in a flight recorder's dump. For the dump itself see test_worker_process.py."""

import re

import pytest

from gpu_acceptance.record.outcome import Cause, cause_of
from gpu_acceptance.worker.group import last_collectives, open_device


def test_a_torch_without_gpus_on_a_node_that_has_some_is_an_error_with_a_cause(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(RuntimeError, match=re.escape("sees none: is it a CPU build, or the driver too old for it?")) as raised:
        open_device(0, expects_gpu=True)
    assert cause_of(raised.value) is Cause.TORCH_SEES_NO_GPU
    assert open_device(0, expects_gpu=False).type == "cpu"


def test_an_exception_that_claims_a_cause_in_words_has_none():
    error = ValueError("x")
    error.cause = "crashed"
    assert cause_of(error) is None


def entry(group: str, number: int, name: str, **more) -> dict:
    base = {"process_group": group.split("/"), "collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False, "profiling_name": name}
    return {**base, "input_sizes": [[4]], "input_dtypes": ["Float"], "retired": True, **more}


def in_batch(number: int, *, ends: bool) -> list[dict]:
    """`batch_isend_irecv` on NCCL, as torch records it: it never sees the end of single messages."""
    p2p = {"is_p2p": True, "p2p_seq_id": number}
    messages = [entry("0/default_pg", 1, f"nccl:{name}", **p2p, retired=False) for name in ("send 0->1", "recv 0<-1")]
    return [*messages, entry("0/default_pg", 1, "nccl:coalesced", **p2p, input_sizes=[], input_dtypes=[], retired=ends)]


HANGS = entry("0/default_pg", 2, "nccl:all_reduce", retired=False)


@pytest.mark.parametrize(
    ("entries", "texts"),
    [
        pytest.param(
            [
                entry("0/default_pg", 1, "nccl:all_reduce"),
                entry("1/undefined", 1, "nccl:barrier"),
                entry("0/default_pg", 2, "nccl:all_gather"),
            ],
            [
                "last collective on 1: number 1, nccl:barrier [[4]] Float",
                "last collective on default_pg: number 2, nccl:all_gather [[4]] Float",
            ],
            id="the last one of each group",
        ),
        pytest.param([HANGS], ["unfinished collective on default_pg: number 2, nccl:all_reduce [[4]] Float"], id="unfinished"),
        # On NCCL a rank issues the next ones without waiting, and torch says `completed` of one that was not launched yet.
        pytest.param(
            [
                entry("0/default_pg", 1, "nccl:all_reduce"),
                entry("0/default_pg", 2, "nccl:all_gather", retired=False, state="scheduled"),
                entry("0/default_pg", 3, "nccl:broadcast", retired=False, state="completed"),
            ],
            ["unfinished collective on default_pg: number 2, nccl:all_gather [[4]] Float"],
            id="the first of several that are unfinished",
        ),
        pytest.param(
            [entry("2/tp", 4, "gloo:barrier"), entry("3/tp", 5, "gloo:barrier")],  # torch 2.13 writes number and description
            ["last collective on tp 2: number 4, gloo:barrier [[4]] Float", "last collective on tp 3: number 5, gloo:barrier [[4]] Float"],
            id="groups of one description",
        ),
        pytest.param(
            [entry("0/default_pg", 5, "nccl:send 0->1", is_p2p=True, p2p_seq_id=3)],
            ["last collective on default_pg: number 3, nccl:send 0->1 [[4]] Float"],
            id="point to point has a count of its own",
        ),
        pytest.param(
            [*in_batch(1, ends=True), *in_batch(2, ends=True), HANGS],
            ["unfinished collective on default_pg: number 2, nccl:all_reduce [[4]] Float"],
            id="a batch has ended with its last message",
        ),
        pytest.param(
            [*in_batch(1, ends=True), *in_batch(2, ends=False), HANGS],
            ["unfinished collective on default_pg: number 2, nccl:coalesced [] "],
            id="a batch hangs as one",
        ),
        pytest.param(
            in_batch(1, ends=True)[:2],
            ["unfinished collective on default_pg: number 1, nccl:recv 0<-1 [[4]] Float"],
            id="a batch that was not sent yet",
        ),
    ],
)
def test_last_collectives(entries, texts):
    assert [str(one) for one in last_collectives({"entries": entries})] == texts


def test_a_message_from_rank_to_rank_is_marked():
    (one,) = last_collectives({"entries": in_batch(1, ends=True)})
    assert one.is_p2p


def test_an_empty_recorder_has_none():
    assert last_collectives({"version": "2.10"}) == []
