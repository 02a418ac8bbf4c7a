"""Reference rates of a sound node by message size, as words of a profile: read, refused, and shipped ones."""

import re

import pytest

from gpu_acceptance.thresholds.parameter_relations import size_reference
from tests.judging import shipped_profile

ALLOWED = "as in `all_reduce 8 64m 318.8 4g 365.4`; or 'none'"


def test_words_are_curves_by_collective_and_gpus():
    assert size_reference("all_reduce 8 8b 4.46 512k 30 64m 318.8 all_reduce 4 1g 355 send_recv 8 4g 365.4") == {
        ("all_reduce", 8): {8: 4.46, 2**19: 30.0, 2**26: 318.8},
        ("all_reduce", 4): {2**30: 355.0},
        ("send_recv", 8): {2**32: 365.4},
    }
    assert size_reference("none") == {}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("all_reduce", f"all_reduce where a collective and its number of GPUs should stand, {ALLOWED}"),
        ("8 all_reduce 1m 3", f"8 all_reduce where a collective and its number of GPUs should stand, {ALLOWED}"),
        ("all_reduce 8", f"all_reduce 8 without a size and its figure, {ALLOWED}"),
        ("all_reduce 8 1m", f"all_reduce 8 without a size and its figure, {ALLOWED}"),
        ("all_reduce 8 1m -3", f"all_reduce 8 without a size and its figure, {ALLOWED}"),
        ("all_reduce 8 1m 3 2m", f"2m where a collective and its number of GPUs should stand, {ALLOWED}"),
        ("all_reduce 8 1m 3 2t 4", f"2t 4 where a collective and its number of GPUs should stand, {ALLOWED}"),
        ("all_reduce 0 1m 3", f"all_reduce 0 where a collective and its number of GPUs should stand, {ALLOWED}"),
        ("all_reduce 8 1m 3 all_reduce 8 2m 4", "all_reduce 8 stands there twice"),
    ],
)
def test_other_words_are_refused(words, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        size_reference(words)


def test_an_h200_has_one_for_eight_four_and_two():
    found = size_reference(str(shipped_profile("h200-sxm").parameters["nccl_sizes.reference"]))
    assert {gpus for _, gpus in found} == {8, 4, 2}
    assert found["all_reduce", 8][2**32] == 365.4


def test_and_the_times_of_short_messages_for_four_and_two():
    found = size_reference(str(shipped_profile("h200-sxm").parameters["nccl.latency_reference"]))
    assert {key: sorted(curve) for key, curve in found.items()} == {
        ("all_reduce", 4): [8, 2**15, 2**20],
        ("all_reduce", 2): [8, 2**15, 2**20],
    }
