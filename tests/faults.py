"""The fault matrix: what each fault must end in, the checks that hold for every one, and what docs/faults.md is made from.

A test file lists its faults and asks the fixture `seen` for each: `seen.row(FAULT, ended)` for a fault inside a validation,
`seen.told(FAULT, text, took_s)` for any other. Both fail where the fault did not end as it must.
"""

import json
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from suite import Finished, processes_in
from waiting import wait_until

from gpu_acceptance.base.text import visible
from gpu_acceptance.folder.manifest import differences, read_manifest
from gpu_acceptance.record.figure import Figure
from gpu_acceptance.record.row import Row

BEYOND_DEADLINE_S = 25.0
_GONE_WITHIN_S = 60.0  # what a run left, on a loaded machine: its janitors look for 2 s
_REJECTS = {"failed", "died", "stuck"}
_MOST_SHOWN = 240


@dataclass(frozen=True)
class Fault:
    """A fault by its name in docs/faults.md, and what it must end in: an outcome of a row, or a verdict in words."""

    name: str
    ends_in: str
    row: str = ""  # the end of the node id
    says: str = ""  # a pattern for the whole first line of the row's message
    culprits: tuple[int, ...] = ()  # the ranks whose own outcome is the row's
    following: str = ""  # the end of the node id of the validation that must pass afterwards; empty where the run ends

    def __str__(self) -> str:
        return self.name

    @property
    def verdict(self) -> str:
        """`REJECTED (died)` of an outcome; else the words themselves."""
        if not self.row:
            return self.ends_in
        verdict = "REJECTED" if self.ends_in in _REJECTS else "ACCEPTED" if self.ends_in == "passed" else "INCOMPLETE"
        return f"{verdict} ({self.ends_in})"


def fault(name: str, ends_in: str, example: str, culprit: int, words: str, phase: str = "call") -> Fault:
    """A fault of one rank in the example's `test_fault`, which the example's `test_next` follows."""
    says = rf"rank {culprit} \(.*\): {ends_in} in {phase}: {words}"
    return Fault(name, ends_in, f"{example}.py::test_fault", says, (culprit,), f"{example}.py::test_next")


class Seen:
    """Checks what faults ended in, and keeps it for docs/faults.md where a folder is given."""

    def __init__(self, folder: Path | None, test: str) -> None:
        self._folder = folder
        self._test = test
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def row(self, fault: Fault, ended: Finished, attempt: int = -1) -> Row:
        """A fault inside a validation: outcome, culprit, words, time, what was measured before, what comes after, nothing left."""
        row = ended.row(fault.row)
        first = row.message.split("\n", 1)[0]
        assert row.outcome == fault.ends_in, row.message
        assert re.fullmatch(fault.says, first), first
        assert culprits_of(row, attempt) == fault.culprits
        took_s = max((record.duration_s for record in row.attempts[attempt].ranks), default=0.0) if row.attempts else 0.0
        assert took_s <= row.deadline_s + BEYOND_DEADLINE_S
        assert_measured_before_is_kept(ended, row)
        if fault.following:
            assert ended.row(fault.following).outcome == "passed", ended.row(fault.following).message
        assert_nothing_left(ended.suite)
        self.told(fault, first or row.outcome, took_s)
        return row

    def told(self, fault: Fault, text: str, took_s: float) -> None:
        """Any other fault, which the test itself has checked."""
        if self._folder:
            line = {"fault": fault.name, "verdict": fault.verdict, "says": neutral(text), "took_s": took_s, "test": self._test}
            with (self._folder / f"{psutil.Process().pid}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")


def culprits_of(row: Row, attempt: int) -> tuple[int, ...]:
    """The ranks whose own outcome in this attempt is the row's; none where all agree, or a limit decided."""
    records = row.attempts[attempt].ranks if row.attempts else ()
    ranks = tuple(record.rank for record in records if record.outcome == row.outcome)
    return ranks if len(ranks) < len(records) else ()


def assert_measured_before_is_kept(ended: Finished, until: Row) -> None:
    """Every figure that a journal holds from before the fault is in results.json, and there is one unless nothing ran before."""
    before = ended.record.rows[: ended.record.rows.index(until)]
    kept = {key: figures for row in before for key, figures in _figures_of(row)}
    written = {key: figures for key, figures in _figures_in_journals(ended) if key[0] in {one.nodeid for one in before}}
    assert kept == written
    assert any(kept.values()) or len(before) <= 1


def _figures_of(row: Row) -> Iterator[tuple[tuple[str, int, int], tuple[Figure, ...]]]:
    for attempt in row.attempts:
        for record in attempt.ranks:
            yield (row.nodeid, attempt.number, record.rank), record.figures


def _figures_in_journals(ended: Finished) -> Iterator[tuple[tuple[str, int, int], tuple[Figure, ...]]]:
    for identity in ended.record.ranks:
        for line in ended.journal_of(identity.rank):
            if line["kind"] == "rank":
                figures = tuple(Figure(**one) for one in line["figures"])
                yield (line["nodeid"], line["attempt"], line["rank"]), figures


def assert_nothing_left(suite: Path) -> None:
    assert left_in(suite) == []


def assert_whole(ended: Finished) -> None:
    """No file of the run changed after its manifest, whose digest was printed, and no process is left."""
    assert ended.folder
    manifest = read_manifest(ended.folder)
    assert list(differences(ended.folder, manifest)) == []
    assert f"SHA256SUMS, sha256 {manifest.sha256}\n" in ended.output
    assert_nothing_left(ended.suite)


def left_in(suite: Path) -> list[str]:
    """The processes of a run in this folder that do not end within seconds, in words."""
    wait_until(lambda: not processes_in(suite), _GONE_WITHIN_S)
    return processes_in(suite)


def neutral(text: str) -> str:
    """The text without the names of this machine: hosts, folders, process ids, addresses in memory; in one line."""
    line = visible(" ".join(text.replace(platform.node(), "node-00").split()))
    line = re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", ".../", line)
    line = re.sub(r"\b(process|pid) \d+", r"\1 N", line)
    line = re.sub(r"\b\d{8}-\d{6}-[0-9a-f]{8}\b", "RUN", line)
    return line if len(line) <= _MOST_SHOWN else f"{line[:_MOST_SHOWN]}..."
