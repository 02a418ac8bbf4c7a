import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.measure.corruption.survey import excluded_rate_per_minute, statement

exposures = st.floats(1e-3, 1e9)


def test_the_rule_of_three():
    assert excluded_rate_per_minute(60) == pytest.approx(2.9957, abs=1e-4)
    assert excluded_rate_per_minute(180) == pytest.approx(0.99858, abs=1e-5)


@given(exposures)
def test_the_excluded_rate_would_have_been_missed_with_five_percent(exposure_s):
    assert math.exp(-excluded_rate_per_minute(exposure_s) * exposure_s / 60) == pytest.approx(0.05)


@given(exposures, st.floats(1.01, 100))
def test_a_longer_test_excludes_more(exposure_s, factor):
    assert excluded_rate_per_minute(factor * exposure_s) < excluded_rate_per_minute(exposure_s)


def test_the_statement_rounds_up():
    assert statement(60) == "no corruption in 60 s excludes, at 95%, 3 or more per minute; rarer faults are not excluded"
    assert statement(57) == "no corruption in 57 s excludes, at 95%, 3.2 or more per minute; rarer faults are not excluded"


@given(exposures)
def test_no_statement_promises_more_than_was_proved(exposure_s):
    stated = float(statement(exposure_s).split("95%, ")[1].split(" ")[0])
    assert excluded_rate_per_minute(exposure_s) <= stated * (1 + 1e-12)
    assert stated <= 1.1 * excluded_rate_per_minute(exposure_s) * (1 + 1e-12)


@pytest.mark.parametrize("exposure_s", [0, -1, math.nan, math.inf])
def test_no_exposure_excludes_nothing(exposure_s):
    with pytest.raises(ValueError, match=rf"^exposure_s={exposure_s}: a finite number of seconds above zero, or nothing is excluded$"):
        excluded_rate_per_minute(exposure_s)
