"""A process that a validation started runs on beside the next one."""

import subprocess


def test_leaves(check):
    check("leaves_a_process.value", 5.0, "GB/s")
    subprocess.Popen(["setsid", "sleep", "4321"])


def test_next(check):
    found = subprocess.run(["pgrep", "--full", "^sleep 4321$"], capture_output=True, check=False).stdout
    check("leaves_a_process.value", 5.0 if not found else 0.0, "GB/s")
