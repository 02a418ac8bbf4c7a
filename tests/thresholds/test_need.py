"""What two judgements ask is compared as numbers: one and the same bound is written with more digits where its figure came close."""

import pytest

from gpu_acceptance.thresholds.need import asked, same_need


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (">= 337", ">= 337", True),
        (">= 337", ">= 337.000000", True),
        (">= 337", ">= 336", False),
        (">= 337", "<= 337", False),
        ("== NVLS", "== NVLS", True),
        ("== NVLS", "== Ring", False),
        ("== 1", "== 1.0", False),
        (">= 337", "equal on all", False),
        ("<= 3 % below its peers", "<= 3 % below its peers", True),
        ("<= 3 % below its peers", "<= 4 % below its peers", False),
    ],
)
def test_what_is_the_same(one, other, same):
    assert same_need(one, other) is same


@pytest.mark.parametrize(("need", "number"), [(">= 337.5", 337.5), ("<= -1e-05", -1e-05), (">= nan", None), ("== 3", None), ("", None)])
def test_what_is_asked(need, number):
    assert asked(need) == number
