"""A node that lies, is silent or reads strangely: nothing moves the cursor, and no value is invented."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import NUM_GPUS, REAL_NAMES, changed, leaves, real, snapshot_of

from gpu_acceptance.cli.node import inventory_lines
from gpu_acceptance.cli.snapshot_file import take
from tests.cli.test_node import (
    HOSTILE,
    MOST_COLUMNS,
    NOT_PERMITTED,
    ONE_SCREEN,
    SERVER,
    XIDS,
    kernel_log,
    lines_of,
    text_of,
    words_of,
)


def small_server():
    """A snapshot of two GPUs with two links each: a whole one is slow to read a thousand times."""
    plain = copy.deepcopy(SERVER)
    node = plain["node"]
    node["gpus"]["gpus"] = [{**gpu, "nvlinks": gpu["nvlinks"][:2]} for gpu in node["gpus"]["gpus"][:2]]
    node["gpus"]["peers"] = [peer for peer in node["gpus"]["peers"] if peer["source"] < 2 and peer["target"] < 2]
    for key in ("gpu_places", "infiniband"):
        part = node[key]["devices"] if key == "infiniband" else node[key]
        del part[2:]
    node["kernel_log"] = kernel_log(*XIDS)
    return plain


SMALL = small_server()


def nothing_said(plain):
    """Every answer that may be missing is."""
    for path in leaves(plain):
        try:
            less = changed(plain, path, NOT_PERMITTED)
            snapshot_of(less)
        except (ValueError, TypeError, KeyError):
            continue
        plain = less
    return plain


def test_without_answers_every_value_is_a_question_mark():
    plain = nothing_said(SMALL)
    node = plain["node"]
    node["gpus"]["gpus"] = [{**node["gpus"]["gpus"][0], "index": index} for index in range(NUM_GPUS)]
    lines = lines_of(plain)
    assert max(map(len, lines)) <= MOST_COLUMNS
    said = words_of(plain)
    assert said.count("? (not permitted") > 30
    assert " 3 ? ? ? ? ? ? ? ? ? ? ? 4 ?" in said
    for value in ("H200", "580.159.04", "Ubuntu", "Xeon", "tsc"):
        assert value not in said


def whole_parts(plain, path=""):
    """Every object and list, by its path."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for key, part in items:
        at = f"{path}.{key}" if path else str(key)
        if isinstance(part, dict | list):
            yield at
            yield from whole_parts(part, at)


def test_whatever_part_is_missing_there_is_a_text():
    tried = 0
    for path in whole_parts(SMALL):
        try:
            snapshot = snapshot_of(changed(SMALL, path, NOT_PERMITTED))
        except ValueError:
            continue
        assert len(inventory_lines(snapshot)) > 10
        tried += 1
    assert tried > 20


LEAVES = leaves(SMALL)
TEXTS = [path for path, value in LEAVES.items() if isinstance(value, str)]


def test_hostile_text_breaks_no_line():
    plain = SMALL
    for path in TEXTS:
        try:
            snapshot_of(changed(plain, path, HOSTILE))
        except ValueError:
            continue
        plain = changed(plain, path, HOSTILE)
    lines = lines_of(plain)
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) <= MOST_COLUMNS
    assert r"\x1b[31m</td>\n" in "\n".join(lines)


ANYTHING = st.one_of(
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), 1e308, 2**63]),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.just(NOT_PERMITTED),
    st.just([]),
)


def test_a_gpu_of_a_negative_index_is_refused():
    with pytest.raises(ValueError, match="index"):
        snapshot_of(changed(SMALL, "node.gpus.gpus.0.index", -1))


@given(st.dictionaries(st.sampled_from(sorted(LEAVES)), ANYTHING, min_size=1, max_size=6))
def test_whatever_a_snapshot_says_there_is_a_text(changes):
    plain = SMALL
    for path, value in changes.items():
        plain = changed(plain, path, value)
    try:
        snapshot = snapshot_of(plain)
    except ValueError:
        return
    lines = inventory_lines(snapshot)
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) <= MOST_COLUMNS


def test_this_machine():
    lines = inventory_lines(take())
    assert ", as of 20" in lines[0]
    assert [line.split()[0] for line in lines if not line.startswith(" ")][-4:] == ["RDMA", "mounts", "allowed", "log"]


@pytest.mark.parametrize("name", REAL_NAMES)
def test_a_real_node_fits_one_screen_and_shows_its_processes(name):
    lines = lines_of(real(name))
    assert len(lines) <= ONE_SCREEN
    assert max(map(len, lines)) <= MOST_COLUMNS
    assert ("processes: GPU 0 pid 1607 1.1 GiB, GPU 1 pid 1607" in text_of(real(name))) == (name == "h200x8-loaded")


def test_a_real_node_that_logged_xid_79_names_the_gpu_and_what_to_do():
    nobody = {"missing": "not there", "detail": ""}
    xid = {
        "number": 79,
        "pci_bus_id": "00000000:00:09.0",
        "at_s": 8.5,
        "pid": nobody,
        "process": nobody,
        "text": "GPU has fallen off the bus.",
    }
    text = text_of(changed(real(), "node.kernel_log.xids", [xid]))
    assert "XID 79 on GPU 3, 1 time, last at 2026-11-20 16:08:58 UTC: GPU has fallen off the bus; to do: reboot the node" in text
