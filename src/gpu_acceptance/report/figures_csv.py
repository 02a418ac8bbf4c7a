"""`results.json` -> `figures.csv`: one row for each figure of each rank, for a spreadsheet or a data frame (RFC 4180, UTF-8).

Numbers stand in columns of their own, so that a column of numbers holds nothing else. No cell can be a formula: a text that a spreadsheet
would read as one is led by an apostrophe, as OWASP's "CSV Injection" advises. So is one that it would read as a number: of a serial with
more than 15 digits it would keep 15, and of one that begins with 0 not that.
"""

import csv
import io
import re
from collections.abc import Iterator

from gpu_acceptance.base.text import one_line
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import RankIdentity
from gpu_acceptance.record.outcome import Status
from gpu_acceptance.record.row import Judgement, RankRecord, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.formatting import exact
from gpu_acceptance.report.validations import shown_figures
from gpu_acceptance.thresholds.limit import Value

FIGURES = "figures.csv"
COLUMNS = (
    "run_id",
    "validation",
    "subject",
    "attempt",
    "metric",
    "rank",
    "node",
    "host",
    "rack",
    "gpu_index",
    "gpu_serial",
    "gpu_uuid",
    "value",
    "text",
    "unit",
    "judged",
    "spread_percent",
    "anomaly",
    "detail",
    "labels",
    "bound",
    "at_least",
    "at_most",
    "status",
    "named",
    "source",
)
_BEGINS_FORMULA = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")  # the last four: full-width forms, which some spreadsheets read alike
_NUMBER = re.compile(r"[\d.,]*\d[\d.,]*([eE][+-]?\d+)?%?")
_BAD = frozenset({Status.MISSED, Status.INVALID, Status.UNSTABLE})


def build_figures(record: RunRecord) -> str:
    """The table as text. `status` is of the bounds over all ranks; `named`: whether a bound that did not hold names this rank."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for cells in _rows(record):
        writer.writerow([_cell(cells.get(column, "")) for column in COLUMNS])
    return text.getvalue()


def _cell(value: Value | None) -> str:
    """Numbers to the last digit; a text in one line, with nothing invisible and no formula in it."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else exact(value)
    text = one_line(value)
    is_read = text.strip() and (text.lstrip()[0] in _BEGINS_FORMULA or _NUMBER.fullmatch(text.strip()))
    return f"'{text}" if is_read else text


def _rows(record: RunRecord) -> Iterator[dict[str, Value | None]]:
    identities = {identity.rank: identity for identity in record.ranks}
    told = set[str]()
    for row in record.rows:
        judgements = _by_metric(row.judgements)
        for attempt in row.attempts:
            for rank in attempt.ranks:
                where = {**_validation(record, row), "attempt": attempt.number, **_place(rank, identities.get(rank.rank))}
                for figure in shown_figures(rank):
                    told.add(figure.metric)
                    yield {**where, **_figure(figure), **_judged(judgements.get(figure.metric, []), rank.rank)}
    for metric, limits in _by_metric(record.conclusion.limits).items():
        if metric not in told:  # what was never measured has a row too, without a value; a counter that never rose has its 0
            worst = limits[0]
            yield {"run_id": record.plan.run_id, "metric": metric, **_measured(worst.value), "unit": worst.unit, **_judged(limits, None)}


def _by_metric(judgements: tuple[Judgement, ...]) -> dict[str, list[Judgement]]:
    found: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        found.setdefault(judgement.metric, []).append(judgement)
    return found


def _validation(record: RunRecord, row: Row) -> dict[str, Value | None]:
    return {"run_id": record.plan.run_id, "validation": row.nodeid, "subject": row.subject}


def _place(rank: RankRecord, identity: RankIdentity | None) -> dict[str, Value | None]:
    if identity is None:
        return {"rank": rank.rank}
    gpu = identity.gpu
    place: dict[str, Value | None] = {"rank": rank.rank, "node": identity.node, "host": identity.host, "rack": identity.rack}
    return {**place, "gpu_index": gpu.index, "gpu_serial": gpu.serial, "gpu_uuid": gpu.uuid} if gpu else place


def _figure(figure: Figure) -> dict[str, Value | None]:
    return {
        "metric": figure.metric,
        **_measured(figure.value),
        "unit": figure.unit,
        "judged": figure.judged,
        "spread_percent": figure.spread_percent,
        "anomaly": figure.anomaly,
        "detail": figure.detail,
        "labels": " ".join(f"{name}={value}" for name, value in (figure.labels or {}).items()),
    }


def _measured(value: Value | None) -> dict[str, Value | None]:
    """A text or a truth stands apart from numbers."""
    return {"text" if isinstance(value, str | bool) else "value": value}


def _judged(judgements: list[Judgement], rank: int | None) -> dict[str, Value | None]:
    """Several bounds of one metric stand in one cell, in the same order in each column."""
    if not judgements:
        return {}
    return {
        "bound": "; ".join(one.need or "none" for one in judgements),
        **{one.bound: one.asked_number for one in judgements if one.bound in ("at_least", "at_most")},
        "status": "; ".join(one.status for one in judgements),
        "named": any(one.status in _BAD and rank in one.ranks for one in judgements),
        "source": "; ".join(dict.fromkeys(": ".join(part for part in (one.file, one.source) if part) for one in judgements)),
    }
