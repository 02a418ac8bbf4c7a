"""A process that a validation started ends by itself, a moment after the validation."""

import subprocess


def test_moment(check):
    check("ends_a_moment_later.value", 5.0, "GB/s")
    subprocess.run(["sh", "-c", "sleep 0.3 &"], check=True)
