"""Work that fails on one rank fails on all of them, with the same words; ranks are threads here, that share texts at a barrier."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu_acceptance.measure.collectives import together


def outcomes(*works):
    """What each rank's work came to: what it returned, or what was raised instead."""
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


def test_what_one_rank_met_is_raised_on_all_alike():
    first, second = outcomes(lambda: 3, raising(PermissionError(13, "Permission denied", "/shared")))
    assert str(first) == str(second) == "rank 1: PermissionError: [Errno 13] Permission denied: '/shared'"
    assert second.__context__ is None


def test_an_error_of_any_kind_is_told():
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
