"""Rows of the fault matrix on this machine's GPUs: `python tools/gpu/faults.py OUT [FAULT...]`, all without a FAULT.

Prints what each ended in; 1 where one is wrong.

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

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))


from faults import Fault, neutral
from suite import Finished, make_suite, torchrun
from this_gpu import for_this_gpu

from gpu_acceptance.record.row import Row
from gpu_acceptance.report.redaction import Redactor, StandIns, learn_record
from gpu_acceptance.verdict.reasons import FORMATION

# fault (tests/examples/gpu_faults.py) -> outcomes that are right, name in docs/faults.md
FAULTS = {
    "raises": ({"error"}, "exception on one rank before a collective"),
    "larger": ({"stuck", "error", "failed", "died"}, "mismatched sizes of a collective"),
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
INVISIBLE = "one GPU invisible to its rank"
HIDES_GPUS = """
import os

if os.environ["RANK"] == "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"  # the worker inherits it
"""


def main(out: Path, only: list[str]) -> int:
    ranks = torch.cuda.device_count() or 2
    known = {**FAULTS, **(OF_GPUS if torch.cuda.is_available() else {})}
    faults = {fault: what for fault, what in known.items() if (ranks > 1 or fault not in NEED_PEERS) and (not only or fault in only)}
    wrong = 0
    with (out / "faults.jsonl").open("w") as lines:
        for line in seen(out, faults, ranks):
            wrong += not line["right"]
            lines.write(json.dumps(line) + "\n")
            print(json.dumps(line))
    return 1 if wrong else 0


def seen(out: Path, faults: dict[str, tuple[set[str], str]], ranks: int) -> Iterator[dict[str, object]]:
    """Launches all, and keeps the folder of each run."""
    plans = batches([(fault, number % ranks) for number, fault in enumerate(faults)], ranks)
    for number, plan in enumerate(plans):
        ended = launch(plan, ranks)
        keep(ended, out / f"faults-{number}")
        yield from judge(ended, plan, faults)
    if torch.cuda.device_count() > 1:
        ended = launch([("", 0)], ranks, hides_gpus=True)
        keep(ended, out / "faults-invisible")
        yield judge_invisible(ended)


def keep(ended: Finished, archive: Path) -> None:
    shutil.make_archive(str(archive), "gztar", ended.folder or ended.suite)


def batches(faults: list[tuple[str, int]], size: int) -> Iterator[list[tuple[str, int]]]:
    """Plans with a healthy validation before the first fault and after each."""
    for start in range(0, len(faults), size):
        yield [("", 0), *(step for fault in faults[start : start + size] for step in (fault, ("", 0)))]


def launch(plan: list[tuple[str, int]], ranks: int, *, hides_gpus: bool = False) -> Finished:
    suite = make_suite(Path(mkdtemp()) / "suite", "gpu_faults", *(["runs_without_group"] if hides_gpus else []))
    if hides_gpus:
        (suite / "acceptance" / "conftest.py").write_text(HIDES_GPUS)
    (suite / "plan.json").write_text(json.dumps(plan))
    return torchrun(for_this_gpu(suite), ranks=ranks)


def judge(ended: Finished, plan: list[tuple[str, int]], faults: dict[str, tuple[set[str], str]]) -> Iterator[dict[str, object]]:
    for number, (fault, culprit) in enumerate(plan):
        row = ended.row(f"test_one[{number}]")
        allowed, name = faults[fault] if fault else ({"passed"}, "the next validation")
        named = not fault or f"rank {culprit} " in row.message.split("\n", 1)[0]
        yield line_of(ended, name, row, right=row.outcome in allowed and named)


def judge_invisible(ended: Finished) -> dict[str, object]:
    """The rank and its step are named, all others are victims, and what needs no group has run on those."""
    row = ended.row(FORMATION)
    others = {rank: outcome for rank, outcome in ended.outcomes_by_rank(FORMATION, attempt=0).items() if rank != 1}
    named = row.message.startswith("rank 1 ") and set(others.values()) == {"victim"}
    went_on = ended.row("test_one[0]").outcome == "not run" and ended.row("test_alone").outcome != "not run"
    return line_of(ended, INVISIBLE, row, right=row.outcome == "failed" and named and went_on)


def line_of(ended: Finished, name: str, row: Row, *, right: bool) -> dict[str, object]:
    """As tools/make_faults.py reads it, without the names of this machine."""
    stand_ins = StandIns()
    learn_record(ended.record, stand_ins)
    message = Redactor(stand_ins).text(row.message)
    return {
        "fault": name,
        "right": right,
        "verdict": Fault(name, row.outcome, row=row.nodeid).verdict,
        "says": neutral(message.split("\n", 1)[0]),
        "took_s": row.duration_s,
        "message": message[:3000],
        "by_rank": ended.outcomes_by_rank(row.nodeid) if row.attempts else {},
    }


if __name__ == "__main__":
    os.environ.update(NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
