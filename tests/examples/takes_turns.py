"""Ranks of one host work one after the other. CLOCK_MONOTONIC is the same for all processes of a host."""

import time

import pytest


@pytest.mark.no_group
def test_value(check, record, in_turn):
    def work():
        begin_s = time.monotonic()
        time.sleep(0.2)
        return begin_s, time.monotonic()

    for round_number in range(2):
        begin_s, end_s = in_turn(work)
        record(f"takes_turns.begin.round_{round_number}", begin_s, "s")
        record(f"takes_turns.end.round_{round_number}", end_s, "s")
    check("takes_turns.value", 5, "GB/s")
