"""Messages whose exact result is known, and work that fails on all ranks if it fails on one."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure import collectives
from gpu_acceptance.measure.collectives import NAMES, ROOT, together


def written(collective, num_elements, rank, world_size):
    given, _ = collectives.values_of(collective, num_elements, rank, world_size)
    tensor = torch.full((sum(map(len, given)),), torch.nan)
    collectives.write(tensor, given)
    return tensor


def reference(collective, inputs, rank):
    """Return the result of a collective as MPI defines it; None where it promises nothing."""
    if collective == "all_to_all":
        return torch.cat([given.chunk(len(inputs))[rank] for given in inputs])
    if collective == "send_recv":
        return inputs[rank - 1]
    if collective == "reduce" and rank != ROOT:
        return None
    if collective in {"all_gather", "broadcast"}:
        return torch.cat(inputs)  # of a broadcast only its root gives any
    total = torch.stack(inputs).sum(0)
    return total.chunk(len(inputs))[rank].clone() if collective == "reduce_scatter" else total


@pytest.mark.parametrize("collective", NAMES)
@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("chunk", [2**24, 7])
def test_the_expected_message_is_what_the_collective_makes_of_the_given_ones(collective, world_size, chunk, monkeypatch):
    monkeypatch.setattr(collectives, "_CHUNK", chunk)
    num_elements = 12 * world_size
    inputs = [written(collective, num_elements, rank, world_size) for rank in range(world_size)]
    for rank in range(world_size):
        output = reference(collective, inputs, rank)
        _, expected = collectives.values_of(collective, num_elements, rank, world_size)
        if output is None:
            assert expected == []
            continue
        assert collectives.num_different(output, expected) == 0
        output[5] = torch.nan
        assert collectives.num_different(output, expected) == 1


@given(world_size=st.integers(2, 4096), data=st.data())
def test_the_largest_sum_is_exact_in_fp32_and_no_input_looks_like_it(world_size, data):
    rank = data.draw(st.integers(0, world_size - 1))
    (own,), (result,) = collectives.values_of("all_reduce", world_size, rank, world_size)
    assert (result.period - 1) * result.slope + result.offset < 2**24
    assert result.period % 2 == 1
    assert result.offset > own.offset
    assert result.slope > own.slope


def test_worlds_too_large_for_an_exact_sum_are_refused():
    with pytest.raises(ValueError, match=r"^no message for 6000 ranks: its sum would not be exact in fp32$"):
        collectives.period(6000)


def outcomes(*works):
    """Return the result of each rank's work, or the error that was raised instead."""
    told, barrier = [""] * len(works), threading.Barrier(len(works), timeout=60)

    def one(rank):
        def share(text):
            told[rank] = text
            barrier.wait()
            return told

        try:
            return together(works[rank], share)
        except OSError as error:
            return error

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(one, range(len(works))))


def raising(error):
    def work():
        raise error

    return work


def test_each_rank_gets_what_its_own_work_returned():
    assert outcomes(lambda: 3, lambda: None, lambda: "x") == [3, None, "x"]


def test_an_error_of_any_kind_that_one_rank_met_is_raised_on_all_alike():
    first, second = outcomes(lambda: 3, raising(PermissionError(13, "Permission denied", "/shared")))
    assert str(first) == str(second) == "rank 1: PermissionError: [Errno 13] Permission denied: '/shared'"
    assert second.__context__ is None
    assert {str(error) for error in outcomes(raising(ZeroDivisionError("by zero")), lambda: 3)} == {"rank 0: ZeroDivisionError: by zero"}


def test_of_many_four_are_named():
    (text,) = {str(error) for error in outcomes(*(raising(ValueError("no")) for _ in range(6)))}
    assert text == "rank 0: ValueError: no; rank 1: ValueError: no; rank 2: ValueError: no; rank 3: ValueError: no; 2 ranks more"


@pytest.mark.parametrize("character", ["x", "\u20ac", "\udc80"])
def test_what_is_told_is_bounded_in_bytes(character):
    error, _ = outcomes(raising(OSError(character * 1000)), lambda: 3)
    text = str(error).removeprefix("rank 0: ")
    assert text.startswith("OSError: ")
    assert len(text.encode()) == 400
