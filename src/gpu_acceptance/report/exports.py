"""Files for other tools: figures.csv, metrics.prom, junit.xml, and the list of all."""

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from gpu_acceptance.base.text import clip, one_line, visible
from gpu_acceptance.folder.files import write_atomically
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.job import RankIdentity
from gpu_acceptance.record.outcome import Means, Outcome, Status
from gpu_acceptance.record.row import Judgement, RankRecord, Row
from gpu_acceptance.record.run_record import Conclusion, RunRecord
from gpu_acceptance.report.summary_text import SUMMARY, build_summary
from gpu_acceptance.report.validations import shown_figures
from gpu_acceptance.report.words import VERDICT, exact, parse_moment
from gpu_acceptance.thresholds.contract import LineState
from gpu_acceptance.thresholds.limit import Value, is_number, show, with_unit

JUNIT = "junit.xml"
VERDICT_CASE = "verdict"
_OWN = "gpu_acceptance"  # the class of what is of no file
_HEAD = '<?xml version="1.0" encoding="utf-8"?>\n'
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
METRICS = "metrics.prom"
_PREFIX = "gpu_acceptance"

Labels = dict[str, str]
Sample = tuple[Labels, float | int]


def figure_properties(row: Row) -> dict[str, str]:
    """The judged figures of a validation as properties: metric -> value, unit, bound and how it fared."""
    properties = {}
    for judgement in row.judgements:
        name = f"{judgement.metric} {judgement.bound}".strip()
        shown = "no value" if judgement.value is None else with_unit(show(judgement.value), judgement.unit)
        need = f", need {judgement.need}" if judgement.need else ""
        properties[name] = f"{shown}{need}: {judgement.status}"
        if judgement.status in {Status.WAIVED, Status.NOT_APPLICABLE}:
            properties[name] += f" ({judgement.message})"
    return {visible(name): visible(said) for name, said in properties.items()}


def build_junit(record: RunRecord) -> str:
    cases = [*map(_of_row, record.rows), _of_verdict(record.conclusion)]
    kinds = Counter(child.tag for case in cases for child in case)
    suite = ElementTree.Element(
        "testsuite",
        name=one_line(f"{_OWN} {record.plan.run_id}"),
        tests=str(len(cases)),
        failures=str(kinds["failure"]),
        errors=str(kinds["error"]),
        skipped=str(kinds["skipped"]),
        time=f"{sum(row.duration_s for row in record.rows):.3f}",
        timestamp=one_line(record.plan.started_at),
        hostname=one_line(record.ranks[0].host),
    )
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(record):
        ElementTree.SubElement(properties, "property", name=one_line(name), value=one_line(value))
    suite.extend(cases)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return f"{_HEAD}{ElementTree.tostring(root, encoding='unicode')}\n"


def _properties(record: RunRecord) -> Iterator[tuple[str, str]]:
    """The verdict, and each judged figure by the name of its test case: the schema above allows properties of a suite alone."""
    yield "verdict", record.conclusion.line
    yield "exit_code", str(record.conclusion.exit_code)
    for row in record.rows:
        classname, name = _names(row)
        yield from ((f"{classname}.{name} {figure}", said) for figure, said in figure_properties(row).items())


def _names(row: Row) -> tuple[str, str]:
    """As pytest names it: `acceptance/test_gemm.py::test_bf16` is test_bf16 of acceptance.test_gemm."""
    file, _, name = visible(row.nodeid).rpartition("::")
    return file.removesuffix(".py").replace("/", ".") or _OWN, name


def _of_row(row: Row) -> ElementTree.Element:
    """A test case with the figures that were judged."""
    case = _case(*_names(row), row.duration_s)
    if row.outcome is Outcome.NOT_APPLICABLE:
        _add(case, "skipped", row.outcome, row.message)
    elif row.outcome is not Outcome.PASSED:
        _add(case, "failure" if row.outcome.means is Means.REJECTS else "error", row.outcome, row.message)
    if figures := [f"{name}: {said}" for name, said in figure_properties(row).items()]:
        ElementTree.SubElement(case, "system-out").text = "\n".join(figures)
    return case


def _of_verdict(conclusion: Conclusion) -> ElementTree.Element:
    case = _case(_OWN, VERDICT_CASE, 0.0)
    if conclusion.exit_code or conclusion.verdict != "ACCEPTED":
        kind = "failure" if conclusion.verdict == "REJECTED" else "error"
        _add(case, kind, conclusion.verdict, "\n".join([conclusion.line, *conclusion.reasons]))
    return case


def _case(classname: str, name: str, duration_s: float) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=classname, name=name, time=f"{duration_s:.3f}")


def _add(case: ElementTree.Element, tag: str, kind: str, text: str) -> None:
    """The first line is what lists show; all of it is one click away."""
    first = text.partition("\n")[0]
    said = first if first.startswith(kind) else f"{kind}: {first}"
    ElementTree.SubElement(case, tag, type=kind, message=one_line(said)).text = visible(text)


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


def build_metrics(record: RunRecord) -> str:
    """The file as text; a second series with the labels of an earlier one, which both formats forbid, is left out."""
    lines = [line for name, about, samples in _families(record) for line in _family(f"{_PREFIX}_{name}", about, samples)]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def _family(name: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    series: dict[str, float | int] = {}
    for labels, value in samples:
        series.setdefault(_labels(labels), value)
    if series:
        yield f"# HELP {name} {about}"
        yield f"# TYPE {name} gauge"
        yield from (f"{name}{labels} {value}" for labels, value in series.items())


def _labels(labels: Labels) -> str:
    text = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    return f"{{{text}}}" if text else ""


def _escape(value: str) -> str:
    return one_line(value).replace("\\", "\\\\").replace('"', '\\"')


def _families(record: RunRecord) -> Iterator[tuple[str, str, list[Sample]]]:
    plan, conclusion, cover = record.plan, record.conclusion, record.conclusion.coverage
    about = {"run_id": plan.run_id, "profile": plan.profile.name, "level": plan.profile.level, "version": plan.gpu_acceptance_version}
    yield "run_info", "Which run this is of; always 1.", [(about, 1)]
    ended = parse_moment(record.ended_at)
    yield "run_ended_timestamp_seconds", "When the run ended, in Unix time.", [({}, ended.timestamp())] if ended else []
    verdicts: list[Sample] = [({"verdict": verdict}, int(verdict == conclusion.verdict)) for verdict in VERDICT]
    yield "verdict", "1 for the verdict of the run, 0 for the others.", verdicts
    yield "exit_code", "Exit code of the run.", [({}, conclusion.exit_code)]
    yield "nodes", "Nodes in the run.", [({}, cover.nodes)]
    yield "ranks", "Ranks in the run.", [({}, cover.ranks)]
    yield (
        "gpus",
        "GPUs that exist on the nodes, and those tested.",
        [({"state": "existing"}, cover.gpus_existing), ({"state": "tested"}, cover.gpus_tested)],
    )
    limits: list[Sample] = [(({"state": name}), getattr(cover, f"limits_{name}")) for name in ("expected", "judged", "held")]
    yield "limits", "Bounds that had to be judged, that were, and that held.", limits
    if contract := conclusion.contract:
        lines: list[Sample] = [({"state": state}, len(contract.of_state(state))) for state in LineState]
        yield "contract_lines", "Lines of the contract by what the run says to them.", lines
    ended_so = [row.outcome for row in record.rows]
    yield "validations", "Validations by outcome.", [({"outcome": outcome}, ended_so.count(outcome)) for outcome in Outcome]
    outcomes: list[Sample] = [({"validation": row.nodeid, "outcome": row.outcome}, 1) for row in record.rows]
    yield "validation_outcome", "How each validation ended; always 1.", outcomes
    yield (
        "limit_status",
        "How each bound fared over the whole run; always 1.",
        [({**_bound(one), "status": one.status}, 1) for one in conclusion.limits],
    )
    places = _Places(record)
    figures: list[Sample] = [
        ({**_bound(one), "unit": one.unit, **places.of_worst(one)}, one.value) for one in conclusion.limits if is_number(one.value)
    ]
    yield "figure", "The worst figure that was judged against each bound, and the host and GPU that it is of.", figures
    yield "limit", "Each bound that is one number, as the report prints it.", list(_bounds(conclusion.limits))
    margins: list[Sample] = [(_bound(one), one.margin) for one in conclusion.limits if one.margin is not None]
    yield "margin_ratio", "Distance of each figure to its bound as a part of it; negative: missed.", margins


class _Places:
    """The ranks that measured a worst figure, and where they run."""

    def __init__(self, record: RunRecord) -> None:
        self._identities = {identity.rank: identity for identity in record.ranks}
        self._measured: dict[tuple[str, object], list[int]] = {(one.metric, one.value): [] for one in record.conclusion.limits}
        for rank in (rank for row in record.rows for attempt in row.attempts for rank in attempt.ranks):
            for figure in (*rank.figures, *rank.counters):
                if (found := self._measured.get((figure.metric, figure.value))) is not None:  # of a large job there are millions
                    found.append(rank.rank)

    def of_worst(self, judgement: Judgement) -> Labels:
        """Host and GPU of the worst figure; nothing where nobody is named: a figure of the whole job is nobody's."""
        measured = self._measured.get((judgement.metric, judgement.value), ())
        rank = next((rank for rank in measured if rank in judgement.ranks), None)
        identity = self._identities.get(rank) if rank is not None and judgement.scope != "job" else None
        if identity is None:
            return {}
        gpu = identity.gpu if judgement.scope == "rank" else None
        return {"host": identity.host, **({"gpu": str(gpu.index)} if gpu else {})}


def _bound(judgement: Judgement) -> Labels:
    return {"metric": judgement.metric, "bound": judgement.bound}


def _bounds(limits: Iterable[Judgement]) -> Iterator[Sample]:
    for one in limits:
        if (bound := one.asked_number) is not None:
            yield {**_bound(one), "unit": one.unit}, bound


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
