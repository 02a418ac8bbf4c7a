"""A disk of reports that is full at the start, or fills up in the middle: a small tmpfs of our own."""

import subprocess

import pytest
from faults import Fault, assert_nothing_left
from suite import make_suite, torchrun

pytestmark = [pytest.mark.launcher, pytest.mark.needs("privileged")]


FULL_AT_START = Fault("report folder full at the start", "none, exit code 3: nothing is measured")
FULL_LATER = Fault("report folder fills up in the middle", "on the terminal alone, exit code 3")


@pytest.fixture
def small_disk(tmp_path):
    """Makes a file system of so many MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = []

    def make(mebibytes: int):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)], check=True)
        mounted.append(folder)
        return folder

    yield make
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_full_at_the_start_nothing_is_measured(tmp_path, small_disk, seen):
    disk = small_disk(8)
    ended = torchrun(make_suite(tmp_path / "suite", "passes"), f"--report-dir={disk}")
    assert ended.rank_exit_codes == {0: 3, 1: 3}, ended.output
    assert f"rank 0 cannot take part: cannot write to {disk}" in ended.output
    assert "8 MiB free, a run may need 64 MiB" in ended.output
    assert not list(disk.glob("*/results.json"))
    assert_nothing_left(ended.suite)
    (said,) = {line for line in ended.output.splitlines() if "MiB free" in line and "traceback" in line}
    seen.told(FULL_AT_START, said.split(": ", 1)[1], 0)


def test_full_in_the_middle_the_terminal_still_says_all(tmp_path, small_disk, seen):
    disk = small_disk(80)
    ended = torchrun(make_suite(tmp_path / "suite", "fills_the_disk"), f"--report-dir={disk}", env={"REPORTS_THAT_FILL_UP": str(disk)})
    assert ended.rank_exit_codes[0] == 3, ended.output
    assert "No space left on device" in ended.output
    assert "coverage: 1 node x 2 ranks" in ended.output
    assert "\nreport: " not in ended.output
    assert not list(disk.glob("*/results.json"))
    assert_nothing_left(ended.suite)
    said = next(line for line in ended.output.splitlines() if "No space left on device" in line)
    seen.told(FULL_LATER, said, 0)
