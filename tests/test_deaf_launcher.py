"""A launcher that does not notice the end of its ranks: real processes."""

import signal
import subprocess

import pytest

from gpu_acceptance.deaf_launcher import end_launcher_later, main

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


def test_a_launcher_that_stays_is_told_to_end():
    with subprocess.Popen(["sleep", "600"]) as launcher:
        end_launcher_later(launcher.pid, patience_s=0.2)
        assert launcher.wait(60) == -signal.SIGTERM


def test_one_that_does_not_hear_that_either_is_killed():
    with subprocess.Popen(["sh", "-c", "trap '' TERM; echo deaf; exec sleep 600"], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout.readline() == b"deaf\n"
        end_launcher_later(launcher.pid, patience_s=0.2)
        assert launcher.wait(60) == -signal.SIGKILL


def test_a_launcher_that_ends_by_itself_is_left_alone():
    with subprocess.Popen(["sleep", "0.5"]) as launcher:
        main(launcher.pid, patience_s=60)
        assert launcher.wait(60) == 0
        main(launcher.pid, patience_s=60)  # and one that is gone is nobody
