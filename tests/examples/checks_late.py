"""A figure that comes when its validation has ended: it belongs to no validation, and is reported."""

import threading
import time


def test_late(check):
    check("checks_late.value", 5.0, "GB/s")

    def check_later():
        time.sleep(0.5)
        check("checks_late.value", 0.1, "GB/s")

    threading.Thread(target=check_later, daemon=True).start()


def test_next(check):
    time.sleep(1.5)
    check("checks_late.value", 5.0, "GB/s")
