"""Under libfaketime 0.9.10 with a true monotonic clock, `time.sleep` of Python 3.11 and later is "Invalid argument"."""

import select
import time


def _sleep(seconds: float) -> None:
    select.select([], [], [], seconds)


time.sleep = _sleep
