"""Copies between GPUs under the shipped limits: which GPU is named, the message, and that no limit holds without a measurement."""

from types import SimpleNamespace

import pytest
import torch

from fixtures.p2p import measure_between
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.measure import p2p
from gpu_acceptance.measure.peer_matrix import Cell, Matrix, pairs
from gpu_acceptance.record.figure import make_figure
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.peer_copies import PeerCopies, answer_from_text, answer_to_text, indexes_of
from gpu_acceptance.record.row import Attempt
from gpu_acceptance.verdict.judge import judge
from tests.judging import make_job, make_record, shipped_profile

PROFILE = shipped_profile("h200-sxm")
HELD, MISSED = Status.HELD, Status.MISSED
METRICS = "p2p.unidirectional."


def copied(num_gpus, slow=None, wrong=None):
    """A matrix of healthy H200 in which some pairs are as slow as this, and some have so many wrong words."""
    slow, wrong = slow or {}, wrong or {}
    return Matrix(num_gpus, {pair: Cell(slow.get(pair, 395.2), 0.05, wrong.get(pair, 0)) for pair in pairs(num_gpus)})


def judged(answer, num_gpus, first=0, num_nodes=1):
    """Metric -> its judgement, where each rank checks what acceptance/test_p2p.py does. Other nodes are healthy."""
    records = []
    for rank in range(num_gpus * num_nodes):
        node = range(rank // num_gpus * num_gpus, (rank // num_gpus + 1) * num_gpus)
        copies = PeerCopies(answer if first in node else copied(num_gpus), tuple(node), rank)
        readings = [("out.bandwidth", copies.sent, "GB/s"), ("in.bandwidth", copies.received, "GB/s"), ("wrong", copies.wrong, "words")]
        readings += [("path", copies.path, "relative")] if num_gpus > 2 else []
        figures = (
            make_figure(f"{METRICS}{name}", one.value, unit, judged=True, spread=one.spread, detail=one.detail)
            for name, one, unit in readings
        )
        records.append(make_record(rank, figures=tuple(figures)))
    found = judge((Attempt(number=1, ranks=tuple(records)),), PROFILE, make_job(num_gpus * num_nodes, num_gpus), {}, "p2p")
    return {judgement.metric.removeprefix(METRICS): judgement for judgement in found}


def outcomes(found):
    return {name: (judgement.status, judgement.ranks if judgement.status is MISSED else ()) for name, judgement in found.items()}


SOUND = dict.fromkeys(["out.bandwidth", "in.bandwidth", "path", "wrong"], (HELD, ()))


def test_sound_gpus_hold_all_limits():
    assert outcomes(judged(copied(8), 8)) == SOUND


def test_a_gpu_whose_links_are_slow_is_named_for_both_ways_and_no_other_is():
    found = judged(copied(8, {pair: 262.5 for pair in pairs(8) if 5 in pair}), 8)
    assert outcomes(found) == SOUND | {"out.bandwidth": (MISSED, (5,)), "in.bandwidth": (MISSED, (5,))}
    assert found["out.bandwidth"].message.startswith(
        "p2p.unidirectional.out.bandwidth = 262.5 GB/s (rank 5 to rank 0, the fastest of 7), need >= 374 GB/s [h200-sxm.yaml: measured "
    )
    assert (
        "on rank 5 (node-00, GPU 5, serial 165390005); to do: one GPU, out and in: look at gpu_health.nvlink"
        in found["in.bandwidth"].message
    )


@pytest.mark.parametrize(("end", "way"), [(0, "out.bandwidth"), (1, "in.bandwidth")])
def test_a_gpu_that_is_slow_one_way_is_named_for_that(end, way):
    found = judged(copied(8, {pair: 200.0 for pair in pairs(8) if pair[end] == 2}), 8)
    assert outcomes(found) == SOUND | {way: (MISSED, (2,))}


def test_one_slow_path_is_named_with_both_its_ends_and_no_gpu_is():
    found = judged(copied(8, {(2, 6): 262.5}), 8)
    assert outcomes(found) == SOUND | {"path": (MISSED, (2,))}
    assert found["path"].message.startswith(
        "p2p.unidirectional.path = 0.664221 relative (rank 2 to rank 6: 262.5 GB/s of 395.2 that both reach), need >= 0.97 relative "
    )
    assert "on node 0 (node-00); to do: neither GPU is slow with others" in found["path"].message


def test_of_two_gpus_both_are_named_and_the_message_says_why():
    found = judged(copied(2, {(0, 1): 200.0}), 2)
    assert "path" not in found
    assert outcomes(found) == {"out.bandwidth": (MISSED, (0,)), "in.bandwidth": (MISSED, (1,)), "wrong": (HELD, ())}
    assert "= 200 GB/s (rank 0 to rank 1, which alone cannot tell one GPU from the other), need" in found["in.bandwidth"].message


def test_ranks_of_another_node_have_numbers_of_their_own():
    found = judged(copied(4, {(0, 1): 200.0}), 4, first=4, num_nodes=2)
    assert outcomes(found) == SOUND | {"path": (MISSED, (4,))}
    assert "(rank 4 to rank 5: 200 GB/s of 395.2 that both reach)" in found["path"].message
    assert "on node 1 (node-01)" in found["path"].message


@pytest.mark.parametrize(
    ("wrong", "ranks", "said"),
    [
        ({(1, other): 9 for other in (0, 2, 3)}, (1,), "27 words (all that rank 1 sent)"),
        ({(other, 1): 9 for other in (0, 2, 3)}, (1,), "27 words (all that rank 1 received)"),
        ({(3, 0): 1}, (3,), "1 words (rank 3 to rank 0)"),
    ],
)
def test_wrong_words_name_their_gpu_or_path(wrong, ranks, said):
    found = judged(copied(4, wrong=wrong), 4)
    assert outcomes(found) == SOUND | {"wrong": (MISSED, ranks)}
    assert found["wrong"].message.startswith(f"p2p.unidirectional.wrong = {said}, need <= 0 words [base.yaml: policy: ")


def test_without_a_measurement_no_limit_holds_and_the_reason_is_given():
    missing = Missing(Why.NOT_THERE, "rank 0 sees 1 GPU")
    found = judged(missing, 4)
    assert {judgement.status for judgement in found.values()} == {Status.INVALID}
    assert all(" has no value: not there (rank 0 sees 1 GPU), need " in judgement.message for judgement in found.values())
    assert PeerCopies(missing, (0, 1), 0).to_peers == {}


def test_a_copy_faster_than_the_links_is_a_measuring_error():
    found = judged(copied(4, {(0, 1): 451.0}), 4)
    assert found["out.bandwidth"].status is Status.INVALID
    assert "451 GB/s, above what is physically possible (450): a measuring error" in found["out.bandwidth"].message


def test_copies_to_each_other_gpu_by_rank_and_those_that_could_not_be_read():
    copies = PeerCopies(copied(3, {(1, 2): float("nan")}), (4, 5, 6), 5)
    assert copies.to_peers == {4: 395.2, 6: Missing(Why.UNREADABLE, "the host enqueued copies more slowly than the GPUs made them")}


VISIBLE = {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}


def test_gpus_are_found_by_their_uuids_whatever_their_order():
    assert indexes_of({4: "GPU-c", 5: "GPU-a"}, VISIBLE) == [2, 0]


@pytest.mark.parametrize(
    ("uuids", "visible", "said"),
    [
        (
            {4: "GPU-a", 5: "GPU-b"},
            {"GPU-a": 0},
            "rank 4 sees 1 GPU, but not that of rank 5: let each rank see all GPUs of its node "
            "(Slurm: --gpus-per-node in place of --gpus-per-task; no CUDA_VISIBLE_DEVICES)",
        ),
        ({4: "GPU-a", 5: "GPU-a", 6: "GPU-b"}, VISIBLE, "3 ranks share 2 GPUs: each needs its own"),
        ({4: "GPU-a"}, VISIBLE, "this node has one rank, so one GPU of the job: there is none to copy to"),
    ],
)
def test_why_one_process_cannot_copy_between_all_gpus_of_its_node(uuids, visible, said):
    missing = indexes_of(uuids, visible)
    assert missing == Missing(Why.NOT_THERE, said)
    assert answer_from_text(answer_to_text(missing), len(uuids)) == missing


def test_a_matrix_reaches_the_other_ranks():
    assert answer_from_text(answer_to_text(copied(4)), 4) == copied(4)


@pytest.mark.parametrize("text", ['["gone","x"]', '["not there"]', "[[395.1,0.1,0]]", "nonsense", "{}"])
def test_what_is_neither_is_refused(text):
    with pytest.raises(ValueError, match=r"'gone' is not a valid Why|no matrix of 3 GPUs: |Expecting value"):
        answer_from_text(text, 3)


def one_of_two_ranks(uuids):
    """Rank 0 of two on the first of two nodes, as they would meet; the others wait for what the first ranks measure."""
    told = {"once per node: node": [0, 0, 1, 1], "between GPUs: GPU": [*uuids, "GPU-of-another", "GPU-node"]}
    gather = lambda key, value: told.get(key) or [value, *(type(value)() for _ in range(3))]  # noqa: E731
    place = {"rank": 0, "local_rank": 0, "local_world_size": 2, "node": 0}
    return SimpleNamespace(**place, device=torch.device("cuda", 0), gpu_uuid=uuids[0], gather=gather)


def test_the_first_rank_copies_between_the_gpus_of_all_ranks_in_their_order(monkeypatch):
    monkeypatch.setattr(p2p, "visible_gpus", lambda: VISIBLE)
    asked = []
    copies = measure_between(one_of_two_ranks(["GPU-c", "GPU-a"]), lambda devices: asked.extend(devices) or copied(2))
    assert asked == [torch.device("cuda", 2), torch.device("cuda", 0)]
    assert (copies.answer, copies.ranks, copies.rank) == (copied(2), (0, 1), 0)


def test_a_first_rank_that_does_not_see_all_gpus_measures_nothing(monkeypatch):
    monkeypatch.setattr(p2p, "visible_gpus", lambda: {"GPU-a": 0})
    copies = measure_between(one_of_two_ranks(["GPU-a", "GPU-b"]), lambda devices: pytest.fail("measured"))
    assert str(copies.sent.value).startswith(
        "not there (rank 0 sees 1 GPU, but not that of rank 1: let each rank see all GPUs of its node "
    )
