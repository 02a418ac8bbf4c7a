"""Problems are shown once, and culprits have one line each with figure, bound, deviation and what to do."""

import pytest

from gpu_acceptance.record.outcome import Cause, Outcome, Status
from gpu_acceptance.report.build import build_page
from gpu_acceptance.report.machines import places
from gpu_acceptance.report.problems import JOB, first_told, problems
from gpu_acceptance.report.problems import suspects as find_suspects
from gpu_acceptance.report.remedies import advice_on
from gpu_acceptance.report.summary_text import annotations, summary_lines
from gpu_acceptance.report.words import WITHIN_NOISE
from tests.report import sample_rows, samples
from tests.report.large import large
from tests.report.pages import parse
from tests.report.sample_pages import section_of

MESSAGE = "counters.nvlink.replays has no value: not supported"
UNREAD = sample_rows.held(
    "counters.nvlink.replays", None, "count", "<= 0", None, ranks=tuple(range(8)), status=Status.INVALID, bound="at_most", message=MESSAGE
)


def row(name, judgement=UNREAD, **of_ranks):
    """An error of a GPU whose counters cannot be read. `of_ranks`: fields of every record of a rank."""
    nodeid = f"acceptance/test_environment.py::{name}"
    made = sample_rows.row(nodeid, lambda rank: (), (judgement,), outcome=Outcome.ERROR, message=MESSAGE)
    return sample_rows.with_ranks(made, dict.fromkeys(range(8), of_ranks))


def run(*rows):
    return samples.with_rows(samples.rejected(), *rows)


@pytest.fixture
def unread():
    """Three validations in which the same counter was not read, and one that missed a limit of its own as well."""
    return run(*map(row, ("test_one", "test_two", "test_three")), row("test_four", UNREAD.model_copy(update={"ranks": (3,)})))


def test_what_only_the_same_limits_speak_against_is_told_once(unread):
    first, last = problems(unread)
    assert first.row.nodeid.endswith("::test_one")
    assert [nodeid.rpartition("::")[2] for _, nodeid in first.others] == ["test_two", "test_three"]
    assert (last.row.nodeid.rpartition("::")[2], last.others) == ("test_four", ())


def test_the_page_links_to_each_of_them_and_an_annotation_counts_them(unread):
    page = parse(build_page(unread))
    anchors = {one.attributes["id"] for one in page.elements if "id" in one.attributes}
    links = [one for one in page.all("a") if one.text.startswith("acceptance/test_environment.py::test_t")]
    assert [one.text.rpartition("::")[2] for one in links] == ["test_two", "test_three"]
    assert {one.attributes["href"].removeprefix("#") for one in links} <= anchors
    assert "The same, and nothing else, in 2 more validations" in page.all("body")[0].text
    said = f"::error title=ERROR acceptance/test_environment.py%3A%3Atest_one and 2 more validations::{MESSAGE}"
    assert said in list(annotations(unread))


def test_ranks_that_left_more_than_a_limit_are_never_folded():
    stuck = sample_rows.stuck_row()
    alike = (stuck.model_copy(update={"nodeid": f"acceptance/test_nccl.py::test_{name}"}) for name in ("one", "two"))
    assert [one.others for one in problems(run(*alike))] == [(), ()]


@pytest.mark.parametrize(("declared", "is_told"), [({}, True), ({"environment.site*": "no --site"}, False), ({"hbm.*": "no"}, True)])
def test_a_declared_skip_is_no_fault(declared, is_told):
    record = run(row("test_site", outcome=Outcome.SKIPPED, phase="setup", message="Skipped: no --site=FILE"))
    record.plan.profile.not_applicable.update(declared)
    (problem,) = problems(record)
    kinds = [one.kind for one in advice_on(record.rows[0], record)]
    assert bool(problem.causes or problem.victims) == is_told
    assert ("skipped" in kinds) == is_told
    assert "Skipped: no --site=FILE" in parse(build_page(record)).all("body")[0].text or not is_told


# --- culprits on the first screen -----------------------------------------------------------------------------------------------


GPU_5 = "rank 5 (node-01.example, GPU 5, serial 1653924100006)"


def suspects(record):
    return find_suspects(problems(record), places(record))


def short(record):
    return section_of(build_page(record), "short")


def test_each_culprit_stands_with_figure_bound_deviation_and_what_to_do():
    text = short(samples.rejected())
    told = text[text.index(GPU_5) :].removeprefix(GPU_5).split("all of ranks 0-7")[0].strip()
    kind = suspects(samples.rejected())[0].kind
    assert told == (
        f", {kind.remedy.title}: ✗ MISSED hbm.triad.bandwidth 3120 GB/s, need >= 4150 GB/s 24.8 % below in test_hbm.py::test_hbm_triad "
        "To do: Run this GPU alone. If it is still slow at its full memory clock, return it to the vendor."
    )


def test_all_that_is_known_against_one_gpu_stands_in_one_place():
    slow = sample_rows.hbm_row(worst=3000.0).model_copy(update={"nodeid": "acceptance/test_hbm.py::test_hbm_copy"})
    record = samples.with_rows(samples.rejected(), *samples.rejected().rows, slow)
    found = {one.who: [fault.nodeid for fault in one.faults] for one in suspects(record)}
    assert found[GPU_5] == ["acceptance/test_hbm.py::test_hbm_triad", "acceptance/test_hbm.py::test_hbm_copy"]
    assert suspects(record)[0].kind.kind == "memory_slow"
    assert short(record).count(GPU_5) == 1


def test_a_gpu_that_heat_slows_down_is_one_culprit_with_all_that_waited_for_it():
    heat = sample_rows.held("counters.throttle.sw_thermal", 12.5, "s", "<= 0", None, ranks=(5,), status=Status.MISSED, bound="at_most")
    all_wait = {"metric": "hbm.all.bandwidth", "scope": "job", "asked": 4150.0, "margin": -0.6, "ranks": (0,)}
    slow = sample_rows.hbm_row(worst=3120.0)
    of_all = slow.judgements[0].model_copy(update={**all_wait, "status": Status.MISSED})
    record = run(slow.model_copy(update={"judgements": (*slow.judgements, of_all, heat)}))
    (suspect,) = suspects(record)
    assert (suspect.who, suspect.kind.kind, suspect.worst.line.judgement.metric) == (GPU_5, "throttle_heat", heat.metric)
    assert {one.line.judgement.metric for one in suspect.faults} == {heat.metric, "hbm.triad.bandwidth", "hbm.all.bandwidth"}


def test_the_same_in_several_validations_is_one_line_and_what_rejects_comes_first():
    row = sample_rows.hbm_row(worst=3120.0)
    unread = row.judgements[0].model_copy(update={"metric": "counters.replays", "status": Status.INVALID, "value": None, "margin": None})
    more = {"judgements": (unread, *row.judgements)}
    rows = (row.model_copy(update={"nodeid": f"acceptance/test_hbm.py::test_{name}", **more}) for name in "abc")
    suspect, *_ = suspects(samples.with_rows(samples.rejected(), *rows))
    told = [(one.mark.word, one.line.judgement.metric, one.nodeid[-6:], one.num_others) for one in suspect.faults]
    assert told == [("MISSED", "hbm.triad.bandwidth", "test_a", 2), ("INVALID", "counters.replays", "test_a", 2)]


def test_a_stuck_rank_is_a_culprit_its_victims_are_none_and_an_accepted_run_has_none():
    assert (suspects(samples.accepted()), short(samples.accepted())) == ((), "")
    assert [one.who for one in suspects(samples.stuck())] == [GPU_5]
    assert "✗ STUCK" in short(samples.stuck())


UNBUILT = {"outcome": Outcome.ERROR, "message": "no compiler"}
DIED = {"outcome": Outcome.DIED, "message": "the worker ended with signal SIGKILL"}


@pytest.mark.parametrize(
    ("row", "culprits"),
    [
        (
            sample_rows.with_ranks(sample_rows.error_row(), dict.fromkeys(range(4), UNBUILT)),
            [((0, 1, 2, 3), "no compiler")],
        ),
        (  # of one the kernel says why, of the other its log
            sample_rows.with_ranks(sample_rows.error_row(), {0: {**DIED, "cause": Cause.OUT_OF_MEMORY}, 1: DIED}),
            [((0,), DIED["message"]), ((1,), DIED["message"]), ((2,), "ModuleNotFoundError: transformers")],
        ),
        (
            sample_rows.with_ranks(sample_rows.hbm_row(worst=3120.0), {3: {"outcome": Outcome.ERROR, "message": "OSError: disk"}}),
            [((5,), ""), ((3,), "OSError: disk")],
        ),
    ],
    ids=["all say the same", "they left something else", "one broke off where another missed a limit"],
)
def test_ranks_are_one_culprit_where_they_left_the_same(row, culprits):
    record = samples.with_rows(samples.rejected(), row)
    found = first_told(suspects(record), rejecting_only=False)
    assert [(one.ranks, one.worst.message) for one in found] == culprits
    assert ("OSError: disk" in short(record)) is any(message == "OSError: disk" for _, message in culprits)


@pytest.mark.parametrize(
    ("ranks", "peer", "told"), [((3,), 5, (3, 5)), ((1, 4), 2, (1, 4)), ((3,), 3, (3,)), ((3,), 99, (3,)), ((3,), "a", (3,))]
)
def test_a_path_between_two_gpus_is_of_the_rank_that_missed_and_of_its_peer(ranks, peer, told):
    judged = sample_rows.held("p2p.both.path", 0.53, "relative", ">= 0.97", -0.454, "node", ranks, labels={"peer": peer})
    row = sample_rows.row("acceptance/test_p2p.py::test_bandwidth", lambda rank: [], [judged])
    (suspect,) = suspects(samples.with_rows(samples.rejected(), row))
    assert suspect.ranks == told
    assert suspect.who.endswith(f" and {GPU_5}") is (5 in told)


@pytest.mark.parametrize(
    ("value", "margin", "spread", "is_near"),
    [(4120.0, -0.007, None, True), (4120.0, -0.03, 3.5, True), (4120.0, -0.03, 1.0, False), (131, -0.007, None, False)],
)
def test_a_miss_within_the_spread_or_1_percent_asks_for_another_measurement(value, margin, spread, is_near):
    """But a whole number is a count, and no noise makes it another."""
    judged = sample_rows.held("hbm.triad.bandwidth", value, "GB/s", ">= 4150", margin, "rank", (5,), status=Status.MISSED)

    def figures(rank):
        other = sample_rows.figure("hbm.triad.bandwidth", 4300.0, "GB/s", 40.0)  # whose spread says nothing of the one that missed
        return [sample_rows.figure("hbm.triad.bandwidth", value, "GB/s", spread) if rank == 5 else other]

    row = sample_rows.row("acceptance/test_hbm.py::test_hbm_triad", figures, [judged], outcome=Outcome.FAILED)
    record = samples.with_rows(samples.rejected(), row)
    assert (WITHIN_NOISE in short(record)) is is_near
    again = row.model_copy(update={"attempts": (row.attempts[0], row.attempts[0].model_copy(update={"number": 2}))})
    assert WITHIN_NOISE not in short(samples.with_rows(record, again))  # it was measured again
    assert any(WITHIN_NOISE in line for line in summary_lines(record)) is is_near


def test_what_is_no_rank_s_fault_is_of_the_whole_job():
    not_run = sample_rows.not_run_row()
    record = samples.with_rows(samples.accepted(), not_run)
    assert [(one.who, one.faults[0].message) for one in suspects(record)] == [(JOB, not_run.message)]
    record = record.model_copy(update={"conclusion": samples.rejected().conclusion.model_copy(update={"verdict": "INCOMPLETE"})})
    assert f"{JOB}, a validation never began: ○ NOT RUN {not_run.message} in" in short(record)


@pytest.mark.slow
def test_many_faults_and_many_culprits_are_counted():
    record = large(3, 60)  # rank 5 is slow in one of five, each time of another metric
    assert "and 11 more findings" in short(record)
    missed = (sample_rows.held(f"hbm.m{rank}", 1.0, "GB/s", ">= 2", -0.5, "rank", (rank,)) for rank in range(24))
    text = short(samples.with_rows(record, sample_rows.failed_row(*missed)))
    assert text.count("need >= 2 GB/s ") == 5
    assert "And 19 more culprits, in what is wrong." in text
