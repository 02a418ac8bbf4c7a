"""Text that would take over a page, a terminal or a parser, and a record too large to send: the verdict is what it is without them."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from faults import Fault, fault
from needs import is_privileged
from suite import make_suite, run, torchrun_command

pytestmark = pytest.mark.launcher

HOST = b"<b>host&\"'"  # torchrun itself refuses one that is no ASCII
ESCAPED = r"OSError: <script>alert\(1\)</script>&.*"
HOSTILE_EXCEPTION = fault("hostile exception text of 10 MB (HTML, ANSI escapes, lone surrogates)", "error", "hostile_text", 0, ESCAPED)
HOSTILE_NAMES = Fault("hostile host name and test id", "unchanged: ACCEPTED (passed)")
NOT_SENT = r"rank 1 \(.*\): error: record not sent: a published message of \d+ bytes; allowed: 1048576"
TOO_LARGE = replace(fault("a record above the control store's limit", "error", "yields_too_much", 1, ""), says=NOT_SENT)
RENAMED = "import socket, sys, os; socket.sethostname(os.fsdecode(bytes.fromhex(sys.argv[1]))); os.execvp(sys.argv[2], sys.argv[2:])"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Run on a host of that name if possible: a namespace of our own has one."""
    suite = make_suite(tmp_path_factory.mktemp("hostile"), "begins", "hostile_text", "yields_too_much")
    resolvable = ("--local-addr=127.0.0.1",)  # torchrun itself waits for ever on a name that resolves to nothing
    command = torchrun_command("acceptance/", "--junitxml=junit of ours.xml", launcher=resolvable)
    renamed = ["unshare", "--uts", command[0], "-c", RENAMED, HOST.hex(), *command]
    return run(renamed if is_privileged() else command, suite)


def test_names_change_nothing(hostile, seen):
    (row,) = [row for row in hostile.record.rows if "test_named" in row.nodeid]
    assert row.outcome == "passed"
    if is_privileged():
        assert {identity.host.encode("utf-8", "surrogateescape") for identity in hostile.record.ranks} == {HOST}
    seen.told(HOSTILE_NAMES, row.outcome, row.duration_s)


@pytest.mark.parametrize("one", [HOSTILE_EXCEPTION, TOO_LARGE], ids=str)
def test_faults(one, hostile, seen):
    seen.row(one, hostile)


def test_all_ranks_exit_alike_and_each_file_and_terminal_is_what_it_is_without_them(hostile):
    assert hostile.rank_exit_codes == {0: 6, 1: 6}, hostile.output[-3000:]
    (line,) = [line for line in hostile.journal_of(1) if line.get("nodeid", "").endswith("yields_too_much.py::test_fault")]
    assert len(line["figures"]) == 1201
    text = (hostile.folder / "report.html").read_bytes()
    assert b"<script>alert" not in text
    assert b"\x1b" not in text
    assert len(text) < 3_000_000
    (suite,) = ET.parse(hostile.suite / "junit of ours.xml").getroot()
    assert len(suite.findall("testcase")) == len(hostile.record.rows) + 1
    assert (hostile.suite / "junit of ours.xml").read_bytes() == (hostile.folder / "junit.xml").read_bytes()
    for text in (hostile.output, hostile.terminal_of(1)):
        assert "\x1b[31m" not in text
        assert "\x07" not in text
        assert len(text) < 3_000_000
