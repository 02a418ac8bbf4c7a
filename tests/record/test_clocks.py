"""Clock differences: the bounds that one question and its answer prove, and the sentences about them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report import samples

from gpu_acceptance.record.job import ahead, clock_offset, clock_sentences

durations = st.floats(0, 1e4)


@given(st.floats(-1e6, 1e6), durations, durations)
def test_the_bounds_hold_whichever_way_took_longer(offset_s, there_s, back_s):
    asked_s = 1.8e9
    least_s, most_s = ahead(asked_s, heard_s=asked_s + there_s + back_s, answer_s=asked_s + there_s + offset_s)
    assert least_s - 1e-3 <= offset_s <= most_s + 1e-3  # a float of such a size has steps below a microsecond


def two_nodes(bounds):
    first, second = samples.identity(0, nodes=2), samples.identity(8, nodes=2)
    return [second.model_copy(update={"clock_ahead_s": bounds}), samples.identity(9, nodes=2), first]


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ((3599.9, 3600.1), "3600.0 s ahead of that of node 0 (node-01.example), give or take 0.1 s"),
        ((-62.0, -58.0), "60.0 s behind that of node 0 (node-01.example), give or take 2.0 s"),
    ],
)
def test_a_clock_that_is_provably_off_is_reported(bounds, text):
    assert list(clock_sentences(two_nodes(bounds))) == [f"clock of node 1 (node-02.example) is {text}"]


@pytest.mark.parametrize("bounds", [None, (-0.01, 0.02), (-2.0, 30.0), (0.9, 5.0)])
def test_what_is_not_provably_off_is_not_talked_about(bounds):
    assert list(clock_sentences(two_nodes(bounds))) == []


def test_a_job_whose_first_node_never_registered():
    (sentence,) = clock_sentences(two_nodes((10.0, 10.0))[:1])
    assert sentence.startswith("clock of node 1 (node-02.example) is 10.0 s ahead of that of node 0, give or take ")


def test_the_smallest_offset_is_shown():
    assert clock_offset((-0.0001, 0.0005)) == "+0.200 ms, give or take 0.300 ms"
    assert clock_offset((-62.0, -58.0)) == "-60000.000 ms, give or take 2000.000 ms"
    assert clock_offset(None) == "not known: no answer came"
