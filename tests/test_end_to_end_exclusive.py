"""A process that does not belong to the run comes to a GPU while a validation runs: on two GPUs that only NVML shows."""

import re
import subprocess
import threading
import time
from pathlib import Path

import pytest
from faults import Fault
from suite import make_suite, torchrun

from gpu_acceptance.folder.rebuild import read_run_folder, rebuild

pytestmark = pytest.mark.launcher

ROW = "test_shares_its_gpu.py::test_value"
NAMED = r"rank 1 \(.*\): GPU 1 was used by another process \(pid \d+, sleep, 1\.2 GiB\) from \+\d+\.\d s to \+\d+\.\d s"
FAULT = Fault("a foreign process on a GPU, which goes", "passed", ROW, says=NAMED + ", during attempt 1")
STAYS = Fault("a foreign process on a GPU, which stays", "disturbed", ROW, says=NAMED)


def share(folder: Path, stays_s: float) -> None:
    """Once the validation asks for it, let a process use the second GPU for so long."""
    while not (folder / "wanted").exists():
        time.sleep(0.05)
    process = subprocess.Popen(["sleep", "600"])
    (folder / "2" / str(process.pid)).write_text(str(int(1.2 * 2**30)))
    (folder / "came").touch()
    time.sleep(stays_s)
    process.kill()
    process.wait()


def run_shared(tmp_path, stays_s, *arguments):
    folder = tmp_path / "gpus"
    for name in ("1", "2"):
        (folder / name).mkdir(parents=True)
    suite = make_suite(tmp_path / "suite", "shares_its_gpu")
    limits = (suite / "thresholds" / "cpu.yaml").read_text()
    (suite / "thresholds" / "h200-sxm.yaml").write_text(f"match: {{device_name: NVIDIA H200}}\n{limits}")
    threading.Thread(target=share, args=(folder, stays_s), daemon=True).start()
    env = {"PYTHONPATH": str(Path(__file__).with_name("sharedgpus")), "SHARED_GPUS": str(folder)}
    return torchrun(suite, *arguments, env=env)


def test_one_that_goes_makes_the_validation_run_again_and_the_repeat_decides(tmp_path, seen):
    ended = run_shared(tmp_path, 3.0)
    row = seen.row(FAULT, ended)
    assert (ended.returncode, ended.record.conclusion.verdict) == (0, "ACCEPTED"), ended.output
    first, second = row.attempts
    (used,) = first.ranks[1].foreign
    assert (used.gpu, used.name, used.memory_bytes) == (1, "sleep", int(1.2 * 2**30))
    assert 0 < used.from_s < used.to_s
    assert [record.foreign for attempt in (first, second) for record in attempt.ranks if record is not first.ranks[1]] == [()] * 3
    assert first.ranks[1].figures[0].value == 0.1  # it stays in the record, and is not judged
    assert re.search(r"test_value: GPU 1 was used by .*; waiting up to 60 s until no other is there", ended.output)
    assert "repeated once: GPU 1 was used by another process (pid " in ended.output


def test_one_that_stays_leaves_the_run_incomplete_and_is_not_awaited_twice(tmp_path, seen):
    ended = run_shared(tmp_path, 200.0)
    awaited = re.findall(r"(\S+): GPU 1 was used by another process .*; waiting up to (\d+) s", ended.output)
    assert [seconds for _, seconds in awaited] == ["60", "1"], awaited
    row = seen.row(STAYS, ended)
    assert (ended.returncode, set(ended.rank_exit_codes.values())) == (1, {6}), ended.output
    assert ended.record.conclusion.verdict == "INCOMPLETE"
    assert (len(row.attempts), row.judgements) == (1, ())
    assert ended.row("test_next").outcome == "disturbed"
    assert "2 of 2 validations disturbed by another process" in ended.verdict_line
    assert "gpu-acceptance remedy gpu_in_use" in (ended.folder / "summary.txt").read_text()
    again = rebuild(read_run_folder(ended.folder), ended_at=ended.record.ended_at, why="for a test")
    outcomes = {one.nodeid: one.outcome for one in again.rows}
    assert {one.nodeid: outcomes[one.nodeid] for one in ended.record.rows} == {one.nodeid: one.outcome for one in ended.record.rows}
    assert again.conclusion.verdict == "INCOMPLETE"


def test_where_it_is_allowed_it_is_told_and_all_is_judged(tmp_path):
    ended = run_shared(tmp_path, 200.0, "--allow-busy")
    row = ended.row(ROW)
    assert (row.outcome, len(row.attempts)) == ("failed", 1)
    assert ended.record.conclusion.verdict == "REJECTED"
    assert "busy GPUs allowed" in ended.verdict_line
    assert "GPU 1 was used by another process (pid " in row.message
    assert row.attempts[0].ranks[1].foreign
