"""Faults in the teardown are reported as faults of the teardown."""

import os

import pytest


@pytest.fixture
def aborts():
    yield
    os.abort()


@pytest.fixture
def first():
    yield
    raise OSError("the first is in use")


@pytest.fixture
def second():
    yield
    raise ValueError("the second is gone")


@pytest.mark.usefixtures("aborts")
def test_aborts(check):
    check("ends_badly_in_teardown.value", 5.0, "GB/s")


@pytest.mark.usefixtures("first", "second")
def test_two_at_once(check):
    check("ends_badly_in_teardown.value", 5.0, "GB/s")


def test_next(check):
    check("ends_badly_in_teardown.value", 5.0, "GB/s")
