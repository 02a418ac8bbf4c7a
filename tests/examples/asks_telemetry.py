"""Asks what the GPU did for more than a second: of a machine without one nothing is told, and what was in flight goes on."""

import time


def test_value(check, ranks, telemetry):
    begin_s = time.monotonic()
    time.sleep(1.1)
    found = telemetry(begin_s, time.monotonic())
    told = found is None if ranks.device.type == "cpu" else found.levels["sm_clock_mhz"].low > 0
    in_step = ranks.gather("told", told) == [True] * ranks.world_size
    check("asks_telemetry.value", 5 if in_step else 0, "GB/s")
