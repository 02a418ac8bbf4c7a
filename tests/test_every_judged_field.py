"""Every value that any row of gpu_health judges: removed, not permitted, or beyond its limit, that row fails, and no other one.

Which values those are is found out by watching the rows ask for them, on a snapshot of a real node.
"""

import re
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from judged_fields import judged_fields
from snapshots import REAL_NAMES, changed, leaves, real, snapshot_of, value_at, without

from gpu_acceptance.cli.snapshot_file import NoGpusError, judge_snapshot
from gpu_acceptance.record.outcome import Outcome
from tests.judging import shipped_profile

pytestmark = pytest.mark.slow

PLAIN = {name: real(name) for name in REAL_NAMES}
IDLE = PLAIN["h200x8-idle"]
PROFILE = shipped_profile("h200-sxm")
BAD = 3
NOT_PERMITTED = {"missing": "not permitted", "detail": "nvml: Insufficient Permissions"}
FINE = {Outcome.PASSED, Outcome.NOT_APPLICABLE}
FIELDS = sorted(judged_fields(snapshot_of(IDLE), BAD))
DECLARED = [one for one in FIELDS if one[0] == "retired_pages"]  # the profile says that an H200 has none
JUDGED = [one for one in FIELDS if one not in DECLARED]


def rows_of(plain):
    _, rows, conclusion = judge_snapshot(snapshot_of(plain), PROFILE)
    return {row.nodeid.rsplit("test_", 1)[-1]: row for row in rows}, conclusion


def bad_rows(rows):
    return {topic for topic, row in rows.items() if row.outcome not in FINE}


def moves(value: object, path: str) -> Iterator[object]:
    """Values to either side of one, near and far, of its own type."""
    if path.endswith(".processes"):
        yield [{"pid": 1607, "used_bytes": 2**30}]
    elif path.endswith(".fabric.health"):  # which this node's driver does not tell
        yield "unhealthy"
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value - 1, value * 2, -value)
    elif isinstance(value, str):
        yield f"not {value}"
    elif isinstance(value, list):
        yield from ([*value, "hw slowdown"], ["bits 0x800"])


def test_the_rows_were_seen_to_ask():
    assert {topic for topic, _, _ in FIELDS} == set(rows_of(IDLE)[0])
    assert {metric for _, metric, _ in JUDGED} == {
        metric for metric in PROFILE.limits if metric.startswith("gpu_health.") and "retired_pages" not in metric
    }
    assert len({path for _, _, path in JUDGED if ".nvlinks." not in path and ".peers." not in path}) > 35
    assert len({path for _, _, path in JUDGED if ".nvlinks." in path}) == 18 * 3
    assert len({path for _, _, path in JUDGED if ".peers." in path}) == 7 * 3


@pytest.mark.parametrize(("topic", "metric", "path"), FIELDS)
def test_a_file_that_lacks_it_is_no_snapshot(topic, metric, path):
    with pytest.raises(ValueError, match=rf"{re.escape(path.rsplit('.', 1)[-1])} is missing|unknown key|not "):
        snapshot_of(without(IDLE, path))


@pytest.mark.parametrize(("topic", "metric", "path"), JUDGED)
def test_not_permitted_its_row_alone_is_not_fine(topic, metric, path):
    rows, conclusion = rows_of(changed(IDLE, path, NOT_PERMITTED))
    assert bad_rows(rows) == {topic}
    assert conclusion.verdict == "INCOMPLETE"
    assert f"{metric} " in rows[topic].message
    assert "nvml: Insufficient Permissions" in rows[topic].message
    assert f"rank {BAD} (node-00, GPU {BAD}, serial 1650000000003)" in rows[topic].message


@pytest.mark.parametrize(("topic", "metric", "path"), JUDGED)
def test_moved_past_its_limit_its_row_alone_fails_and_says_what_to_do(topic, metric, path):
    failed = []
    for value in moves(value_at(IDLE, path), path):
        rows, conclusion = rows_of(changed(IDLE, path, value))
        assert bad_rows(rows) <= {topic}
        if rows[topic].outcome is Outcome.FAILED:
            assert conclusion.exit_code == 1
            failed.append(rows[topic].message)
    assert failed
    assert f"{metric} = " in failed[0]
    assert f" on rank {BAD} (node-00, GPU {BAD}, serial 1650000000003); to do: {PROFILE.limits[metric].remedy}" in failed[0]


@pytest.mark.parametrize(("topic", "metric", "path"), DECLARED)
def test_what_the_profile_says_this_gpu_has_not_decides_nothing(topic, metric, path):
    rows, conclusion = rows_of(changed(IDLE, path, NOT_PERMITTED))
    assert (rows[topic].outcome, conclusion.exit_code) == (Outcome.NOT_APPLICABLE, 0)


# --- any file at all ------------------------------------------------------------------------------------------------------------

PATHS = sorted(path for path in leaves(IDLE) if path.startswith("node."))
REQUIRED = {path for _, _, path in JUDGED}
PLACES = st.one_of(st.sampled_from(PATHS), st.sampled_from(sorted(REQUIRED)))
ANYTHING = st.one_of(
    *(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8), st.none()),
    *(st.just(NOT_PERMITTED), st.just([]), st.just({}), st.sampled_from(["LACKING"])),
)


def mutated(plain, changes):
    for path, value in changes.items():
        plain = without(plain, path) if value == "LACKING" else changed(plain, path, value)
    return plain


@given(st.sampled_from(REAL_NAMES), st.dictionaries(PLACES, ANYTHING, min_size=1, max_size=4))
@example("h200x8-idle", {"node.gpus.gpus": NOT_PERMITTED})
@example("h200x8-idle", {"node.gpus.gpus": []})
def test_whatever_a_file_says_it_is_judged_or_refused_in_words(name, changes):
    try:
        rows, conclusion = rows_of(mutated(PLAIN[name], changes))
    except (ValueError, NoGpusError) as error:
        assert str(error)  # noqa: PT017 - either is fine, a traceback of another kind is not
        return
    assert conclusion.verdict != "ACCEPTED" or not bad_rows(rows)
    if any(value == NOT_PERMITTED and path in REQUIRED for path, value in changes.items()):
        assert conclusion.verdict != "ACCEPTED"
    assert not any(value == "LACKING" and path in REQUIRED for path, value in changes.items())
