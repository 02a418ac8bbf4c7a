"""Writes reports/evidence/h200x8-accept/README.md: the figures of the committed runs beside readings by other means.

Collectives beside nccl-tests on the same kind of machine (nccl-tests.csv), memory beside the readings that its limits come from.
"""

import csv
import functools
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from gpu_acceptance.folder import files

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "reports" / "evidence" / "h200x8-accept"
PAGE = HERE / "README.md"
RUNS = {size: HERE / f"gpus{size}" for size in (8, 4, 2)}  # by GPUs under test
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
HBM = {"copy": 4295, "triad": 4372, "read": 4370, "write": 4673}  # GB/s; sources in thresholds/h200-sxm.yaml
WIDER = 0.02
read_results = functools.cache(files.read_results)  # each run is asked for a dozen figures
MiB, GiB = 2**20, 2**30

HEAD = """# 8, 4 and 2 NVIDIA H200 of one node

`tools/gpu/accept.sh` on nodes with 8 NVIDIA H200 (torch 2.11, CUDA 13.0, NCCL 2.28.9, NVLink multicast off, overlay
`site-nvls-off`). Serials, UUIDs, host and paths are replaced. `tools/make_comparison.py` writes this page from the files beside it.

| run | outcome | files |
|---|---|---|
| `make accept`, 8 GPUs | ACCEPTED, 106 of 106 limits held | `gpus8/`, with [its page](gpus8/report.html), and `terminal.txt` |
| one bound raised out of reach (`--limits=FILE`) | REJECTED, exit code 1 of each rank; 105 of 106 held | `raised/` |
| `RANKS=4 ARGS="--gpus=4"` | ACCEPTED for 4 of 8 GPUs, 106 of 106 held | `gpus4/` |
| `RANKS=2 ARGS="--gpus=2"` | ACCEPTED for 2 of 8 GPUs, 106 of 106 held | `gpus2/` |
| `tools/gpu/readings.py`, 8 GPUs of an earlier node | the measurements alone, no limits; all_gather out of place | `readings.jsonl` |
| the same on GPUs 0-1, 2-3 and 4-7 of another such node, at one time | " | `readings-gpus*.jsonl` |
| the same on its GPUs 0-1, the others idle | " | `readings-gpus0-1-alone.jsonl` |
| the same on 8 GPUs of a third node, all_gather in place | " | `readings-in-place.jsonl` |
| the same on 2 GPUs of a fourth node, all_gather in place | " | `readings-gpus0-1-in-place.jsonl` |

The four runs are of one node, one after the other, and measure all_gather in place. The overlay's bounds were drawn anew afterwards,
from all readings on this page.

## Collectives beside nccl-tests

busbw in GB/s, float. nccl-tests 2.19.6, NCCL 2.28.9, NVLS off, was read on 8, 4 and 2 GPUs of nodes of the same kind
(`nccl-tests.csv`); its two columns are out-of-place and in-place. Span: the lower column less 2 % to the higher plus 2 %.
nccl-tests was not read at 256 MiB and 1 GiB on 8 GPUs, and nothing is interpolated.
CV: over the 7 blocks of our figure.

"""

NOTE = """What is outside is one thing: all_gather of 4 GiB on 2 GPUs out of place, as the tool measured it at first. It is not the tool. On
one more pair NCCL was called by itself, as nccl-tests calls it ([nccl-alone-2-gpus.jsonl](../nccl-alone-2-gpus.jsonl)), and then by the
tool: all 12 of the tool's readings are inside nccl-tests' span, and 11 are within 2 % of what NCCL read alone there, placed alike.
The twelfth is all_gather of 4 GiB in place: 308.8 by the tool, 321.9-327.0 alone. And NCCL alone read 291.7-293.8 out of place and
309.8-311.1 in place on one pair ([all-gather-2-gpus.jsonl](../all-gather-2-gpus.jsonl)), 302.7-304.5 and 321.9-327.0 on the other: further
apart than the span is wide. nccl-tests' columns are one sample of it.

The reason shows in [block-levels-2-gpus.jsonl](../block-levels-2-gpus.jsonl): on 2 GPUs all_gather and reduce_scatter run at one of a few
levels, and any other kernel in between may change it. The tool draws new values before each block, so its median is over seven draws;
nccl-tests, which repeats one operation, sees one. So the limits of 2 GPUs allow 5 % of spread, where 2 % would call most healthy
pairs unstable, and come from the lowest of 24 such medians less 5 %. On 4 and 8 GPUs no reading spread more than 0.7 %.
The tool measures all_gather in place, as FSDP calls it: 301.2-322.4 on 2 GPUs, 350.1 on 4 and 359.1-360.1 on 8.
"""


@dataclass(frozen=True)
class Reading:
    """One busbw of ours."""

    num_gpus: int
    collective: str
    num_bytes: int
    busbw_gb_per_s: float
    cv_percent: float
    origin: str

    def place(self) -> str:
        return f"{self.num_gpus} GPUs, {self.collective}, {size(self.num_bytes)} ({self.origin})"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    return "\n".join([HEAD + "\n".join(collective_lines()), "", NOTE, "## Memory beside the reference", "", *memory_lines(), ""])


def collective_lines() -> Iterator[str]:
    theirs = nccl_tests()
    yield "| GPUs | collective | message | ours | CV | from | nccl-tests | span | inside |"
    yield "|---|---|---|---|---|---|---|---|---|"
    outside, num_compared = [], 0
    for one in sorted(readings(), key=lambda one: (-one.num_gpus, COLLECTIVES.index(one.collective), one.num_bytes, one.origin)):
        columns = theirs.get((one.num_gpus, one.collective, one.num_bytes))
        yield row(one, columns)
        num_compared += columns is not None
        if columns and not is_inside(one.busbw_gb_per_s, columns):
            outside.append(f"{one.place()}: {one.busbw_gb_per_s:.1f}, span {span_text(columns)}")
    yield ""
    yield f"Inside: {num_compared - len(outside)} of {num_compared} that can be compared. Outside: {'; '.join(outside) or 'none'}."


def row(one: Reading, columns: tuple[float, float] | None) -> str:
    start = (
        f"| {one.num_gpus} | {one.collective} | {size(one.num_bytes)} | {one.busbw_gb_per_s:.1f} | {one.cv_percent:.2f} % | {one.origin} |"
    )
    if columns is None:
        return f"{start} not read | - | - |"
    verdict = "yes" if is_inside(one.busbw_gb_per_s, columns) else "**no**"
    return f"{start} {columns[0]:.2f} / {columns[1]:.2f} | {span_text(columns)} | {verdict} |"


def span(columns: tuple[float, float]) -> tuple[float, float]:
    return min(columns) * (1 - WIDER), max(columns) * (1 + WIDER)


def span_text(columns: tuple[float, float]) -> str:
    low, high = span(columns)
    return f"{low:.1f}-{high:.1f}"


def is_inside(busbw_gb_per_s: float, columns: tuple[float, float]) -> bool:
    low, high = span(columns)
    return low <= busbw_gb_per_s <= high


def nccl_tests() -> dict[tuple[int, str, int], tuple[float, float]]:
    """Out-of-place and in-place busbw by GPUs, collective and message size."""
    with (HERE / "nccl-tests.csv").open(encoding="utf-8", newline="") as file:
        return {
            (int(line["gpus"]), line["collective"], int(line["num_bytes"])): (
                float(line["out_of_place_gb_per_s"]),
                float(line["in_place_gb_per_s"]),
            )
            for line in csv.DictReader(file)
        }


def readings() -> Iterator[Reading]:
    """All of ours, from the runs and from the measurements alone."""
    for num_gpus, run in RUNS.items():
        num_bytes = int(read_results(run).plan.profile.parameters["nccl.num_bytes"])
        for collective in COLLECTIVES:
            busbw, cv_percent = (min(figures(run, f"nccl.{collective}.{name}")) for name in ("busbw", "spread"))
            yield Reading(num_gpus, collective, num_bytes, busbw, cv_percent, "run")
    for path in sorted(HERE.glob("readings*.jsonl")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            if line.get("subject") == "nccl":
                figure, cv_percent = line["busbw_gb_per_s"], line["block_cv_percent"]
                origin = path.stem.replace("readings-gpus", "readings, GPUs ").replace("-alone", " alone").replace("-in-place", " in place")
                yield Reading(lines[0]["world_size"], line["collective"], line["num_bytes"], figure, cv_percent, origin)


def memory_lines() -> Iterator[str]:
    yield "GB/s, 4 GiB arrays. Reference: `thresholds/h200-sxm.yaml` names its readings (torch 2.11, 8 GPUs of such a node, medians)."
    yield ""
    yield "| GPUs | kernel | reference | slowest GPU | median | within 2 % |"
    yield "|---|---|---|---|---|---|"
    for num_gpus, run in RUNS.items():
        for kernel, reference in HBM.items():
            rates = figures(run, f"hbm.{kernel}.bandwidth")
            slowest, median = min(rates), statistics.median(rates)
            inside = "yes" if all(abs(rate / reference - 1) <= WIDER for rate in rates) else "**no**"
            yield f"| {num_gpus} | {kernel} | {reference} | {beside(slowest, reference)} | {beside(median, reference)} | {inside} |"


def beside(rate: float, reference: float) -> str:
    return f"{rate:.1f} ({100 * (rate / reference - 1):+.2f} %)"


def figures(run: Path, metric: str) -> list[float]:
    """One per rank."""
    attempts = [attempt for row in read_results(run).rows for attempt in row.attempts]
    return [float(one.value) for attempt in attempts for rank in attempt.ranks for one in rank.figures if one.metric == metric]


def size(num_bytes: int) -> str:
    return f"{num_bytes // GiB} GiB" if num_bytes >= GiB else f"{num_bytes // MiB} MiB"


if __name__ == "__main__":
    main()
