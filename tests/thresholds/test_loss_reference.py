"""A reference curve that is none is refused."""

import re

import pytest

from gpu_acceptance.thresholds.parameter_relations import reference_of


def test_a_reference_is_one_loss_for_each_step():
    assert reference_of("12.71 9 1.4", 3) == [12.71, 9.0, 1.4]
    assert reference_of("none", 3) == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("12.71 9", "2 words, 0 of them no numbers"),
        ("12.71 nan 1.4", "3 words, 1 of them no numbers"),
        ("1_0 1e3 inf", "3 words, 3 of them no numbers"),
    ],
)
def test_another_reference_is_refused(words, found):
    text = f"{found}; wants 'none', or one loss for each of 3 steps"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        reference_of(words, 3)
