"""A call that hangs is not waited for, and no second one waits behind it."""

import threading

import pytest

from gpu_acceptance.inventory.nvml import Patience


def test_an_answer_in_time_is_the_answer():
    assert Patience(60.0, "nothing").call(lambda: "something") == "something"


def test_an_error_is_raised():
    with pytest.raises(KeyError, match="gone"):
        Patience(60.0, None).call(lambda: {}["gone"])


def test_of_a_call_that_hangs_there_is_another_answer_and_no_second_call_until_it_is_back():
    patience, may_go, called = Patience(0.1, "nothing"), threading.Event(), []

    def hang():
        called.append("once")
        may_go.wait(60)
        return "late"

    assert patience.call(hang) == "nothing"
    assert patience.call(hang) == "nothing"
    assert called == ["once"]
    may_go.set()
    patience._hanging.join(60)
    assert patience.call(lambda: "something") == "something"
