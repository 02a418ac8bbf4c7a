"""Journals of real runs, damaged: one clear line for each damage, with file and line; what is whole still counts; never ACCEPTED."""

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from faults import Fault
from suite import make_suite, plain_pytest, torchrun

from gpu_acceptance.cli.verbs import main
from gpu_acceptance.folder.files import read_results, write_results
from gpu_acceptance.folder.manifest import write_manifest
from gpu_acceptance.verdict.run_record import conclude_again

pytestmark = pytest.mark.launcher

INCOMPLETE = "INCOMPLETE: rebuilt, exit code 6"
TRUNCATED = Fault("journal cut off in its last line", INCOMPLETE)
MALFORMED = Fault("journal with a line that is no JSON", INCOMPLETE)
FUTURE = Fault("journal with a line of a future schema", INCOMPLETE)
TWO_RUNS = Fault("journals of two runs in one folder", "none: nothing is written, exit code 3")
HARMED = Fault("journal truncated, unlinked, replaced or overwritten while the run goes on", "INCOMPLETE, exit code 3")
ONE_FOLDER = Fault("two runs with one name", "usage error, exit code 4: the first stays")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of one suite, by their names."""
    suite = make_suite(tmp_path_factory.mktemp("journals"), "begins", "passes")
    return {name: plain_pytest(suite, f"--run-id={name}") for name in ("first", "second")}


@pytest.fixture
def journal(runs, tmp_path):
    """The journal of a copy of the first run, without results."""
    folder = tmp_path / "first"
    shutil.copytree(runs["first"].folder / "journal", folder / "journal")
    return folder / "journal" / "rank-00000.jsonl"


@dataclass(frozen=True)
class Built:
    exit_code: int
    said: str
    problems: list[str]


@pytest.fixture
def build(capsys):
    """Run `gpu-acceptance report build FOLDER`, or another of its verbs."""

    def build(folder: Path, *arguments: str) -> Built:
        capsys.readouterr()
        exit_code = main(["report", *(arguments or ("build", str(folder)))])
        captured = capsys.readouterr()
        return Built(exit_code, captured.out, captured.err.splitlines())

    return build


def outcomes(folder: Path) -> dict[str, str]:
    return {row.subject: str(row.outcome) for row in read_results(folder).rows}


def damaged(lines: list[str], kind: str) -> list[str]:
    """Damage the line of `passes`, which comes before the end of the workers."""
    index = next(number for number, line in enumerate(lines) if "test_passes.py" in line and '"kind":"rank"' in line)
    line = "{'kind': 'rank'}" if kind == "malformed" else json.dumps({**json.loads(lines[index]), "colour": "blue"})
    return [*lines[:index], line, *lines[index + 1 :]]


def test_a_whole_journal_gives_all_rows_and_no_acceptance(journal, build):
    built = build(journal.parents[1])
    assert (built.exit_code, built.problems) == (6, [])
    assert outcomes(journal.parents[1])["passes"] == "passed"
    assert built.said.startswith("INCOMPLETE: no reporter saw this run whole: rebuilt from 1 of 1 journals")


def test_truncated(journal, build, seen):
    journal.write_bytes(journal.read_bytes()[:-20])
    number = len(journal.read_text().splitlines())
    built = build(journal.parents[1])
    assert built.exit_code == 6
    assert built.problems == [f"gpu-acceptance: {journal}: line {number}: cut off: the writer ended in the middle of it"]
    assert outcomes(journal.parents[1])["passes"] == "passed"
    seen.told(TRUNCATED, built.problems[0], 0)


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [(MALFORMED, "malformed", "not JSON: key must be a string"), (FUTURE, "future", "unknown key rank.colour")],
    ids=["malformed", "future"],
)
def test_one_line_that_cannot_be_read(journal, fault, kind, text, build, seen):
    lines = damaged(journal.read_text().splitlines(), kind)
    journal.write_text("\n".join(lines) + "\n")
    number = next(number for number, line in enumerate(lines, 1) if "'kind'" in line or "colour" in line)
    built = build(journal.parents[1])
    assert built.exit_code == 6
    (problem,) = built.problems
    assert problem.startswith(f"gpu-acceptance: {journal}: line {number}: {text}")
    assert outcomes(journal.parents[1]) == {"world_formation": "passed", "begins": "passed", "passes": "not run", "worker_end": "passed"}
    seen.told(fault, problem, 0)


def test_two_runs_in_one_folder(journal, runs, build, seen):
    other = journal.with_name("rank-00001.jsonl")
    other.write_bytes((runs["second"].folder / "journal" / "rank-00000.jsonl").read_bytes())
    built = build(journal.parents[1])
    assert built.exit_code == 3
    (problem,) = built.problems
    assert problem == f"gpu-acceptance: {journal} and {other}: two journals of rank 0 that differ"
    assert not (journal.parents[1] / "results.json").exists()
    seen.told(TWO_RUNS, problem, 0)


def test_merging_two_runs(runs, tmp_path, build):
    built = build(tmp_path, "merge", str(tmp_path / "out"), *(str(run.folder) for run in runs.values()))
    assert built.exit_code in {3, 4}
    assert len(built.problems) == 1
    assert not (tmp_path / "out").exists()


def test_two_runs_with_one_name(runs, seen):
    first = runs["first"]
    before = (first.folder / "results.json").read_bytes()
    again = plain_pytest(first.suite, "--run-id=first")
    assert again.returncode == 4, again.output
    text = f"--run-id=first: {first.folder.relative_to(first.suite)} exists; a run never overwrites another"
    assert text in again.output.replace(f"{first.suite}/", "")
    assert (first.folder / "results.json").read_bytes() == before
    seen.told(ONE_FOLDER, text.replace("reports/", ".../"), 0)


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        ("truncated", r"holds [\d,]+ bytes; [\d,]+ were written"),
        ("unlinked", "is gone"),
        ("replaced", r"holds [\d,]+ bytes; [\d,]+ were written"),
        ("overwritten", "no longer holds what was written"),
    ],
)
def test_a_journal_that_was_harmed_while_the_run_went_on(tmp_path, harm, text, build, seen):
    ended = torchrun(make_suite(tmp_path, "harms_a_journal"), env={"HARM": harm})
    assert ended.rank_exit_codes == {0: 3, 1: 3}, ended.output
    assert ended.outcomes() == {"test_harm": "passed", "test_next": "passed"}
    assert ended.verdict_line == "INCOMPLETE: not confirmed by its journals (cpu profile: no GPU was tested)"
    reason = ended.record.conclusion.reasons[0]
    assert re.fullmatch(rf"not confirmed: the journal of rank 1 \({ended.folder}/journal/rank-00001.jsonl\) {text}", reason), reason
    assert build(ended.folder, "verify", str(ended.folder)).exit_code == 1
    if harm == "truncated":
        seen.told(HARMED, reason.replace(f"{ended.folder}/", ""), 0)


def test_a_rejected_run_whose_bad_row_was_cut_out_is_never_accepted(tmp_path, capsys, build):
    ended = plain_pytest(make_suite(tmp_path, "begins", "misses"))
    assert (ended.returncode, main(["verdict", str(ended.folder)])) == (1, 1)
    rows = tuple(row for row in ended.record.rows if row.subject != "misses")
    cut = ended.record.model_copy(update={"rows": rows, "conclusion": ended.alone("begins")})
    assert cut.conclusion.exit_code == 0
    plan, profile = ended.record.plan, ended.record.plan.profile
    limits = {metric: limit for metric, limit in profile.limits.items() if limit.subject != "misses"}
    validations = tuple(one for one in plan.validations if "misses" not in one.nodeid)
    lesser = {"profile": replace(profile, requires=frozenset({"begins"}), limits=limits), "validations": validations}
    planned = conclude_again(cut.model_copy(update={"plan": plan.model_copy(update=lesser)}))
    assert planned.conclusion.exit_code == 0
    another = "the journal of rank 0 (journal/rank-00000.jsonl) has a plan with another profile, validations"
    for record, code, said in ((cut, 3, "contradicts itself: "), (planned, 1, another)):
        write_results(ended.folder, record)
        write_manifest(ended.folder)
        assert build(ended.folder, "verify", str(ended.folder)).exit_code == code
        assert main(["verdict", str(ended.folder)]) == 3
        assert said in capsys.readouterr().err
