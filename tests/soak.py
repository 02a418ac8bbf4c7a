"""A long run with a fault in every third validation: every verdict right, nothing hangs, and what the supervisors hold stays flat.

`python tests/soak.py` (or `make soak`) is the whole; test_soak.py is a short form of the same.
"""

import argparse
import json
import random
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import yaml
from faults import left_in
from suite import EXAMPLES, Finished, finished, limits_of, make_suite, start, torchrun_command
from torch.distributed import TCPStore

# fault of one rank (soak.py in tests/examples) -> outcome of the validation
POISONS = {
    "raises": "error",
    "exits": "died",
    "segfaults": "died",
    "is killed": "died",
    "hangs": "stuck",
    "is stopped": "stuck",
    "asserts": "failed",
}
GENTLE = {"misses": "failed", "fails in set-up": "error", "skips": "skipped"}
OUTCOMES = {"": "passed", **POISONS, **GENTLE}
MOST_POISONED = 2  # generations by each rank, and in each subject: the third would end that
SAMPLE_S = 0.5
MOST_FDS_MORE = 2  # a sample may fall into the start of a worker
MOST_KEYS_MORE = 0.5  # of what the store held at first: gloo leaves a key for each pair of ranks
MOST_GROWTH_MIB = 24  # rank 0 keeps every row; the allocator keeps pages


@dataclass(frozen=True)
class Step:
    """One validation of the plan: which fault on which rank, and whether it wants new workers."""

    fault: str
    rank: int
    fresh: bool
    subject: str


def make_plan(validations: int, generations: int, ranks: int, seed: int) -> list[Step]:
    """A fault in every third validation; as many fresh workers as it takes to come to about `generations`."""
    choose = random.Random(seed)
    poisons = [(choose.choice(list(POISONS)), rank) for rank in range(ranks) for _ in range(MOST_POISONED)]
    gentle = [(choose.choice(list(GENTLE)), choose.randrange(ranks)) for _ in range(validations)]
    faults = (poisons + gentle)[: validations // 3]
    choose.shuffle(faults)
    renewals = sum(fault in POISONS for fault, _ in faults)
    healthy = [number for number in range(validations) if number % 3 == 0 and number]
    # A fresh one costs two generations: its own, and the one after it.
    fresh = set(choose.sample(healthy, min(len(healthy), max(0, generations - renewals) // 2)))
    at = {3 * place + 1: fault for place, fault in enumerate(faults)}
    planned = [at.get(number, ("", 0)) for number in range(validations)]
    before = list(accumulate(fault in POISONS for fault, _ in planned))  # with this one
    return [
        Step(fault, rank, number in fresh, f"soak_{max(0, before[number] - 1) // MOST_POISONED:02}")
        for number, (fault, rank) in enumerate(planned)
    ]


@dataclass
class Held:
    """Resources of the supervisors and the store over time: one list of samples per process."""

    fds: dict[int, list[int]] = field(default_factory=dict)
    mib: dict[int, list[float]] = field(default_factory=dict)
    keys: list[int] = field(default_factory=list)

    def sample(self, launcher: psutil.Process) -> None:
        supervisors = [child for child in launcher.children() if "pytest" in child.cmdline()]
        for rank, process in enumerate(supervisors):
            self.fds.setdefault(rank, []).append(process.num_fds())
            self.mib.setdefault(rank, []).append(process.memory_info().rss / 2**20)
        if supervisors:
            environ = supervisors[0].environ()
            client = TCPStore(environ["MASTER_ADDR"], int(environ["MASTER_PORT"]), None, is_master=False)
            self.keys.append(client.num_keys())


def run(folder: Path, plan: list[Step], ranks: int, most_s: float) -> tuple[Finished, Held]:
    """One torchrun over the plan; ends it by force after `most_s` seconds."""
    suite, subjects = make_suite(folder), list(dict.fromkeys(step.subject for step in plan))
    limits = {metric: limit for subject in subjects for metric, limit in limits_of(subject)["limits"].items()}
    (suite / "thresholds" / "cpu.yaml").write_text(yaml.safe_dump({"extends": "base", "requires": subjects, "limits": limits}, width=1000))
    for subject in subjects:
        shutil.copy(EXAMPLES / "soak.py", suite / "acceptance" / f"test_{subject}.py")
    (suite / "plan.json").write_text(json.dumps([asdict(step) for step in plan]))
    process, held, over = start(torchrun_command("acceptance/", ranks=ranks), suite), Held(), threading.Event()
    sampler = threading.Thread(target=_sample, args=(psutil.Process(process.pid), held, over))
    sampler.start()
    try:
        output, _ = process.communicate(timeout=most_s)
    finally:
        over.set()
        process.kill()
        sampler.join()
    return finished(process.returncode, output, suite), held


def _sample(launcher: psutil.Process, held: Held, over: threading.Event) -> None:
    while not over.wait(SAMPLE_S):
        try:
            held.sample(launcher)
        except (psutil.Error, KeyError, RuntimeError):  # on its way up or down
            continue


def wrong_verdicts(ended: Finished, plan: list[Step]) -> Iterator[str]:
    """List the validations that did not end as planned."""
    for number, step in enumerate(plan):
        row = ended.row(f"test_short[{number}]")
        if row.outcome != OUTCOMES[step.fault]:
            yield f"{number}: rank {step.rank} {step.fault or 'passes'}, but the outcome is {row.outcome}: {row.message[:300]}"
        elif step.fault and f"rank {step.rank} " not in row.message:
            yield f"{number}: rank {step.rank} {step.fault}, but the message is: {row.message[:300]}"
    if ended.record.conclusion.verdict != "REJECTED":
        yield f"the verdict is {ended.verdict_line}"


def growth(held: Held) -> Iterator[str]:
    """List what grows: the last third of the samples against the second."""
    for rank, fds in held.fds.items():
        before, after = _second_and_last_third(fds)
        if after > before + MOST_FDS_MORE:
            yield f"supervisor {rank}: {before:.0f} descriptors, then {after:.0f}"
    for rank, mib in held.mib.items():
        before, after = _second_and_last_third(mib)
        if after > before + MOST_GROWTH_MIB:
            yield f"supervisor {rank}: {before:.0f} MiB, then {after:.0f}"
    before, after = _second_and_last_third(held.keys)
    if after > before * (1 + MOST_KEYS_MORE):
        yield f"store: {before:.0f} keys, then {after:.0f}"


def _second_and_last_third(samples: list[float] | list[int]) -> tuple[float, float]:
    third = len(samples) // 3
    return statistics.median(samples[third : 2 * third]), statistics.median(samples[-third:])


def generations(ended: Finished) -> int:
    return max(record.generation for row in ended.record.rows for attempt in row.attempts for record in attempt.ranks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--validations", type=int, default=200)
    parser.add_argument("--generations", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    plan = make_plan(asked.validations, asked.generations, asked.ranks, asked.seed)
    with TemporaryDirectory() as folder:
        before = time.monotonic()
        ended, held = run(Path(folder) / "suite", plan, asked.ranks, most_s=3600)
        if not ended.has_results:
            print(f"{ended.output[-5000:]}\nno results, exit code {ended.returncode}")
            return 1
        wrong = [*wrong_verdicts(ended, plan), *growth(held), *(f"left behind: {line}" for line in left_in(ended.suite))]
    print(f"{asked.validations} validations on {asked.ranks} ranks, seed {asked.seed}: {time.monotonic() - before:.0f} s on a CPU")
    print(f"faults: {sum(bool(step.fault) for step in plan)}, generations of workers: {generations(ended)}")
    print(f"verdict: {ended.verdict_line}")
    for rank in held.fds:
        fds, mib = _second_and_last_third(held.fds[rank]), _second_and_last_third(held.mib[rank])
        print(f"supervisor {rank}: descriptors {fds[0]:.0f} -> {fds[1]:.0f}, memory {mib[0]:.0f} -> {mib[1]:.0f} MiB")
    print("store keys: {:.0f} -> {:.0f}".format(*_second_and_last_third(held.keys)))
    print("\n".join(wrong) or "every verdict as planned, nothing grew, nothing left behind")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
