"""The bus bandwidth of a sound node, as words of a profile: what is read, what is refused, and that what is shipped can be read."""

import re

import pytest

from gpu_acceptance.busbw_reference import busbw_reference
from gpu_acceptance.thresholds import load_profile, shipped_dir

ALLOWED = "as in `all_reduce 8 64m 318.8 4g 365.4`; or 'none'"


def test_words_are_curves_by_collective_and_gpus():
    assert busbw_reference("all_reduce 8 512k 30 64m 318.8 all_reduce 4 1g 355 send_recv 8 4g 365.4") == {
        ("all_reduce", 8): {2**19: 30.0, 2**26: 318.8},
        ("all_reduce", 4): {2**30: 355.0},
        ("send_recv", 8): {2**32: 365.4},
    }
    assert busbw_reference("none") == {}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("all_reduce", f"all_reduce where a collective and its number of GPUs should stand, {ALLOWED}"),
        ("8 all_reduce 1m 3", f"8 all_reduce where a collective and its number of GPUs should stand, {ALLOWED}"),
        ("all_reduce 8", f"all_reduce 8 without a size and its GB/s, {ALLOWED}"),
        ("all_reduce 8 1m", f"all_reduce 8 without a size and its GB/s, {ALLOWED}"),
        ("all_reduce 8 1m -3", f"all_reduce 8 without a size and its GB/s, {ALLOWED}"),
        ("all_reduce 8 1m 3 2m", f"2m where a collective and its number of GPUs should stand, {ALLOWED}"),
        ("all_reduce 8 1m 3 2t 4", f"2t 4 where a collective and its number of GPUs should stand, {ALLOWED}"),
        ("all_reduce 0 1m 3", f"all_reduce 0 where a collective and its number of GPUs should stand, {ALLOWED}"),
        ("all_reduce 8 1m 3 all_reduce 8 2m 4", "all_reduce 8 stands there twice"),
    ],
)
def test_other_words_are_refused(words, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        busbw_reference(words)


def test_an_h200_has_one_for_eight_four_and_two():
    found = busbw_reference(str(load_profile("h200-sxm", shipped_dir()).parameters["nccl_sizes.reference"]))
    assert {gpus for _, gpus in found} == {8, 4, 2}
    assert found["all_reduce", 8][2**32] == 365.4
