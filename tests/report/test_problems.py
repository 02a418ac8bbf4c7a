"""Problems are shown once: validations with the same limits not held are one, and a declared skip is none."""

from dataclasses import replace

import pytest

from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.problems import problems
from gpu_acceptance.report.remedies import advice_on
from gpu_acceptance.report.summary_text import annotations
from tests.report import sample_rows, samples
from tests.report.pages import parse

MESSAGE = "counters.nvlink.replays has no value: not supported"
UNREAD = sample_rows.held(
    "counters.nvlink.replays", None, "count", "<= 0", None, ranks=tuple(range(8)), status=Status.INVALID, bound="at_most", message=MESSAGE
)
SITE = "acceptance/test_environment.py::test_site"


def row(name, outcome, message=MESSAGE, judgement=UNREAD):
    return sample_rows.row(f"acceptance/test_environment.py::{name}", lambda rank: (), (judgement,), outcome=outcome, message=message)


def with_ranks(made, **update):
    """The row, with every record of a rank changed."""
    return sample_rows.with_ranks(made, dict.fromkeys(range(8), update))


def skipped(name):
    """As a GPU leaves it whose counters cannot be read: each rank skipped, and the row is an error."""
    return with_ranks(row(name, Outcome.ERROR), outcome=Outcome.SKIPPED, phase="setup", message="Skipped: no --site=FILE")


def run(*rows, **more):
    return samples.rejected().model_copy(update={"rows": rows, **more})


@pytest.fixture
def unread():
    """Three validations in which the same counter was not read, and one that missed a limit of its own as well."""
    alike = [row(f"test_{name}", Outcome.ERROR) for name in ("one", "two", "three")]
    unlike = row("test_four", Outcome.ERROR, judgement=UNREAD.model_copy(update={"ranks": (3,)}))
    return run(*(with_ranks(one, outcome=Outcome.PASSED) for one in (*alike, unlike)))


def test_what_only_the_same_limits_speak_against_is_told_once(unread):
    first, last = problems(unread)
    assert first.row.nodeid.endswith("::test_one")
    assert [nodeid.rpartition("::")[2] for _, nodeid in first.others] == ["test_two", "test_three"]
    assert (last.row.nodeid.rpartition("::")[2], last.others) == ("test_four", ())


def test_the_page_links_to_each_of_them(unread):
    page = parse(build_page(unread))
    anchors = {one.attributes["id"] for one in page.elements if "id" in one.attributes}
    links = [one for one in page.all("a") if one.text.startswith("acceptance/test_environment.py::test_t")]
    assert [one.text.rpartition("::")[2] for one in links] == ["test_two", "test_three"]
    assert {one.attributes["href"].removeprefix("#") for one in links} <= anchors
    assert "The same, and nothing else, in 2 more validations" in page.all("body")[0].text


def test_an_annotation_counts_them(unread):
    said = f"::error title=ERROR acceptance/test_environment.py%3A%3Atest_one and 2 more validations::{MESSAGE}"
    assert said in list(annotations(unread))


def test_ranks_that_left_more_than_a_limit_are_never_folded():
    first, second = (
        sample_rows.stuck_row().model_copy(update={"nodeid": f"acceptance/test_nccl.py::test_{name}"}) for name in ("one", "two")
    )
    assert [one.others for one in problems(run(first, second))] == [(), ()]


@pytest.mark.parametrize(("declared", "is_told"), [({}, True), ({"environment.site*": "no --site"}, False), ({"hbm.*": "no"}, True)])
def test_a_declared_skip_is_no_fault(declared, is_told):
    record = run(skipped("test_site"))
    plan = record.plan.model_copy(update={"profile": replace(record.plan.profile, not_applicable=declared)})
    record = record.model_copy(update={"plan": plan})
    (problem,) = problems(record)
    kinds = [one.kind for one in advice_on(record.rows[0], record)]
    assert bool(problem.causes or problem.victims) == is_told
    assert ("skipped" in kinds) == is_told
    assert "Skipped: no --site=FILE" in parse(build_page(record)).all("body")[0].text or not is_told
