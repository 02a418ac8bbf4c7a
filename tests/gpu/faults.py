"""Rows of the fault matrix on this machine's GPUs: `python tests/gpu/faults.py OUT`. Prints what each ended in; 1 where one is wrong.

Without a GPU it runs on 2 CPU ranks, for the sake of this script. A launch holds one fault of each rank: a rank that spoils three
generations ends its run, and of two ranks that wait for each other both count.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import torch
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from suite import Finished, make_suite, torchrun

# fault (tests/examples/gpu_faults.py) -> outcomes that are right, name in docs/faults.md
FAULTS = {
    "raises": ({"error"}, "exception on one rank before a collective"),
    "larger": ({"stuck", "error", "failed", "died"}, "mismatched sizes of a collective (gloo aborts the receiver)"),
    "other order": ({"stuck", "error", "failed"}, "mismatched order of collectives"),
    "never enters": ({"stuck"}, "one rank never enters a collective"),
    "stopped": ({"stuck"}, "SIGSTOP of a worker"),
    "exits": ({"died"}, "os._exit(7)"),
    "killed inside": ({"died"}, "SIGKILL of a worker inside a collective"),
}
NEED_PEERS = {"larger", "other order", "never enters"}
OF_GPUS = {
    "device assert": ({"died", "error"}, "device-side assert"),
    "out of memory": ({"error"}, "out of GPU memory"),
}


def main(out: Path) -> int:
    ranks = torch.cuda.device_count() or 2
    known = {**FAULTS, **(OF_GPUS if torch.cuda.is_available() else {})}
    faults = {fault: what for fault, what in known.items() if ranks > 1 or fault not in NEED_PEERS}
    plans = batches([(fault, number % ranks) for number, fault in enumerate(faults)], ranks)
    wrong = 0
    with (out / "faults.jsonl").open("w") as lines:
        for number, plan in enumerate(plans):
            ended = launch(plan, ranks)
            shutil.make_archive(str(out / f"faults-{number}"), "gztar", ended.folder or ended.suite)
            for line in judge(ended, plan, faults):
                wrong += not line["right"]
                lines.write(json.dumps(line) + "\n")
                print(json.dumps(line))
    return 1 if wrong else 0


def batches(faults: list[tuple[str, int]], size: int) -> Iterator[list[tuple[str, int]]]:
    """Plans with a healthy validation before the first fault and after each."""
    for start in range(0, len(faults), size):
        yield [("", 0), *(step for fault in faults[start : start + size] for step in (fault, ("", 0)))]


def launch(plan: list[tuple[str, int]], ranks: int) -> Finished:
    suite = make_suite(Path(mkdtemp()) / "suite", "gpu_faults")
    (suite / "plan.json").write_text(json.dumps(plan))
    if torch.cuda.is_available():
        profile = yaml.safe_load((suite / "thresholds" / "cpu.yaml").read_text())
        profile["match"] = {"device_name": torch.cuda.get_device_name()}
        (suite / "thresholds" / "cpu.yaml").unlink()
        (suite / "thresholds" / "this-gpu.yaml").write_text(yaml.safe_dump(profile))
    return torchrun(suite, ranks=ranks)


def judge(ended: Finished, plan: list[tuple[str, int]], faults: dict[str, tuple[set[str], str]]) -> Iterator[dict[str, object]]:
    for number, (fault, culprit) in enumerate(plan):
        row = ended.row(f"test_one[{number}]")
        allowed, name = faults[fault] if fault else ({"passed"}, "the next validation")
        named = not fault or f"rank {culprit} " in row.message
        yield {
            "fault": name,
            "right": row.outcome in allowed and named,
            "outcome": row.outcome,
            "says": row.message[:1500],
            "took_s": row.duration_s,
            "by_rank": ended.outcomes_by_rank(f"test_one[{number}]") if row.attempts else {},
        }


if __name__ == "__main__":
    os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")
    sys.exit(main(Path(sys.argv[1])))
