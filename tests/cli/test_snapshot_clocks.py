"""Clocks of a snapshot whose driver has no application clocks any more, as R595."""

import pytest

from tests.cli.test_snapshot_file import GPU, IDLE, bad_rows, changed, rows_of

DROPPED = {"missing": "not supported", "detail": "nvmlDeviceGetApplicationsClock: Requested functionality has been deprecated"}


@pytest.mark.parametrize(
    ("clock_mhz", "reasons", "says"),
    [
        (345, ["gpu idle"], ""),
        (1980, [], ""),
        (1395, ["sw power cap"], ""),
        (1200, [], "gpu_health.clocks.lowered = 780 MHz (SM clock 1200 of 1980 MHz, reasons: none), need <= 0 MHz"),
        (1965, ["application clocks setting"], "gpu_health.clocks.lowered = 15 MHz (SM clock 1965 of 1980 MHz, reasons: application"),
    ],
)
def test_where_the_driver_has_dropped_application_clocks_the_clock_itself_is_judged(clock_mhz, reasons, says):
    plain = IDLE
    for path in ("application_sm_mhz", "default_application_sm_mhz"):
        for number in range(8):
            plain = changed(plain, f"node.gpus.gpus.{number}.clocks.{path}", DROPPED)
    plain = changed(changed(plain, f"{GPU}.clocks.sm_mhz", clock_mhz), f"{GPU}.throttling.reasons", reasons)
    rows, conclusion = rows_of(plain)
    assert (bad_rows(rows), conclusion.exit_code) == (({"clocks"}, 1) if says else (set(), 0))
    assert says in rows["clocks"].message


@pytest.mark.parametrize("path", ["clocks.sm_mhz", "clocks.max_sm_mhz", "throttling.reasons"])
def test_without_application_clocks_a_clock_that_is_not_told_is_never_a_pass(path):
    plain = changed(changed(IDLE, f"{GPU}.clocks.application_sm_mhz", DROPPED), f"{GPU}.{path}", DROPPED)
    rows, conclusion = rows_of(plain)
    assert "clocks" in bad_rows(rows)
    assert "gpu_health.clocks.lowered has no value: not supported" in rows["clocks"].message
    assert conclusion.exit_code == 6
