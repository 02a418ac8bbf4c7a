import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure import collectives
from gpu_acceptance.measure.collectives import NAMES, ROOT


def written(collective, num_elements, rank, world_size):
    spans = collectives.input_of(collective, num_elements, rank, world_size)
    tensor = torch.full((sum(span.stop - span.start for span in spans),), torch.nan)
    collectives.write(tensor, spans)
    return tensor


def reference(collective, inputs, rank):
    """What the collective makes of them, in the words of MPI; None where it promises nothing."""
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
        expected = collectives.output_of(collective, num_elements, rank, world_size)
        if output is None:
            assert expected == []
            continue
        assert collectives.num_different(output, expected) == 0
        output[5] = torch.nan
        assert collectives.num_different(output, expected) == 1


@given(world_size=st.integers(2, 4096))
def test_the_largest_sum_is_exact_in_fp32(world_size):
    (span,) = collectives.output_of("all_reduce", world_size, 0, world_size)
    largest = (span.period - 1) * span.slope + span.offset
    assert largest < 2**24
    assert span.period % 2 == 1


@given(world_size=st.integers(2, 4096), data=st.data())
def test_no_input_looks_like_the_result(world_size, data):
    rank = data.draw(st.integers(0, world_size - 1))
    (own,) = collectives.input_of("all_reduce", world_size, rank, world_size)
    (result,) = collectives.output_of("all_reduce", world_size, rank, world_size)
    assert result.offset > own.offset
    assert result.slope > own.slope


def test_worlds_too_large_for_an_exact_sum_are_refused():
    with pytest.raises(ValueError, match=r"^no message for 6000 ranks: its sum would not be exact in fp32$"):
        collectives.period(6000)
