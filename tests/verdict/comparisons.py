"""Pairs of runs to compare: a run, and a later one that differs in one respect."""

from dataclasses import replace

from gpu_acceptance.record.outcome import Outcome
from tests.report import samples
from tests.verdict.judged_anew import judged_anew

LATER = "20261121-090000-cd34"
HBM = "acceptance/test_hbm.py::test_hbm_triad"
GEMM = "acceptance/test_gemm.py::test_gemm[bf16]"


def later(record, **other):
    """A second run with the same results; `other` as `judged_anew` takes it."""
    return judged_anew(record, run_id=LATER, **other)


def with_row(record, nodeid, change):
    """With one row changed, or left out where `change` gives None."""
    rows = [change(row) if row.nodeid == nodeid else row for row in record.rows]
    return record.model_copy(update={"rows": tuple(row for row in rows if row)})


def scaled(metric, factor, *ranks, spread=None, is_cut=False):
    """Changes a figure on these ranks. `is_cut`: it is of a few operations."""

    def change(row):
        attempt = row.attempts[-1]
        records = [record.model_copy(update={"figures": tuple(map(make_figure(record.rank), record.figures))}) for record in attempt.ranks]
        return row.model_copy(update={"attempts": (attempt.model_copy(update={"ranks": tuple(records)}),)})

    def make_figure(rank):
        def scale(figure):
            if figure.metric != metric or rank not in ranks:
                return figure
            return replace(figure, value=figure.value * factor, spread_percent=spread or figure.spread_percent, is_cut=is_cut)

        return scale

    return change


def with_slow_memory(*ranks):
    """The accepted run, but for a limit of HBM that these ranks missed."""
    return judged_anew(with_row(samples.accepted(), HBM, scaled("hbm.triad.bandwidth", 0.9, *ranks)))


def not_run(row):
    return row.model_copy(update={"outcome": Outcome.NOT_RUN, "attempts": (), "judgements": ()})
