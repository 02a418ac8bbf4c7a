"""Validations that hooks of a conftest hide or cover up; the conftest is the test's own."""

import pytest


def test_curve(check, record_curve):
    check("hooked.value", 5.0, "GB/s")
    record_curve("hooked.loss", [1.0], "nats")


def test_hidden(check):
    check("hooked.value", 0.1, "GB/s")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_thinned(size, check):
    check("hooked.value", 5.0, "GB/s")


def test_covered_up(check):
    check("hooked.value", 5.0, "GB/s")
    raise RuntimeError("the call went wrong")


def test_swallowed(check):
    check("hooked.value", 5.0, "GB/s")
    raise RuntimeError("the call went wrong")


def test_never_called(check):
    check("hooked.value", 5.0, "GB/s")
