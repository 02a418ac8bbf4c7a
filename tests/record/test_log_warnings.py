"""Warnings in the log of a rank become figures: what came since it was read last, and nothing twice."""

import pytest

from gpu_acceptance.record import counters
from gpu_acceptance.record.counters import LogWarnings

NCCL, IBVERBS = "counters.warnings.nccl", "counters.warnings.libibverbs"
LIMITED = frozenset({NCCL, IBVERBS})


@pytest.fixture
def log(tmp_path):
    return tmp_path / "rank-00000.log"


def add(log, text):
    with log.open("a", encoding="utf-8") as file:
        file.write(text)


def figures(reader, log, limited=LIMITED):
    return {figure.metric: (figure.value, figure.detail or figure.anomaly) for figure in reader.figures(log, limited)}


def test_before_the_first_worker_there_is_nothing(log):
    assert figures(LogWarnings(), log) == {}


def test_each_warning_counts_once_with_its_text(log):
    reader = LogWarnings()
    add(log, "=== generation 1 ===\nn:1:1 [0] a.cc:1 NCCL WARN odd\nn:1:1 [0] a.cc:1 NCCL WARN odd\nlibibverbs: Warning: no driver\n")
    assert figures(reader, log) == {NCCL: (2, "a.cc:1 NCCL WARN odd (2 times)"), IBVERBS: (1, "libibverbs: Warning: no driver")}
    assert figures(reader, log) == {NCCL: (0, ""), IBVERBS: (0, "")}
    add(log, "n:1:1 [0] b.cc:2 NCCL WARN odder\n")
    assert figures(reader, log)[NCCL] == (1, "b.cc:2 NCCL WARN odder")


def test_a_line_that_has_not_ended_is_read_later(log):
    reader = LogWarnings()
    add(log, "n:1:1 [0] a.cc:1 NCCL WA")
    assert figures(reader, log)[NCCL] == (0, "")
    add(log, "RN odd\n")
    assert figures(reader, log)[NCCL] == (1, "a.cc:1 NCCL WARN odd")


def test_without_a_limit_a_warning_informs(log):
    add(log, "n:1:1 [0] a.cc:1 NCCL WARN odd\n")
    (figure,) = LogWarnings().figures(log, frozenset())
    assert (figure.metric, figure.value, figure.judged) == (NCCL, 1, False)


def test_more_than_can_be_looked_at_is_no_value(log, monkeypatch):
    monkeypatch.setattr(counters, "_MOST_BYTES", 100)
    reader = LogWarnings()
    add(log, "x" * 200)
    assert figures(reader, log) == dict.fromkeys((NCCL, IBVERBS), (None, "the worker wrote more than 100 bytes meanwhile"))
    add(log, "\nn:1:1 [0] a.cc:1 NCCL WARN odd\n")
    assert figures(reader, log)[NCCL] == (1, "a.cc:1 NCCL WARN odd")


def test_many_kinds_are_cut(log):
    add(log, "".join(f"n:1:1 [0] a.cc:{number} NCCL WARN {'odd ' * 200}\n" for number in range(6)))
    value, detail = figures(LogWarnings(), log)[NCCL]
    assert value == 6
    assert detail.endswith("; 2 more")
    assert len(detail) < 1_000
