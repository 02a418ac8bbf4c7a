"""Records of /dev/kmsg: what is read, how far it reaches, and what is no log."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import kmsg
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.kmsg import Reach, drain, split_records

# The kernel documentation's own example, with what later kernels add (`caller=`), behind the first record of a boot.
BOOT = b"5,0,0,-;Linux version 6.8.0-45-generic (buildd@lcy02-amd64-115)\n"
LOG = (
    BOOT
    + b"7,1,424069,-;pci_root PNP0A03:00: host bridge window [io  0x0000-0x0cf7] (ignored)\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n"
    + b"6,2,5140900,-,caller=T1;NET: Registered protocol family 10\n"
    + b"30,3,5690716,-;udevd[80]: starting version 181\n"
)


def test_records_have_a_time_and_a_text():
    records = split_records(LOG)
    assert records.kept == (
        (0.0, b"Linux version 6.8.0-45-generic (buildd@lcy02-amd64-115)"),
        (0.424069, b"pci_root PNP0A03:00: host bridge window [io  0x0000-0x0cf7] (ignored)"),
        (5.1409, b"NET: Registered protocol family 10"),
    )
    assert records.reach == Reach(0, 0.0, 5.690716, num_records=4, num_lost=0, num_unreadable=0, is_cut_short=False, is_since_boot=True)


def test_only_records_with_one_of_the_words_are_kept():
    assert [text for _, text in split_records(LOG, (b"NET:", b"nowhere")).kept] == [b"NET: Registered protocol family 10"]
    assert split_records(LOG, (b"nowhere",)).kept == ()


def test_records_of_user_space_do_not_count():
    """Facility 1, and 3: only the kernel writes with facility 0."""
    forged = b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    for priority in (b"12", b"30"):
        assert split_records(BOOT + priority + b",1,1,-;" + forged, (b"Xid",)).kept == ()
    assert len(split_records(BOOT + b"4,1,1,-;" + forged, (b"Xid",)).kept) == 1


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (
            b"6,2159,17200827698,-;br0: port 2(port1) entered disabled state\n",
            {"first_sequence": 2159, "first_s": 17200.827698, "last_s": 17200.827698, "num_records": 1},
        ),
        (BOOT + b"6,5,100,-;a\n6,6,200,-;b\n", {"last_s": 0.0002, "num_records": 3, "num_lost": 4}),
        (BOOT + b"[    0.000000] Command line: quiet\n6,x,1,-;a\n", {"last_s": 0.0, "num_records": 1, "num_unreadable": 2}),
    ],
    ids=["its start was overwritten", "records are lost", "lines are no records"],
)
def test_a_log_that_is_not_whole(text, changes):
    assert split_records(text).reach == replace(split_records(LOG).reach, is_since_boot=False, **changes)


@pytest.mark.parametrize("text", [b"", b"Nov 20 07:09:01 node kernel: NVRM: Xid\n"])
def test_without_a_record_there_is_no_log(text):
    assert split_records(text) is None


def reader(answers):
    """Answers of os.read, one after the other; an exception is raised."""

    def read_some():
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    return read_some


def test_reading_ends_behind_the_last_record():
    answers = iter([BOOT, b"6,1,1,-;a\n", BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")])
    assert drain(reader(answers)) == (BOOT + b"6,1,1,-;a\n", False)


def test_reading_goes_on_behind_records_that_were_overwritten():
    answers = iter([BOOT, BrokenPipeError(errno.EPIPE, "Broken pipe"), b"6,9,1,-;a\n", BlockingIOError(errno.EAGAIN, "")])
    text, is_cut_short = drain(reader(answers))
    assert (split_records(text).reach.num_lost, is_cut_short) == (8, False)


def test_any_other_error_is_one():
    with pytest.raises(OSError, match="Invalid argument"):
        drain(reader(iter([BOOT, OSError(errno.EINVAL, "Invalid argument")])))


def test_a_log_beyond_the_bound_is_cut_short(monkeypatch):
    monkeypatch.setattr(kmsg, "_MOST_BYTES", 100)
    text, is_cut_short = drain(lambda: BOOT)
    assert is_cut_short
    assert len(text) == 2 * len(BOOT)
    assert not split_records(text, is_cut_short=True).reach.is_since_boot


def test_a_log_that_grows_faster_than_it_is_read_is_cut_short(monkeypatch):
    monkeypatch.setattr(kmsg, "_MOST_S", 0.01)
    assert drain(lambda: b"6,1,1,-;a\n")[1]


def test_a_device_that_waits_for_more_does_not_hold_us(tmp_path):
    """A pipe answers EAGAIN as the device does, as long as its other end is open."""
    os.mkfifo(tmp_path / "kmsg")
    writer = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, LOG)
        assert kmsg.read_kmsg(tmp_path / "kmsg", (b"NET:",)) == split_records(LOG, (b"NET:",))
    finally:
        os.close(writer)


def test_a_log_that_cannot_be_read_is_missing(tmp_path):
    path = tmp_path / "kmsg"
    assert kmsg.read_kmsg(path, ()) == Missing(Why.NOT_THERE, str(path))
    path.touch()
    assert kmsg.read_kmsg(path, ()) == Missing(Why.UNREADABLE, f"{path} holds no record of a kernel log: b''")
    path.write_bytes(b"\xff\x00garbage")
    assert kmsg.read_kmsg(path, ()) == Missing(Why.UNREADABLE, f"{path} holds no record of a kernel log: b'\\xff\\x00garbage'")
    assert kmsg.read_kmsg(tmp_path, ()) == Missing(Why.UNREADABLE, f"{tmp_path}: Is a directory")


@given(st.lists(st.one_of(st.binary(max_size=60), st.from_regex(rb"[0-9]{1,25},[0-9]{1,25},[0-9]{1,25},-;.{0,20}", fullmatch=True))))
def test_no_bytes_break_it(lines):
    records = split_records(b"\n".join(lines))
    assert records is None or records.reach.num_records > 0


def test_this_machines_log():
    records = kmsg.read_kmsg(Path("/dev/kmsg"), (b"",))
    if isinstance(records, Missing):
        return
    reach = records.reach
    assert reach.num_records >= len(records.kept)
    assert reach.num_unreadable == 0
    assert 0 <= reach.first_s <= reach.last_s
