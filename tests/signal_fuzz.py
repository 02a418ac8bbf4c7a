"""A seeded fuzzer: any catchable signal, to any process of a run, at a random time. Each run ends right and leaves nothing.

`python tests/signal_fuzz.py --rounds=100 --seed=1` (or `make fuzz`) is the whole; test_soak.py has a short form. Each round is made
from its seed and number alone: `--first=17 --rounds=1` repeats round 17.
"""

import argparse
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from faults import left_in
from suite import make_suite, processes_in, start, torchrun_command
from warm import Forked

from gpu_acceptance.folder.files import RESULTS, read_results
from gpu_acceptance.folder.manifest import MANIFEST, differences, read_manifest
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.run_record import RunRecord

RANKS = 2
ENDS_WITHIN_S = 60.0  # after the last signal
_STARTS_WITHIN_S = 120.0
_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)  # each is followed by a SIGCONT
_HARMLESS = (signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT)  # their default is to do nothing
SIGNALS = sorted(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})
TARGETS = ("torchrun", "supervisor", "janitor", "fork server", "worker")
_REJECTS = {Outcome.FAILED, Outcome.DIED, Outcome.STUCK}
_OF_TORCHRUN = "torchelastic_"  # it leaves a folder of this name whenever it is killed


@dataclass(frozen=True)
class Shot:
    """A signal to the process of this kind and rank, this part of a run's usual time after its start."""

    number: signal.Signals
    target: str
    rank: int
    at: float
    late_s: float  # how long after its start a process is hit that was not there yet

    def __str__(self) -> str:
        return f"{self.number.name} to {self.target}{'' if self.target == 'torchrun' else f' of rank {self.rank}'} at {self.at:.0%}"


@dataclass
class Round:
    """One run, and what was wrong with it."""

    suite: Path
    temporary: Path
    shots: list[Shot]
    hit: list[Shot] = field(default_factory=list)  # whose target was there
    code: int | None = None
    ran_s: float = 0.0
    took_s: float = 0.0  # from the last signal to the end
    verdict: str = "no verdict"
    faults: list[str] = field(default_factory=list)


def make_shots(seed: int, number: int) -> list[Shot]:
    """One signal, in every fourth round two."""
    choose = random.Random(f"{seed}-{number}")
    shots = [
        Shot(choose.choice(SIGNALS), choose.choice(TARGETS), choose.randrange(RANKS), choose.uniform(0, 1.05), choose.uniform(0, 2))
        for _ in range(2 if choose.random() < 0.25 else 1)
    ]
    return sorted(shots, key=lambda shot: shot.at)


def run_round(folder: Path, shots: list[Shot], usual_s: float) -> Round:
    """Runs one round to its end, and looks at what it left."""
    one = Round(make_suite(folder / "suite", "fuzzed"), Path(tempfile.mkdtemp(prefix="fuzz-", dir="/tmp")), shots)
    begun = time.monotonic()
    process = start(torchrun_command("acceptance/", ranks=RANKS), one.suite, {"TMPDIR": str(one.temporary)}, output=one.suite / "output")
    for shot in shots:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, begun + shot.at * usual_s - time.monotonic()))
        _fire(one, shot, process)
    fired = time.monotonic()
    _await_end(one, process)
    one.ran_s, one.took_s = time.monotonic() - begun, time.monotonic() - fired
    one.faults += [*_left(one), *_wrong_results(one)]
    shutil.rmtree(one.temporary, ignore_errors=True)
    return one


def _fire(one: Round, shot: Shot, torchrun: subprocess.Popen[str] | Forked) -> None:
    with contextlib.suppress(psutil.Error):
        if not (found := _found(shot, torchrun)):
            while torchrun.poll() is None and not (found := _found(shot, torchrun)):
                time.sleep(0.05)
            time.sleep(shot.late_s)
        for process in found:
            process.send_signal(shot.number)
            one.hit.append(shot)
            if shot.number in _STOPS:
                time.sleep(1.5)
                process.send_signal(signal.SIGCONT)


def _found(shot: Shot, torchrun: subprocess.Popen[str] | Forked) -> list[psutil.Process]:
    """The process that is meant, where it is there now."""
    if torchrun.poll() is not None:
        return []
    root = psutil.Process(torchrun.pid)
    if shot.target == "torchrun":
        return [root]
    return [process for process in root.children(recursive=True) if _is_meant(process, shot)][:1]


def _is_meant(process: psutil.Process, shot: Shot) -> bool:
    try:
        return _kind(process.cmdline()) == shot.target and process.environ().get("RANK") == str(shot.rank)
    except psutil.Error:
        return False


def _kind(command: Sequence[str]) -> str:
    text = " ".join(command)
    kinds = {"janitor.py": "janitor", "worker.fork_server": "fork server", "worker.worker": "worker", "-m pytest": "supervisor"}
    return next((kind for part, kind in kinds.items() if part in text), "")


def _await_end(one: Round, process: subprocess.Popen[str] | Forked) -> None:
    """Until all processes of the run are gone; those that stay are a fault, and are killed."""
    end = time.monotonic() + ENDS_WITHIN_S
    while (process.poll() is None or processes_in(one.suite)) and time.monotonic() < end:
        time.sleep(0.1)
    one.code = process.poll()
    for pid in (int(text.split()[0]) for text in left_in(one.suite)):
        with contextlib.suppress(psutil.Error):
            left = psutil.Process(pid)
            one.faults.append(f"after {ENDS_WITHIN_S:g} s there is still {_kind(left.cmdline()) or 'torchrun'} {pid} ({left.status()})")
            left.kill()
    if one.code is None:
        process.wait()


def _left(one: Round) -> Iterator[str]:
    """Things that a run may leave on the machine: temporary files, named shared memory, sockets."""
    for path in one.temporary.iterdir():
        if not path.name.startswith(_OF_TORCHRUN):
            yield f"left behind: {sorted(map(str, [path, *path.rglob('*')]))}"
    for name in (name for file in one.suite.glob("made-*") for name in file.read_text().split()):
        if Path("/dev/shm", name).exists():
            yield f"left behind: /dev/shm/{name}"
    if str(one.temporary) in Path("/proc/net/unix").read_text():
        yield f"left behind: a socket in {one.temporary}"


def _wrong_results(one: Round) -> Iterator[str]:
    folders = [path for path in (one.suite / "reports").glob("*") if path.is_dir()]
    if len(folders) > 1:
        yield f"{len(folders)} folders of one run"
    results = [folder for folder in folders if (folder / RESULTS).exists()]
    if not results:
        if one.code == 0:
            yield "exit code 0 without results"
        return
    if (results[0] / MANIFEST).exists():
        yield from differences(results[0], read_manifest(results[0]))
    record = read_results(results[0])
    one.verdict = record.conclusion.line
    yield from _wrong_verdict(one, record)


def _wrong_verdict(one: Round, record: RunRecord) -> Iterator[str]:
    verdict, code = record.conclusion.verdict, record.conclusion.exit_code
    if (verdict == "ACCEPTED") != (code == 0):
        yield f"{verdict} with exit code {code}"
    if one.code == 0 and code != 0:
        yield f"torchrun's exit code is 0, and the record's {code}: {record.conclusion.line}"
    if verdict == "ACCEPTED" and not all(row.outcome is Outcome.PASSED for row in record.rows):
        yield "ACCEPTED, but not each row has passed"
    hit = {shot.target for shot in one.hit if shot.number not in _HARMLESS}
    if verdict == "ACCEPTED" and one.code != 0 and not hit & {"torchrun", "supervisor"}:
        yield f"ACCEPTED, and torchrun's exit code is {one.code}"
    if verdict != "ACCEPTED" and not hit - {"janitor"}:
        yield f"nothing went wrong, and {record.conclusion.line}"
    if verdict == "REJECTED" and ("worker" not in hit or not any(row.outcome in _REJECTS for row in record.rows)):
        yield f"nobody hit a worker, and {record.conclusion.line}"


def fuzz(folder: Path, rounds: Sequence[int], seed: int) -> list[str]:
    """Runs these rounds, a line for each; returns what was wrong. What a bad round left stays in the folder."""
    usual = run_round(folder / "usual", [], 0)
    print(f"undisturbed: {usual.verdict}, exit code {usual.code}, {usual.took_s:.1f} s", flush=True)
    faults, usual_s = [f"undisturbed: {fault}" for fault in usual.faults], usual.ran_s
    for number in rounds:
        one = run_round(folder / str(number), make_shots(seed, number), usual_s)
        shots = ", then ".join(f"{shot}{'' if shot in one.hit else ' (not there)'}" for shot in one.shots)
        print(f"round {number} (seed {seed}): {shots}: {one.verdict}, exit code {one.code}, {one.took_s:.1f} s after it", flush=True)
        for fault in one.faults:
            print(f"  FAULT: {fault}", flush=True)
        faults += [f"round {number} (seed {seed}), {shots}: {fault}" for fault in one.faults]
        usual_s = one.ran_s if one.code == 0 else usual_s  # a machine is not always as fast
        if not one.faults:
            shutil.rmtree(folder / str(number))
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="signal-fuzz-"))
    faults = fuzz(folder, range(options.first, options.first + options.rounds), options.seed)
    print("\n".join([f"{options.rounds} rounds, {len(faults)} faults", *faults]))
    if faults:
        print(f"the bad rounds are in {folder}")
    else:
        shutil.rmtree(folder)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
