import pytest

from gpu_acceptance.base.text import did_you_mean


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("quik", "; did you mean 'quick'?"),
        ("QUICK", "; did you mean 'quick'?"),
        ("Ful", "; did you mean 'full'?"),
        ("so", "; did you mean 'soak'?"),
        ("elsewhere", ""),
        ("", ""),
        (8, ""),
        ("quick" * 1000, ""),
    ],
)
def test_the_nearest_name_is_told(name, hint):
    assert did_you_mean(name, ["health", "quick", "full", "soak"]) == hint


def test_a_name_that_begins_so_is_nearer_than_one_that_looks_alike():
    assert did_you_mean("h200", ["b200", "h200-sxm-of-a-site", "h200-sxm"]) == "; did you mean 'h200-sxm'?"


def test_nothing_is_near_to_a_name_where_nothing_is_known():
    assert did_you_mean("quick", []) == ""
