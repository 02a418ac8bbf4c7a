"""Files for other tools: figures.csv, metrics.prom, junit.xml, and the list of all."""

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from xml.etree import ElementTree

from gpu_acceptance.base.files import write_atomically
from gpu_acceptance.base.text import clip, one_line, visible
from gpu_acceptance.record.outcome import Means, Outcome, Status
from gpu_acceptance.record.row import Judgement, Row
from gpu_acceptance.record.run_record import RunRecord
from gpu_acceptance.report.summary_text import SUMMARY, build_summary
from gpu_acceptance.report.validations import shown_figures
from gpu_acceptance.report.words import VERDICT, exact, parse_moment, source_text
from gpu_acceptance.thresholds.contract import LineState
from gpu_acceptance.thresholds.limit import Value, is_number, show, with_unit

JUNIT, FIGURES, METRICS = "junit.xml", "figures.csv", "metrics.prom"
VERDICT_CASE = "verdict"
_OWN = "gpu_acceptance"  # the class of a test case without a file, and the prefix of a metric
_HEAD = '<?xml version="1.0" encoding="utf-8"?>\n'
COLUMNS = (
    *("run_id", "validation", "subject", "attempt", "metric", "rank", "node", "host", "rack", "gpu_index", "gpu_serial", "gpu_uuid"),
    *("value", "text", "unit", "judged", "spread_percent", "anomaly", "detail", "labels"),
    *("bound", "at_least", "at_most", "status", "named", "source"),
)
_OF_FIGURE = ("metric", "unit", "judged", "spread_percent", "anomaly", "detail")
_BEGINS_FORMULA = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")  # the last four: full-width forms, which some spreadsheets read alike
_NUMBER = re.compile(r"[\d.,]*\d[\d.,]*([eE][+-]?\d+)?%?")
_BAD = frozenset({Status.MISSED, Status.INVALID, Status.UNSTABLE})

Labels = dict[str, str]
Sample = tuple[Labels, float | int]
Cells = dict[str, Value | None]


# --- junit.xml ------------------------------------------------------------------------------------------------------------------


def figure_properties(row: Row) -> dict[str, str]:
    """Return the judged figures of a validation as properties: metric -> value, unit, bound and status."""
    properties = {}
    for judgement in row.judgements:
        shown = "no value" if judgement.value is None else with_unit(show(judgement.value), judgement.unit)
        need = f", need {judgement.need}" if judgement.need else ""
        reason = f" ({judgement.message})" if judgement.status in {Status.WAIVED, Status.NOT_APPLICABLE} else ""
        properties[visible(f"{judgement.metric} {judgement.bound}".strip())] = visible(f"{shown}{need}: {judgement.status}{reason}")
    return properties


def build_junit(record: RunRecord) -> str:
    """Return a test case for each validation, and one for the verdict."""
    conclusion = record.conclusion
    verdict = _case(_OWN, VERDICT_CASE, 0.0)
    if conclusion.exit_code or conclusion.verdict != "ACCEPTED":
        kind = "failure" if conclusion.verdict == "REJECTED" else "error"
        _add(verdict, kind, conclusion.verdict, "\n".join([conclusion.line, *conclusion.reasons]))
    cases = [*map(_case_of_row, record.rows), verdict]
    kinds = Counter(child.tag for case in cases for child in case)
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root,
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
    properties = ElementTree.SubElement(suite, "properties")  # the schema allows them for a suite alone
    figures = ((f"{'.'.join(_names(row))} {name}", text) for row in record.rows for name, text in figure_properties(row).items())
    for name, value in (("verdict", conclusion.line), ("exit_code", str(conclusion.exit_code)), *figures):
        ElementTree.SubElement(properties, "property", name=one_line(name), value=one_line(value))
    suite.extend(cases)
    ElementTree.indent(root)
    return f"{_HEAD}{ElementTree.tostring(root, encoding='unicode')}\n"


def _names(row: Row) -> tuple[str, str]:
    """Name a validation as pytest does: `acceptance/test_gemm.py::test_bf16` is test_bf16 of acceptance.test_gemm."""
    file, _, name = visible(row.nodeid).rpartition("::")
    return file.removesuffix(".py").replace("/", ".") or _OWN, name


def _case_of_row(row: Row) -> ElementTree.Element:
    case = _case(*_names(row), row.duration_s)
    if row.outcome is not Outcome.PASSED:
        tags = {Outcome.NOT_APPLICABLE: "skipped"} | {one: "failure" for one in Outcome if one.means is Means.REJECTS}
        _add(case, tags.get(row.outcome, "error"), row.outcome, row.message)
    if figures := [f"{name}: {text}" for name, text in figure_properties(row).items()]:
        ElementTree.SubElement(case, "system-out").text = "\n".join(figures)
    return case


def _case(classname: str, name: str, duration_s: float) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=classname, name=name, time=f"{duration_s:.3f}")


def _add(case: ElementTree.Element, tag: str, kind: str, text: str) -> None:
    """Add how a case ended. Lists of other tools show the first line."""
    first = text.partition("\n")[0]
    message = first if first.startswith(kind) else f"{kind}: {first}"
    ElementTree.SubElement(case, tag, type=kind, message=one_line(message)).text = visible(text)


# --- figures.csv ----------------------------------------------------------------------------------------------------------------


def build_figures(record: RunRecord) -> str:
    """Return the table as text. `status` is that of the bounds over all ranks; `named`: a bound that did not hold names this rank."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for cells in _rows(record):
        writer.writerow([_cell(cells.get(column, "")) for column in COLUMNS])
    return text.getvalue()


def _cell(value: Value | None) -> str:
    """Return a number to the last digit, or a text in one line with nothing invisible in it that no spreadsheet reads as a formula."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else exact(value)
    text = one_line(value)
    is_read = text.strip() and (text.lstrip()[0] in _BEGINS_FORMULA or _NUMBER.fullmatch(text.strip()))
    return f"'{text}" if is_read else text


def _rows(record: RunRecord) -> Iterator[Cells]:
    """Yield a row for each figure of each rank, and one for each limit without a figure, or whose counter never rose."""
    places: dict[int, Cells] = {}
    for identity in record.ranks:
        places[identity.rank] = {"rank": identity.rank, "node": identity.node, "host": identity.host, "rack": identity.rack}
        if gpu := identity.gpu:
            places[identity.rank] |= {"gpu_index": gpu.index, "gpu_serial": gpu.serial, "gpu_uuid": gpu.uuid}
    told, run_id = set[str](), record.plan.run_id
    for row in record.rows:
        judgements = _by_metric(row.judgements)
        for attempt in row.attempts:
            where: Cells = {"run_id": run_id, "validation": row.nodeid, "subject": row.subject, "attempt": attempt.number}
            for rank in attempt.ranks:
                of_rank = {**where, **places.get(rank.rank, {"rank": rank.rank})}
                for figure in shown_figures(rank):
                    told.add(figure.metric)
                    of_figure: Cells = {name: getattr(figure, name) for name in _OF_FIGURE}
                    labels = " ".join(f"{name}={value}" for name, value in (figure.labels or {}).items())
                    of_limits = _of_limits(judgements.get(figure.metric, []), rank.rank)
                    yield {**of_rank, **of_figure, **_measured(figure.value), "labels": labels, **of_limits}
    for metric, limits in _by_metric(record.conclusion.limits).items():
        if metric not in told:
            yield {"run_id": run_id, "metric": metric, **_measured(limits[0].value), "unit": limits[0].unit, **_of_limits(limits, None)}


def _by_metric(judgements: Iterable[Judgement]) -> dict[str, list[Judgement]]:
    found = defaultdict[str, list[Judgement]](list)
    for judgement in judgements:
        found[judgement.metric].append(judgement)
    return found


def _measured(value: Value | None) -> Cells:
    """Put a text or a truth into a column apart from numbers."""
    return {"text" if isinstance(value, str | bool) else "value": value}


def _of_limits(judgements: list[Judgement], rank: int | None) -> Cells:
    """Put several bounds of one metric into one cell, in the same order in each column."""
    if not judgements:
        return {}
    return {
        "bound": "; ".join(one.need or "none" for one in judgements),
        **{one.bound: one.asked_number for one in judgements if one.bound in ("at_least", "at_most")},
        "status": "; ".join(one.status for one in judgements),
        "named": any(one.status in _BAD and rank in one.ranks for one in judgements),
        "source": "; ".join(dict.fromkeys(source_text(one) for one in judgements)),
    }


# --- metrics.prom ---------------------------------------------------------------------------------------------------------------


def build_metrics(record: RunRecord) -> str:
    """Return the file as text. A second series with the labels of an earlier one is left out: both formats forbid it."""
    lines = []
    for name, about, samples in _families(record):
        series: dict[str, float | int] = {}
        for labels, value in samples:
            escaped = {label: one_line(word).replace("\\", "\\\\").replace('"', '\\"') for label, word in labels.items()}
            text = ",".join(f'{label}="{word}"' for label, word in escaped.items())
            series.setdefault(f"{{{text}}}" if text else "", value)
        if series:
            lines += [f"# HELP {_OWN}_{name} {about}", f"# TYPE {_OWN}_{name} gauge"]
            lines += [f"{_OWN}_{name}{labels} {value}" for labels, value in series.items()]
    return "".join(f"{line}\n" for line in [*lines, "# EOF"])


def _families(record: RunRecord) -> Iterator[tuple[str, str, list[Sample]]]:
    plan, conclusion, cover = record.plan, record.conclusion, record.conclusion.coverage
    about = {"run_id": plan.run_id, "profile": plan.profile.name, "level": plan.profile.level, "version": plan.gpu_acceptance_version}
    ended = parse_moment(record.ended_at)
    yield "run_info", "Which run this is of; always 1.", [(about, 1)]
    yield "run_ended_timestamp_seconds", "When the run ended, in Unix time.", [({}, ended.timestamp())] if ended else []
    verdicts = {one: int(one == conclusion.verdict) for one in VERDICT}
    yield "verdict", "1 for the verdict of the run, 0 for the others.", _samples("verdict", verdicts)
    yield "exit_code", "Exit code of the run.", [({}, conclusion.exit_code)]
    yield "nodes", "Nodes in the run.", [({}, cover.nodes)]
    yield "ranks", "Ranks in the run.", [({}, cover.ranks)]
    gpus = {"existing": cover.gpus_existing, "tested": cover.gpus_tested}
    yield "gpus", "GPUs that exist on the nodes, and those tested.", _samples("state", gpus)
    limits = {"expected": cover.limits_expected, "judged": cover.limits_judged, "held": cover.limits_held}
    yield "limits", "Bounds that had to be judged, that were, and that held.", _samples("state", limits)
    if contract := conclusion.contract:
        lines = {str(state): len(contract.of_state(state)) for state in LineState}
        yield "contract_lines", "Lines of the contract by what the run says to them.", _samples("state", lines)
    outcomes = Counter(row.outcome for row in record.rows)
    yield "validations", "Validations by outcome.", _samples("outcome", {str(one): outcomes[one] for one in Outcome})
    ends: list[Sample] = [({"validation": row.nodeid, "outcome": row.outcome}, 1) for row in record.rows]
    yield "validation_outcome", "How each validation ended; always 1.", ends
    bounds = [(one, {"metric": one.metric, "bound": one.bound}) for one in conclusion.limits]
    statuses: list[Sample] = [({**bound, "status": one.status}, 1) for one, bound in bounds]
    yield "limit_status", "How each bound fared over the whole run; always 1.", statuses
    place_of = _find_places(record)
    figures: list[Sample] = [({**bound, "unit": one.unit, **place_of(one)}, one.value) for one, bound in bounds if is_number(one.value)]
    yield "figure", "The worst figure that was judged against each bound, and the host and GPU that it is of.", figures
    asked: list[Sample] = [({**bound, "unit": one.unit}, number) for one, bound in bounds if (number := one.asked_number) is not None]
    yield "limit", "Each bound that is one number, as the report prints it.", asked
    margins: list[Sample] = [(bound, one.margin) for one, bound in bounds if one.margin is not None]
    yield "margin_ratio", "Distance of each figure to its bound as a part of it; negative: missed.", margins


def _samples(label: str, numbers: Mapping[str, int]) -> list[Sample]:
    return [({label: word}, number) for word, number in numbers.items()]


def _find_places(record: RunRecord) -> Callable[[Judgement], Labels]:
    """Return a function from a limit to host and GPU of its worst figure; empty for a figure of the whole job, or without a rank."""
    identities = {identity.rank: identity for identity in record.ranks}
    measured: dict[tuple[str, object], list[int]] = {(one.metric, one.value): [] for one in record.conclusion.limits}
    for rank in (rank for row in record.rows for attempt in row.attempts for rank in attempt.ranks):
        for figure in (*rank.figures, *rank.counters):
            if (found := measured.get((figure.metric, figure.value))) is not None:  # a large job has millions of others
                found.append(rank.rank)

    def place_of(judgement: Judgement) -> Labels:
        rank = next((rank for rank in measured[judgement.metric, judgement.value] if rank in judgement.ranks), None)
        identity = identities.get(rank) if rank is not None and judgement.scope != "job" else None
        if identity is None:
            return {}
        gpu = identity.gpu if judgement.scope == "rank" else None
        return {"host": identity.host, **({"gpu": str(gpu.index)} if gpu else {})}

    return place_of


# --- all ------------------------------------------------------------------------------------------------------------------------


EXPORTS: Mapping[str, Callable[[RunRecord], str]] = {
    SUMMARY: build_summary,
    FIGURES: build_figures,
    METRICS: build_metrics,
    JUNIT: build_junit,
}


def write_exports(run_dir: Path, record: RunRecord) -> tuple[str, ...]:
    """Write every export; return a line for each that failed. No old file is left that could contradict the record."""
    problems = []
    for name, build in EXPORTS.items():
        try:
            (run_dir / name).unlink(missing_ok=True)
            write_atomically(run_dir / name, build(record))
        except Exception as error:  # a writer or a disk can fail in any way; the verdict does not depend on it
            problems.append(f"{run_dir / name} could not be written: {clip(f'{type(error).__name__}: {error}', 1_000)}")
    return tuple(problems)
