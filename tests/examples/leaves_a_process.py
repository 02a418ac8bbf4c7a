"""A process that a validation started runs on beside the next one."""

import subprocess

import psutil


def test_leaves(check):
    check("leaves_a_process.value", 5.0, "GB/s")
    subprocess.Popen(["setsid", "sleep", "4321"])


def test_next(check):
    found = [process.pid for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", "4321"]]
    check("leaves_a_process.value", 5.0 if not found else 0.0, "GB/s")
