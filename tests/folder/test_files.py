"""Files of a run folder: a crash leaves no half file, and every way a file can be wrong is one readable line."""

import json
import os
import re

import pytest

from gpu_acceptance.base.model import encode
from gpu_acceptance.folder import files
from gpu_acceptance.folder.files import RecordError, read_results, write_atomically, write_results
from gpu_acceptance.folder.journal import Journal, JournalContent, read_journal
from gpu_acceptance.record.job import RankFacts
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.record.row import RankRecord
from gpu_acceptance.record.run_record import Refusal, RunPlan
from tests.journals import make_plan
from tests.report import samples

IDENTITY = samples.identity(5)


def rank_record(rank=5, **more):
    return RankRecord(nodeid="acceptance/test_a.py::test_a", attempt=1, generation=0, rank=rank, outcome=Outcome.PASSED, **more)


def written(tmp_path, change):
    """A results.json of an accepted run after `change` had its way with the parsed JSON."""
    data = json.loads(samples.accepted().model_dump_json())
    change(data)
    (tmp_path / "results.json").write_text(json.dumps(data))
    return tmp_path


def test_write_atomically_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "results.json"
    write_atomically(path, "old")
    write_atomically(path, "new ü")
    assert path.read_text() == "new ü"
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    write_atomically(path, "old")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]


def test_bytes_are_written_as_they_are(tmp_path):
    write_atomically(tmp_path / "rank-00005.jsonl", b"\xff cut off")
    assert (tmp_path / "rank-00005.jsonl").read_bytes() == b"\xff cut off"


def test_others_may_read_what_we_write(tmp_path):
    path = tmp_path / "results.json"
    previous = os.umask(0o022)
    try:
        write_atomically(path, "x")
    finally:
        os.umask(previous)
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("sample", samples.ALL)
def test_results_come_back_as_they_were(tmp_path, sample):
    record = samples.ALL[sample]()
    path = write_results(tmp_path, record)
    assert read_results(tmp_path) == record == read_results(path)


def test_text_that_utf8_cannot_carry_does_not_stop_a_record(tmp_path):
    record = samples.accepted(waivers={"a.\ud800": "b\udfff", "plain": "c"})
    write_results(tmp_path, record)
    assert read_results(tmp_path).plan.waivers == {r"a.\ud800": r"b\udfff", "plain": "c"}


def test_missing_results(tmp_path):
    with pytest.raises(RecordError, match=re.escape(f"{tmp_path}/results.json: no such file")):
        read_results(tmp_path)


def test_a_pipe_is_no_results_file_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "results.json")
    with pytest.raises(RecordError, match=r"results\.json: not a regular file"):
        read_results(tmp_path)


def test_unreadable_results(tmp_path):
    (tmp_path / "results.json").symlink_to("results.json")
    with pytest.raises(RecordError, match="cannot be read: Too many levels of symbolic links"):
        read_results(tmp_path / "results.json")


def test_results_of_the_wrong_size(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 2**20)
    (tmp_path / "results.json").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(RecordError, match="larger than 1 MiB"):
        read_results(tmp_path)


def test_the_largest_results_are_2_gib():
    assert files.MAX_BYTES == 2 * 2**30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: EOF while parsing"),
        ('{"header": ', "not JSON: EOF while parsing"),
        ("ACCEPTED", "not JSON: expected value"),
        ("[" * 100_000, "not JSON: recursion limit exceeded"),
        (b"\xff\xfe", "not JSON: "),
        ("[]", "Input should be an object, not []"),
        ("{}", "plan is missing (and 6 more)"),
    ],
)
def test_what_is_no_record(tmp_path, text, message):
    (tmp_path / "results.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecordError, match=re.escape(f"results.json: {message}")):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda data: data.update(schema_version=1, novelty=1),
            "schema_version 1, by gpu-acceptance 0.1.0, which reads it; this version reads 2: without results.json, `report build` makes",
        ),
        (lambda data: data.update(schema_version=3, plan={}), "schema_version is 3; this version reads 2"),
        (lambda data: data["ranks"][3].update(schema_version="1"), "schema_version is '1'; this version reads 1"),
        (lambda data: data.pop("schema_version"), "no schema_version; this version reads 2"),
        (lambda data: data["end"].update(novelty=1), "unknown key end.novelty"),
        (
            lambda data: data["rows"][0]["attempts"][0]["ranks"][0]["figures"][0].update(novelty=1),
            "unknown key rows.0.attempts.0.ranks.0.figures.0.novelty",
        ),
        (lambda data: data.update({"a\nb": 1}), r"unknown key a\nb"),
        (lambda data: data["rows"][0].update(duration_s=float("nan")), "rows.0.duration_s: Input should be a finite number, not nan"),
        (lambda data: data["rows"][0].update(duration_s=float("-inf")), "rows.0.duration_s: Input should be a finite number, not -inf"),
        (
            lambda data: data["rows"][0]["attempts"][0]["ranks"][0]["figures"][0].update(value=float("nan")),
            "rows.0.attempts.0.ranks.0.figures.0.value: Input should be a finite number, a text, true or false, not nan",
        ),
        (lambda data: data["conclusion"].update(exit_code="0"), "conclusion.exit_code: Input should be a valid integer, not '0'"),
        (
            lambda data: data["conclusion"].update(verdict="PASS"),
            "conclusion.verdict: Input should be 'ACCEPTED', 'REJECTED' or 'INCOMPLETE'",
        ),
        (lambda data: data["rows"][0].update(message="x" * 20_000), "rows.0.message: String should have at most 16384 characters"),
        (lambda data: data["rows"][0].update(outcome=1, message=2), "(and 1 more)"),
        (lambda data: data.pop("plan"), "plan is missing"),
        (lambda data: data["plan"].update(profile=None), "plan.profile: "),
    ],
)
def test_what_is_wrong_is_named_on_one_line(tmp_path, change, message):
    with pytest.raises(RecordError) as caught:
        read_results(written(tmp_path, change))
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/results.json: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


HBM, GEMM = "acceptance/test_hbm.py::test_hbm_triad", "acceptance/test_gemm.py::test_gemm[bf16]"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda data: data["rows"][1].update(outcome="error"), f"{HBM}: outcome is error, and its figures and limits give passed"),
        (
            lambda data: data["rows"][1]["judgements"][0].update(asked=1.0),
            f"{HBM}: hbm.triad.bandwidth: asked is 1.0, and its figures and limits give 4150.0",
        ),
        (
            lambda data: data["rows"][1]["attempts"][0]["ranks"][5]["figures"][0].update(value=3.0),
            f"{HBM}: outcome is passed, and its figures and limits give failed",
        ),
        (
            lambda data: data["plan"]["profile"]["limits"]["hbm.triad.bandwidth"].update(at_least=4400),
            f"{HBM}: outcome is passed, and its figures and limits give failed",
        ),
        (lambda data: data["rows"].pop(1), f"{HBM} was planned, and has no row"),
        (lambda data: data["rows"].append(data["rows"][1]), f"{HBM} is there 2 times"),
        (lambda data: data["plan"]["validations"].pop(1), f"{HBM} has a row, and was not planned"),
        (lambda data: data["rows"][1].update(subject="gemm"), f"{HBM} is told to be of subject gemm"),
        (lambda data: data["rows"][1]["attempts"][0].update(number=2), f"attempt 1 of {HBM} is told to be attempt 2"),
        (
            lambda data: data["rows"][1]["attempts"][0]["ranks"][3].update(attempt=2),
            f"attempt 1 of {HBM} has what rank 3 did in attempt 2 of {HBM}",
        ),
        (
            lambda data: data["rows"][1]["attempts"][0]["ranks"].append(data["rows"][1]["attempts"][0]["ranks"][3]),
            f"attempt 1 of {HBM} has a rank twice",
        ),
        (lambda data: data["rows"][1]["attempts"][0]["ranks"].pop(3), f"{HBM}: outcome is passed, and its figures and limits give lost"),
        (lambda data: data["rows"][1].update(attempts=[]), f"{HBM} is passed, and nothing that was planned says so"),
        (
            lambda data: data["rows"][1].update(attempts=[], outcome="not applicable"),
            f"{HBM} is not applicable, and nothing that was planned says so",
        ),
        (lambda data: data["rows"][1].update(attempts=[], outcome="not run"), f"{HBM} has judgements, and no attempt"),
        (lambda data: data["rows"][1].update(attempts=[], outcome="died"), f"{HBM} is died, and nothing that was planned says so"),
        (lambda data: data["rows"][1].update(duration_s=1.0), f"{HBM}: duration_s is 1.0, and its figures and limits give 12.7"),
        (lambda data: data["conclusion"]["limits"].pop(), "the whole run has 4 judgements, and its figures and limits give 5"),
        (lambda data: data["conclusion"].update(exit_code=6), "conclusion.exit_code is 6, and what the record holds gives 0"),
        (
            lambda data: data["conclusion"]["coverage"].update(gpus_tested=7),
            "conclusion.coverage is Coverage(nodes=1, ranks=8, gpus_existing=8, gpus_tested=7,",
        ),
        (
            lambda data: data["end"].update(interrupted="SIGTERM"),
            "conclusion.verdict is 'ACCEPTED', and what the record holds gives 'INCOMPLETE'",
        ),
        (
            lambda data: data["plan"].update(measure_only=True),
            f"{GEMM} has 2 judgements, and its figures and limits give 0",
        ),
        (
            lambda data: data["ranks"].pop(),
            f"{GEMM}: outcome is passed, and",
        ),
    ],
)
def test_a_record_from_which_something_else_follows_is_refused_on_one_line(tmp_path, change, fault):
    run_dir = written(tmp_path, change)
    with pytest.raises(RecordError) as caught:
        read_results(run_dir)
    assert str(caught.value).startswith(f"{run_dir}/results.json: contradicts itself: {fault}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["conclusion"].update(line="ACCEPTED for 64 of 64 GPUs"),
        lambda data: [one.update(text="as somebody wrote") for one in data["conclusion"]["objections"]],
        lambda data: [row.update(message="as somebody wrote") for row in data["rows"]],
        lambda data: [one.update(message="as somebody wrote") for row in data["rows"] for one in row["judgements"]],
    ],
    ids=["the verdict line", "objections", "rows", "judgements"],
)
def test_words_that_somebody_wrote_are_made_anew(tmp_path, change):
    assert read_results(written(tmp_path, change)) == samples.accepted()


def test_journal_comes_back_in_order(tmp_path):
    path = tmp_path / "journal" / "rank-00005.jsonl"
    with Journal(path) as journal:
        journal.append(IDENTITY)
        for attempt in (1, 2):
            journal.append(rank_record(message=f"line one\nline two \u2028 {attempt}"))
    content = read_journal(path)
    assert (content.path, content.identity, content.plan, content.problems) == (path, IDENTITY, None, ())
    assert [record.message[-1] for record in content.records] == ["1", "2"]


def test_a_line_is_on_disk_when_append_returns(tmp_path):
    journal = Journal(tmp_path / "rank-00005.jsonl")
    journal.append(IDENTITY)
    assert read_journal(journal.path).identity == IDENTITY
    journal.close()
    journal.close()


def test_a_journal_is_never_overwritten(tmp_path):
    path = tmp_path / "rank-00005.jsonl"
    Journal(path).close()
    with pytest.raises(RecordError, match="exists already; a journal is never overwritten"):
        Journal(path)


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    path = tmp_path / "rank-00005.jsonl"
    write = os.write
    with Journal(path) as journal:
        journal.append(IDENTITY)

        def half_then_full(fd, data):
            monkeypatch.setattr(os, "write", full)
            return write(fd, data[: len(data) // 2])

        def full(fd, data):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", half_then_full)
        with pytest.raises(OSError, match="No space left"):
            journal.append(rank_record())
        monkeypatch.setattr(os, "write", write)
        journal.append(rank_record(message="later"))
    content = read_journal(path)
    assert (content.identity, [record.message for record in content.records], content.problems) == (IDENTITY, ["later"], ())


def journal_of(tmp_path, *lines, end="\n"):
    path = tmp_path / "rank-00005.jsonl"
    path.write_text("\n".join(lines) + end)
    return path


def test_a_cut_off_last_line_is_a_problem_and_the_rest_counts(tmp_path):
    path = journal_of(tmp_path, IDENTITY.model_dump_json(), rank_record().model_dump_json(), '{"kind":"rank","no', end="")
    fault = "line 3: cut off: the writer ended in the middle of it"
    assert read_journal(path) == JournalContent(path, IDENTITY, records=(rank_record(),), faults=(fault,))


def test_a_whole_last_line_counts_without_its_end(tmp_path):
    path = journal_of(tmp_path, IDENTITY.model_dump_json(), rank_record().model_dump_json(), end="")
    assert read_journal(path) == JournalContent(path, IDENTITY, records=(rank_record(),))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"kind":"rank","no', "line 2: not JSON: EOF while parsing"),
        ("", "line 2: not JSON: EOF while parsing"),
        ('{"kind":"other"}', "line 2: Input tag 'other' found using 'kind' does not match"),
        ("[]", "line 2: "),
        ('{"kind":"rank","novelty":1}', "rank.nodeid is missing (and 5 more)"),
        (rank_record(rank=4).model_dump_json(), "line 2: a record of rank 4 in the journal of rank 5"),
        (IDENTITY.model_dump_json(), "line 2: a second identity; only the first line is one"),
        (IDENTITY.model_dump_json().replace('"schema_version":1', '"schema_version":2'), "schema_version is 2; this version reads 1"),
    ],
)
def test_a_bad_line_is_named_and_the_others_count(tmp_path, line, message):
    path = journal_of(tmp_path, IDENTITY.model_dump_json(), line, rank_record().model_dump_json())
    content = read_journal(path)
    assert (content.identity, content.records) == (IDENTITY, (rank_record(),))
    (problem,) = content.problems
    assert problem.startswith(f"{path}: line 2: ")
    assert message in problem
    assert "\n" not in problem


def test_a_journal_without_identity_is_a_problem(tmp_path):
    path = journal_of(tmp_path, rank_record().model_dump_json())
    fault = "line 1 is not the identity of a rank"
    assert read_journal(path) == JournalContent(path, records=(rank_record(),), faults=(fault,))


def test_a_missing_journal_is_a_problem(tmp_path):
    path = tmp_path / "rank-00005.jsonl"
    assert read_journal(path) == JournalContent(path, faults=("no such file",))


def test_a_plan_and_facts_come_back(tmp_path):
    path = tmp_path / "rank-00005.jsonl"
    facts = [{"gpu_uuid": "GPU-1", "nccl": "2.28.9"}, {"gpu_uuid": "GPU-2", "cuda": "13.0"}]
    with Journal(path) as journal:
        journal.append(IDENTITY)
        journal.append(make_plan())
        for found in facts:
            journal.append(RankFacts(rank=5, facts=found))
    content = read_journal(path)
    assert (content.plan, content.records, content.problems) == (make_plan(), (), ())
    assert content.identity == IDENTITY.with_facts(facts[0]).with_facts(facts[1])
    assert content.identity.gpu_uuid == "GPU-2"
    assert content.identity.versions == {**IDENTITY.versions, "nccl": "2.28.9", "cuda": "13.0"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (lambda: make_plan().model_dump_json(), "line 3: a second plan; a journal has one"),
        (lambda: RankFacts(rank=4, facts={}).model_dump_json(), "line 3: a record of rank 4 in the journal of rank 5"),
        (
            lambda: make_plan().model_dump_json().replace('"deadline_s":60.0', '"deadline_s":"60"'),
            "deadline_s: Input should be a valid number",
        ),
        (
            lambda: make_plan().model_dump_json().replace('"name":', '"novelty":1,"name":'),
            "unknown key plan.profile.novelty",
        ),
    ],
)
def test_a_bad_plan_is_named_and_the_first_one_counts(tmp_path, line, message):
    path = journal_of(tmp_path, IDENTITY.model_dump_json(), make_plan().model_dump_json(), line(), rank_record().model_dump_json())
    content = read_journal(path)
    assert (content.plan, content.records) == (make_plan(), (rank_record(),))
    assert len(content.problems) == 1
    assert message in content.problems[0]


REFUSAL = Refusal(message="rank 3 did not arrive within 120 s", ended_at="2026-11-20T07:02:00+00:00")


def test_a_refusal_comes_back(tmp_path):
    path = tmp_path / "rank-00005.jsonl"
    with Journal(path) as journal:
        journal.append(IDENTITY)
        journal.append(REFUSAL)
    assert read_journal(path) == JournalContent(path, IDENTITY, refusal=REFUSAL)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (REFUSAL.model_dump_json().replace("rank 3", "rank 4"), "line 3: a second refusal; a journal has one"),
        (REFUSAL.model_dump_json().replace('"exit_code":6', '"exit_code":0'), "line 3: refusal.exit_code: Input should be 6, not 0"),
        (REFUSAL.model_dump_json().replace('"exit_code":6', '"novelty":1'), "line 3: unknown key refusal.novelty"),
        (REFUSAL.model_dump_json().replace("rank 3", "x" * 20_000), "line 3: refusal.message: String should have at most 16384 characters"),
    ],
)
def test_a_bad_refusal_is_named_and_the_first_one_counts(tmp_path, line, message):
    path = journal_of(tmp_path, IDENTITY.model_dump_json(), REFUSAL.model_dump_json(), line)
    content = read_journal(path)
    assert content.refusal == REFUSAL
    (problem,) = content.problems
    assert message in problem


def test_text_that_utf8_cannot_carry_does_not_stop_a_plan():
    plan = make_plan(waivers={"hbm.*": "\ud800"})
    assert RunPlan.model_validate_json(encode(plan)) == plan.model_copy(update={"waivers": {"hbm.*": r"\ud800"}})
