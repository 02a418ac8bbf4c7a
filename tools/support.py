"""The limits that were judged, by hardware: docs/support.md, and its short form in README.md.

Counted are the limits of each shipped profile that a run at level `full` requires, and those of them that a committed run judged.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from gpu_acceptance.folder.files import RESULTS, read_results
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.build import REPORT
from gpu_acceptance.thresholds.limit import COUNTERS, DEFAULT_LEVEL, Limit, matching_reason
from gpu_acceptance.thresholds.profile import CPU, load_profile, profile_names, shipped_dir

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "reports"
RUNS = ("samples/*/", "evidence/**/")  # folders in reports/ that git keeps
SHAPES = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8))  # nodes, GPUs of each: what people buy
SOURCES = ("measured", "published", "derived", "policy")
VERDICTS = ("ACCEPTED", "REJECTED", "INCOMPLETE")  # which of two runs is shown

Shape = tuple[int, int]

HEAD = """# What runs where

For each GPU, and each number of nodes and GPUs per node: how many limits a run at level `full` is judged by, where these limits
come from, and how many of them our own runs have judged on such hardware. `make docs` counts them from the
[profiles](../thresholds/README.md), the [evidence](../reports/evidence/README.md) and the [samples](../reports/README.md).

- **limits**: a required limit of the shipped profile that applies to this size. Overlays and the level `soak` have more.
- **judged by us**: a committed run judged this limit on such GPUs, and it held or was missed. The limit may have been another number then.
- **measured**: the source of the limit is a reading. **published**: a data sheet or a public figure. **derived**: calculated from those.
  **policy**: a rule, such as "no wrong element" or "no pending repair".
- **run**: the committed run that judged most, an ACCEPTED one if there is one. What it was, and on what, is beside it.

Boards of 4 without switches (`h100-sxm-4gpu`, `h200-sxm-4gpu`) have their parents' limits, but for `p2p` and the fabric. Not run by us.
A GPU that no profile names is refused; `--measure-only` records its figures without judging.
The rates between nodes are those of the network, whose limits are published or derived: [Several nodes](fabrics.md).
All committed runs on 2 nodes were two hosts on one machine. On arm64 nothing was run.

| NVIDIA | nodes x GPUs | limits | judged by us | measured | published | derived | policy | run |
|---|---|---:|---:|---:|---:|---:|---:|---|
"""
SHORT_HEAD = """| NVIDIA | 1 GPU | 2 GPUs | 4 GPUs | 8 GPUs | 2 nodes |
|---|---:|---:|---:|---:|---:|
"""


@dataclass(frozen=True)
class Run:
    """A committed run on GPUs."""

    folder: Path
    device_name: str
    shape: Shape
    verdict: str
    level: str
    judged: frozenset[str]  # metrics
    lowest: Mapping[str, float] = field(default_factory=dict, compare=False)  # what held against a floor, by metric

    @property
    def title(self) -> str:
        return self.verdict if self.level == DEFAULT_LEVEL else f"{self.verdict} ({self.level})"

    @property
    def page(self) -> Path:
        """Its report, else the document nearest to it."""
        places = (self.folder / REPORT, *(folder / "README.md" for folder in (self.folder, *self.folder.parents)))
        return next(path for path in places if path.exists())


@dataclass(frozen=True)
class Cell:
    """One GPU in one size."""

    shape: Shape
    sources: Counter[str]  # of the limits that apply
    num_judged: int
    run: Run | None

    @property
    def num_limits(self) -> int:
        return self.sources.total()


def support_page() -> str:
    """docs/support.md."""
    rows = [(gpu, cells) for gpu, found in _table() for cells in _alike(found)]
    runs = dict.fromkeys(cells[0].run for _, cells in rows if cells[0].run)
    numbers = {run: number for number, run in enumerate(runs, start=1)}
    links = (f"[{number}]: {_relative(run.page)}\n" for run, number in numbers.items())
    return f"{HEAD}{''.join(_row(gpu, cells, numbers) for gpu, cells in rows)}\n{''.join(links)}"


def support_block() -> str:
    """The short form: of so many limits so many were judged; GPUs of which none was are named."""
    judged = [(gpu, cells) for gpu, cells in _table() if any(cell.num_judged for cell in cells)]
    others = {gpu for gpu, _ in _table()} - {gpu for gpu, _ in judged}
    rows = (f"| {gpu} | {' | '.join(_counts(_of_shape(cells, column)) for column in (*SHAPES[:4], None))} |\n" for gpu, cells in judged)
    rest = f"[{len(others)} more GPUs](thresholds/README.md#profiles) have limits that none of our runs has judged."
    return f"{SHORT_HEAD}{''.join(rows)}\n{rest}\n"


@cache
def _table() -> list[tuple[str, list[Cell]]]:
    """By GPU its cells, those that we ran first."""
    found = [
        _cells(name, committed_runs())
        for name in profile_names(shipped_dir())
        if name != CPU and not load_profile(name, shipped_dir()).nvlink_to
    ]
    return sorted(found, key=lambda one: -sum(cell.num_judged for cell in one[1]))


@cache
def committed_runs() -> list[Run]:
    """Return all runs in reports/ that were on GPUs of one kind."""
    return [run for pattern in RUNS for path in sorted(REPORTS.glob(f"{pattern}{RESULTS}")) if (run := _run(path.parent))]


def _run(folder: Path) -> Run | None:
    record = read_results(folder)
    models = {gpu.name for rank in record.ranks for gpu in rank.gpus}
    if len(models) != 1:
        return None
    limits = record.conclusion.limits
    judged = frozenset(limit.metric for limit in limits if limit.status in {Status.HELD, Status.MISSED})
    held = [limit for limit in limits if limit.status is Status.HELD and limit.bound == "at_least"]
    lowest = {limit.metric: float(limit.value) for limit in held if isinstance(limit.value, float | int)}
    return Run(folder, models.pop(), _shape(record), record.conclusion.verdict, record.plan.profile.level, judged, lowest)


def _shape(record: RunRecord) -> Shape:
    return record.conclusion.coverage.nodes, max(rank.local_world_size for rank in record.ranks)


def _cells(name: str, runs: Sequence[Run]) -> tuple[str, list[Cell]]:
    """The GPU of a profile, and each size that people buy or that we ran."""
    profile = load_profile(name, shipped_dir())
    runs = [run for run in runs if run.device_name == profile.device_name]
    subjects = {COUNTERS, *profile.levels[DEFAULT_LEVEL]} & profile.requires
    limits = [one for one in profile.limits.values() if one.subject in subjects and not matching_reason(one.metric, profile.not_applicable)]
    shapes = sorted({*SHAPES, *(run.shape for run in runs)})
    cells = [_cell(shape, limits, [run for run in runs if run.shape == shape]) for shape in shapes]
    return str(profile.device_name).removeprefix("NVIDIA "), cells


def _cell(shape: Shape, limits: Sequence[Limit], runs: Sequence[Run]) -> Cell:
    num_nodes, gpus_per_node = shape
    limits = [limit for limit in limits if limit.applies(gpus_per_node, num_nodes)]
    judged = {metric for run in runs for metric in run.judged}
    best = max(runs, key=lambda run: (-VERDICTS.index(run.verdict), len(run.judged)), default=None)
    return Cell(shape, Counter(map(_source, limits)), sum(limit.metric in judged for limit in limits), best)


def _source(limit: Limit) -> str:
    """The word that a source begins with."""
    return next((kind for kind in SOURCES if limit.source.startswith(kind)), "published")


def _alike(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Sizes with the same limits share a row where nothing was judged."""
    by_figures: dict[object, list[Cell]] = {}
    for cell in cells:
        by_figures.setdefault(cell.run or tuple(cell.sources.items()), []).append(cell)
    yield from by_figures.values()


def _row(gpu: str, cells: Sequence[Cell], numbers: dict[Run, int]) -> str:
    cell = cells[0]
    shapes = ", ".join(f"{num_nodes} x {gpus_per_node}" for num_nodes, gpus_per_node in (one.shape for one in cells))
    run = f"[{cell.run.title}][{numbers[cell.run]}]" if cell.run else "-"
    counts = " | ".join(str(cell.sources[kind]) for kind in SOURCES)
    return f"| {gpu} | {shapes} | {cell.num_limits} | {cell.num_judged} | {counts} | {run} |\n"


def _of_shape(cells: Sequence[Cell], shape: Shape | None) -> Cell:
    """The cell of this size; None: of several nodes the one of which most was judged, else the largest."""
    if shape:
        return next(cell for cell in cells if cell.shape == shape)
    return max((cell for cell in cells if cell.shape[0] > 1), key=lambda cell: (cell.num_judged, cell.shape))


def _counts(cell: Cell) -> str:
    return f"{cell.num_judged}/{cell.num_limits}"


def _relative(path: Path) -> str:
    return f"../{path.relative_to(ROOT).as_posix()}"
