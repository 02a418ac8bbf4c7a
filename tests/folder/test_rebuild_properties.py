"""Whatever happens to the journals of a run, the rebuilt run is never better than it was."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_acceptance.folder.journal import read_journal
from gpu_acceptance.folder.rebuild import read_run_folder, rebuild
from gpu_acceptance.record.outcome import Outcome
from gpu_acceptance.thresholds.limit import Peers
from tests.folder.rebuilding import ENDED, WHY, rebuilt
from tests.journals import TRIAD, Told, attempt_of, checked, make_plan, told
from tests.judging import make_limit, make_profile


@pytest.fixture(scope="module")
def journals(tmp_path_factory):
    """An accepted run's journals, and the bytes of that of rank 1."""
    folder = told().leave(tmp_path_factory.mktemp("run"))
    path = folder / "journal" / "rank-00001.jsonl"
    return folder, path, path.read_bytes()


@given(data=st.data())
@settings(max_examples=150)
def test_a_journal_cut_anywhere_keeps_its_whole_lines_and_accepts_nothing(journals, data):
    folder, path, whole = journals
    size = data.draw(st.integers(0, len(whole) - 1) | st.sampled_from([n for n, byte in enumerate(whole) if byte == 10]))
    path.write_bytes(whole[:size])
    content = read_journal(path)
    ends_whole = whole[size : size + 1] == b"\n"
    num_lines = whole[:size].count(b"\n") + ends_whole
    assert (content.identity is not None) + (content.plan is not None) + len(content.records) == num_lines - (num_lines > 2)
    assert len(content.problems) == (num_lines == 0) + (not ends_whole and not whole[:size].endswith(b"\n") and size > 0)
    record = rebuild(read_run_folder(folder), ended_at=ENDED, why=WHY)
    assert (record.conclusion.verdict, record.conclusion.exit_code) == ("INCOMPLETE", 6)


outcomes = st.sampled_from([Outcome.PASSED] * 6 + [Outcome.DIED, Outcome.FAILED, Outcome.ERROR, Outcome.SKIPPED, Outcome.INTERRUPTED])
figures = st.sampled_from([120.0] * 4 + [99.0, 101.0, 126.5, None])


@st.composite
def runs(draw):
    """Runs of three to five ranks with one or two attempts, under a floor and the peer rule."""
    world_size = draw(st.integers(3, 5))
    limit = make_limit(at_least=100.0, peers=Peers(deficit_at_most=0.05, sigma=0.001))
    attempts = []
    for number in range(1, draw(st.integers(1, 2)) + 1):
        values = draw(st.lists(figures, min_size=world_size, max_size=world_size))
        ended = {f"rank_{rank}": draw(outcomes) for rank in range(world_size)}
        attempts.append(attempt_of(TRIAD, checked("hbm.triad.bandwidth", values), number, **ended))
    return Told(make_plan(make_profile(limit), (TRIAD,)), world_size, {TRIAD: attempts})


@given(run=runs(), seed=st.integers(0, 1000))
@settings(max_examples=100)
def test_the_order_of_the_journals_does_not_matter(run, seed):
    contents = run.contents()
    expected = rebuilt(contents)
    random.Random(seed).shuffle(contents)
    assert rebuilt(contents) == expected
    assert expected.conclusion.verdict != "ACCEPTED"


@given(run=runs(), data=st.data())
@settings(max_examples=150)
def test_a_missing_journal_never_helps(run, data):
    """No more limits hold, no other rank is accused, and a fault of the other ranks still rejects."""
    gone = data.draw(st.integers(0, run.world_size - 1))
    before, after = rebuilt(run.contents()), rebuilt(run.contents(gone))
    assert after.conclusion.verdict != "ACCEPTED"
    assert after.conclusion.coverage.limits_held <= before.conclusion.coverage.limits_held
    assert after.conclusion.verdict == "INCOMPLETE" or before.conclusion.verdict == "REJECTED"
    records = [record for attempt in run.attempts[TRIAD] for record in attempt.ranks if record.rank != gone]
    died = any(record.outcome in {Outcome.DIED, Outcome.FAILED} for record in records)
    slow = any(record.outcome is Outcome.PASSED and figure.value == 99.0 for record in records for figure in record.figures)
    if died or slow:
        assert after.conclusion.verdict == "REJECTED"


@given(run=runs(), data=st.data())
@settings(max_examples=60)
def test_lost_records_never_help(run, data):
    rank = data.draw(st.integers(0, run.world_size - 1))
    contents = run.contents()
    keep = data.draw(st.integers(0, len(contents[rank].records)))
    contents[rank] = replace(contents[rank], records=contents[rank].records[:keep])
    before, after = rebuilt(run.contents()), rebuilt(contents)
    assert after.conclusion.verdict != "ACCEPTED"
    assert after.conclusion.verdict == "INCOMPLETE" or before.conclusion.verdict == "REJECTED"
