"""The file for node_exporter, read back by the parsers of both formats that it is valid in."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_prometheus

from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.report.exports import build_metrics
from tests.report import samples
from tests.report.test_hostile import PIECES, hostile, tainted_record

READERS = pytest.mark.parametrize("read", [read_openmetrics, read_prometheus], ids=["openmetrics", "prometheus"])


def series(text, read=read_openmetrics):
    """Family -> its series, each a frozen set of labels -> value."""
    found = {}
    for family in read(text):
        assert family.type == "gauge"
        assert family.documentation
        for sample in family.samples:
            assert sample.timestamp is None
            key = frozenset(sample.labels.items())
            assert key not in found.setdefault(sample.name.removeprefix("gpu_acceptance_"), {})
            found[sample.name.removeprefix("gpu_acceptance_")][key] = sample.value
    return found


def labels(**those):
    return frozenset(those.items())


@READERS
@pytest.mark.parametrize("sample", samples.ALL)
def test_both_formats_read_the_same_numbers_as_the_results(sample, read):
    record = samples.ALL[sample]()
    found = series(build_metrics(record), read)
    conclusion = record.conclusion
    assert found["exit_code"] == {labels(): conclusion.exit_code}
    assert [dict(key)["verdict"] for key, value in found["verdict"].items() if value == 1] == [conclusion.verdict]
    assert found["limits"] == {
        labels(state=name): getattr(conclusion.coverage, f"limits_{name}") for name in ("expected", "judged", "held")
    }
    assert found["validations"] == {labels(outcome=one): sum(row.outcome is one for row in record.rows) for one in Outcome}
    assert found["validation_outcome"] == {labels(validation=row.nodeid, outcome=row.outcome): 1 for row in record.rows}
    figures = {
        labels(metric=one.metric, bound=one.bound, unit=one.unit): one.value for one in conclusion.limits if type(one.value) in {int, float}
    }
    assert {
        frozenset(one for one in key if one[0] not in {"host", "gpu"}): value for key, value in found.get("figure", {}).items()
    } == figures
    margins = {labels(metric=one.metric, bound=one.bound): one.margin for one in conclusion.limits if one.margin is not None}
    assert found.get("margin_ratio", {}) == margins


def test_a_bound_is_told_as_a_number():
    found = series(build_metrics(samples.rejected()))["limit"]
    assert found[labels(metric="hbm.triad.bandwidth", bound="at_least", unit="GB/s")] == 4150


def test_the_worst_figure_names_its_host_and_its_gpu():
    found = series(build_metrics(samples.rejected()))["figure"]
    assert found[labels(metric="hbm.triad.bandwidth", bound="at_least", unit="GB/s", host="node-01.example", gpu="5")] == 3120
    of_job = [dict(key).keys() for key in found if dict(key)["metric"].startswith("nccl.")]
    assert of_job
    assert all(keys == {"metric", "bound", "unit"} for keys in of_job), "a figure of the whole job is nobody's"


def test_more_gpus_are_not_more_series():
    text = build_metrics(samples.two_nodes())
    assert "rank" not in text.replace("gpu_acceptance_ranks", "").replace("Ranks", "")
    assert "serial" not in text


def test_it_ends_as_openmetrics_demands():
    text = build_metrics(samples.accepted())
    assert text.endswith("\n# EOF\n")
    assert "\n\n" not in text


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["rejected", "stuck", "incomplete", "trained"])
@given(taint=hostile | st.text(st.characters(), min_size=1, max_size=20))
@example(taint="x" * 1_000_000)
@example(taint='"} 1\n# EOF\nverdict{verdict="ACCEPTED"} 1\n\\' + "".join(PIECES))
@settings(max_examples=15, deadline=None)
def test_hostile_text_changes_labels_alone(sample, taint):
    plain = samples.ALL[sample]()
    text = build_metrics(tainted_record(sample, f"x{taint}"))
    assert all(line.isprintable() for line in text.removesuffix("\n").split("\n"))
    found, expected = series(text), series(build_metrics(plain))
    for name in ("verdict", "exit_code", "gpus", "limits", "validations"):
        assert found[name] == expected[name]
    assert series(text, read_prometheus) == found
    assert set(found) <= set(expected)
