"""The kernel's log as /dev/kmsg gives it. The format: Linux Documentation/ABI/testing/dev-kmsg."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import kernel_log
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.kernel_log import Reach, drain, split_records

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
    assert records.reach == Reach(
        first_sequence=0,
        first_s=0.0,
        last_s=5.690716,
        num_records=4,
        num_lost=0,
        num_unreadable=0,
        is_cut_short=False,
        is_since_boot=True,
    )


def test_only_records_with_one_of_the_words_are_kept():
    assert [text for _, text in split_records(LOG, (b"NET:", b"nowhere")).kept] == [b"NET: Registered protocol family 10"]
    assert split_records(LOG, (b"nowhere",)).kept == ()


def test_what_user_space_wrote_is_not_the_kernels():
    """Facility 1, and 3: the kernel gives facility 0 to nobody."""
    forged = b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    for priority in (b"12", b"30"):
        assert split_records(BOOT + priority + b",1,1,-;" + forged, (b"Xid",)).kept == ()
    assert len(split_records(BOOT + b"4,1,1,-;" + forged, (b"Xid",)).kept) == 1


def test_a_log_whose_start_was_overwritten_is_not_since_boot():
    reach = split_records(b"6,2159,17200827698,-;br0: port 2(port1) entered disabled state\n").reach
    assert (reach.first_sequence, reach.first_s, reach.is_since_boot) == (2159, 17200.827698, False)


def test_records_that_are_missing_in_between_are_counted():
    reach = split_records(BOOT + b"6,5,100,-;a\n6,6,200,-;b\n").reach
    assert (reach.num_records, reach.num_lost, reach.is_since_boot) == (3, 4, False)


def test_lines_that_are_no_records_are_counted():
    reach = split_records(BOOT + b"[    0.000000] Command line: quiet\n6,x,1,-;a\n").reach
    assert (reach.num_records, reach.num_unreadable, reach.is_since_boot) == (1, 2, False)


def test_where_there_is_no_record_there_is_no_log():
    assert split_records(b"") is None
    assert split_records(b"Nov 20 07:09:01 node kernel: NVRM: Xid\n") is None


def reader(answers):
    """What os.read answers, one after the other; an exception is raised."""

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
    monkeypatch.setattr(kernel_log, "_MOST_BYTES", 100)
    text, is_cut_short = drain(lambda: BOOT)
    assert is_cut_short
    assert len(text) == 2 * len(BOOT)
    assert not split_records(text, is_cut_short=True).reach.is_since_boot


def test_a_log_that_grows_faster_than_it_is_read_is_cut_short(monkeypatch):
    monkeypatch.setattr(kernel_log, "_MOST_S", 0.01)
    assert drain(lambda: b"6,1,1,-;a\n")[1]


def test_a_device_that_waits_for_more_does_not_hold_us(tmp_path):
    """A pipe answers EAGAIN as the device does, as long as somebody holds its other end."""
    os.mkfifo(tmp_path / "kmsg")
    writer = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, LOG)
        assert kernel_log.read_kmsg(tmp_path / "kmsg", (b"NET:",)) == split_records(LOG, (b"NET:",))
    finally:
        os.close(writer)


def test_what_cannot_be_read_is_missing(tmp_path):
    path = tmp_path / "kmsg"
    assert kernel_log.read_kmsg(path, ()) == Missing(Why.NOT_THERE, str(path))
    path.touch()
    assert kernel_log.read_kmsg(path, ()) == Missing(Why.UNREADABLE, f"{path} holds no record of a kernel log: b''")
    path.write_bytes(b"\xff\x00garbage")
    assert kernel_log.read_kmsg(path, ()) == Missing(Why.UNREADABLE, f"{path} holds no record of a kernel log: b'\\xff\\x00garbage'")
    assert kernel_log.read_kmsg(tmp_path, ()) == Missing(Why.UNREADABLE, f"{tmp_path}: Is a directory")


@given(st.lists(st.one_of(st.binary(max_size=60), st.from_regex(rb"[0-9]{1,25},[0-9]{1,25},[0-9]{1,25},-;.{0,20}", fullmatch=True))))
def test_no_bytes_break_it(lines):
    records = split_records(b"\n".join(lines))
    assert records is None or records.reach.num_records > 0


def test_this_machines_log():
    records = kernel_log.read_kmsg(Path("/dev/kmsg"), (b"",))
    if isinstance(records, Missing):
        return
    reach = records.reach
    assert reach.num_records >= len(records.kept)
    assert reach.num_unreadable == 0
    assert 0 <= reach.first_s <= reach.last_s
