"""`results.json` -> `junit.xml`: a test case for each validation, and one for the verdict, which passes where the run is ACCEPTED alone.

A file whose cases are those of the validations alone would be green where only the coverage or a contract speaks against the run. There is
nothing in it but what Jenkins allows (junit-10.xsd of its xunit plugin) and what GitLab reads (lib/gitlab/ci/parsers/test/junit.rb).
"""

from collections import Counter
from collections.abc import Iterator
from xml.etree import ElementTree

from gpu_acceptance.base.text import one_line, visible
from gpu_acceptance.record.outcome import Means, Outcome, Status
from gpu_acceptance.record.row import Row
from gpu_acceptance.record.run_record import Conclusion, RunRecord
from gpu_acceptance.thresholds.values import show, with_unit

JUNIT = "junit.xml"
VERDICT_CASE = "verdict"
_OWN = "gpu_acceptance"  # the class of what is of no file
_HEAD = '<?xml version="1.0" encoding="utf-8"?>\n'


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
