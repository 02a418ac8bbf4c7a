import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.corruption.survey import Reading, Work, by_work, compare_peers

RIGHT = "right"
WORK = Work("2.11.0", "13.0", "13.1.0", "580.159", "NVIDIA H200", "mm_bf16", "8192x8192x8192")
hashes = st.dictionaries(st.sampled_from([f"rank {rank}" for rank in range(12)]), st.sampled_from("abcd"), max_size=12)


def test_all_equal():
    peers = compare_peers({"rank 0": "a", "rank 1": "a"})
    assert (peers.hash, peers.agree, peers.minority, peers.uncleared, peers.why) == ("a", ("rank 0", "rank 1"), (), (), "")


def test_the_odd_one_of_three_is_named():
    peers = compare_peers({"rank 0": "a", "rank 1": "b", "rank 2": "a"})
    assert (peers.hash, peers.agree, peers.minority, peers.uncleared) == ("a", ("rank 0", "rank 2"), ("rank 1",), ())


def test_of_a_tie_nobody_is_cleared():
    peers = compare_peers({"rank 0": "a", "rank 1": "b"})
    assert (peers.hash, peers.agree, peers.minority, peers.uncleared) == (None, (), (), ("rank 0", "rank 1"))
    assert peers.why == "2 different results of 2 GPUs, and none of more than half"


def test_the_largest_group_is_no_majority_unless_it_is_more_than_half():
    peers = compare_peers(dict(zip("12345678", "aaaabcde", strict=True)))
    assert (peers.hash, len(peers.uncleared)) == (None, 8)
    assert peers.why == "5 different results of 8 GPUs, and none of more than half"


@pytest.mark.parametrize("units", [0, 1])
def test_a_gpu_without_a_peer_is_not_cleared(units):
    peers = compare_peers({f"rank {rank}": "a" for rank in range(units)})
    assert (peers.hash, peers.agree, len(peers.uncleared)) == (None, (), units)
    assert peers.why == f"{units} GPU of this model and these versions has no peer"


@given(hashes)
def test_every_unit_stands_in_exactly_one_place(given_hashes):
    peers = compare_peers(given_hashes)
    assert sorted([*peers.agree, *peers.minority, *peers.uncleared]) == sorted(given_hashes)
    assert all(given_hashes[unit] == peers.hash for unit in peers.agree)
    assert all(given_hashes[unit] != peers.hash for unit in peers.minority)
    assert (peers.hash is None) == (peers.why != "") == (not peers.agree)
    assert not peers.agree or 2 * len(peers.agree) > len(given_hashes)


@given(hashes, st.randoms(use_true_random=False))
def test_the_order_of_the_units_does_not_matter(given_hashes, random):
    items = list(given_hashes.items())
    random.shuffle(items)
    one, other = compare_peers(given_hashes), compare_peers(dict(items))
    assert (one.hash, set(one.agree), set(one.minority), one.why) == (other.hash, set(other.agree), set(other.minority), other.why)


@given(st.integers(3, 72), st.data())
def test_any_minority_of_wrong_gpus_is_named_whatever_they_say(num_units, data):
    wrong = data.draw(st.sets(st.integers(0, num_units - 1), max_size=(num_units - 1) // 2))
    given_hashes = {f"rank {rank}": data.draw(st.sampled_from("xyz")) if rank in wrong else RIGHT for rank in range(num_units)}
    assert set(compare_peers(given_hashes).minority) == {f"rank {rank}" for rank in wrong}


def test_gpus_of_another_model_or_version_are_no_peers():
    other = Work(**{**WORK.__dict__, "gpu": "NVIDIA H100"})
    readings = [Reading("rank 0", WORK, "i", "a"), Reading("rank 1", other, "i", "b"), Reading("rank 2", WORK, "i", "c")]
    assert by_work(readings) == {WORK: {"rank 0": readings[0], "rank 2": readings[2]}, other: {"rank 1": readings[1]}}


def test_two_readings_of_one_work_by_one_gpu_are_refused():
    with pytest.raises(ValueError, match=r"^rank 0 has two readings of mm_bf16 8192x8192x8192$"):
        by_work([Reading("rank 0", WORK, "i", "a"), Reading("rank 0", WORK, "i", "b")])
