"""What is written beside the page for other tools: each file from the record alone, so that it can be built again byte for byte."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gpu_acceptance.base.text import clip
from gpu_acceptance.folder.disk import write_atomically
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.figures_csv import FIGURES, build_figures
from gpu_acceptance.report.junit import JUNIT, build_junit
from gpu_acceptance.report.metrics_prom import METRICS, build_metrics
from gpu_acceptance.report.summary_text import SUMMARY, build_summary

EXPORTS: Mapping[str, Callable[[RunRecord], str]] = {
    SUMMARY: build_summary,
    FIGURES: build_figures,
    METRICS: build_metrics,
    JUNIT: build_junit,
}


def write_exports(run_dir: Path, record: RunRecord) -> tuple[str, ...]:
    """Writes every export; a line for each that could not be, of which no old file is left to contradict the record."""
    return tuple(_problems(run_dir, record))


def remove_exports(run_dir: Path) -> None:
    """Takes back what was written; OSError where the folder does not let go of it."""
    for name in EXPORTS:
        (run_dir / name).unlink(missing_ok=True)


def _problems(run_dir: Path, record: RunRecord) -> Iterator[str]:
    for name, build in EXPORTS.items():
        try:
            (run_dir / name).unlink(missing_ok=True)
            write_atomically(run_dir / name, build(record))
        except Exception as error:  # whatever a writer or a disk can come up with; the verdict does not hang on it
            yield f"{run_dir / name} could not be written: {clip(f'{type(error).__name__}: {error}', 1_000)}"
