"""The kernel's log: records of /dev/kmsg, and messages about GPUs, switches, PCIe and the host."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from host_root import as_nobody, reachable_root
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import kernel_log
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.kernel_log import KernelLog, LostGpu, Message, PcieError, Reach, SXid, Xid, drain, split_records

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
    monkeypatch.setattr(kernel_log, "_MOST_BYTES", 100)
    text, is_cut_short = drain(lambda: BOOT)
    assert is_cut_short
    assert len(text) == 2 * len(BOOT)
    assert not split_records(text, is_cut_short=True).reach.is_since_boot


def test_a_log_that_grows_faster_than_it_is_read_is_cut_short(monkeypatch):
    monkeypatch.setattr(kernel_log, "_MOST_S", 0.01)
    assert drain(lambda: b"6,1,1,-;a\n")[1]


def test_a_device_that_waits_for_more_does_not_hold_us(tmp_path):
    """A pipe answers EAGAIN as the device does, as long as its other end is open."""
    os.mkfifo(tmp_path / "kmsg")
    writer = os.open(tmp_path / "kmsg", os.O_RDWR | os.O_NONBLOCK)
    try:
        os.write(writer, LOG)
        assert kernel_log.read_kmsg(tmp_path / "kmsg", (b"NET:",)) == split_records(LOG, (b"NET:",))
    finally:
        os.close(writer)


def test_a_log_that_cannot_be_read_is_missing(tmp_path):
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


NONE = Missing(Why.NOT_THERE, "the line names none")


def log(root, *lines, first=0):
    """/dev/kmsg with these lines of the kernel, a second apart."""
    path = root / "dev" / "kmsg"
    path.parent.mkdir(exist_ok=True)
    records = [f"4,{first + at},{at}000000,-;{line}\n" for at, line in enumerate(("Linux version 6.8.0", *lines))]
    path.write_text("".join(records), encoding="utf-8")
    return kernel_log.read(root)


@pytest.mark.parametrize(
    ("line", "number", "bus_id", "pid", "process", "text"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            *(79, "00000000:3B:00.0", NONE, NONE, "GPU has fallen off the bus."),
        ),
        # Newer drivers leave out a process that they do not know.
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", 79, "00000000:3B:00.0", NONE, NONE, "GPU has fallen off the bus."),
        (
            "NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005",
            *(109, "00000000:CB:00.0", 1797828, "pt_main_thread", "Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005"),
        ),
        # Drivers up to 470 name no process beside the pid.
        (
            "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
            *(63, "00000000:10:1C.0", 1896, NONE, "Row Remapper: New row marked for remapping, reset gpu to activate."),
        ),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "00000000:03:00.0", NONE, NONE, "Channel 00000001"),
        # Under MIG.
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
            *(94, "00000000:01:00.0", 7194, NONE, "Contained: CE User Channel (0x9). RST: No, D-RST: No"),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception",
            *(13, "00000000:3B:00.0", 9, "a", "Graphics Exception"),
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)",
            *(145, "00000018:01:00.0", 876767, "ray::WorkerDict", "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)"),
        ),
        (
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            *(154, "00000008:01:00.0", NONE, NONE, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        ),
        ("NVRM: Xid (PCI:10000:00:00): 48, pid=1, name=p", 48, "00010000:00:00.0", 1, "p", ""),  # a domain of a virtual machine on Azure
        ("NVRM: Xid (PCI:0000:3b:00): 999", 999, "00000000:3B:00.0", NONE, NONE, ""),
        # A process may call itself anything; the kernel escapes line breaks.
        (
            r"NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=x\x0aNVRM: Xid (PCI:0000:00:00): 79, Ch 1",
            *(31, "00000000:3B:00.0", 7, r"x\x0aNVRM: Xid (PCI:0000:00:00): 79", "Ch 1"),
        ),
    ],
)
def test_an_xid_line(line, number, bus_id, pid, process, text, tmp_path):
    found = log(tmp_path, line)
    assert found.xids == (Xid(number, bus_id, 1.0, pid, process, text),)
    assert (found.lost_gpus, found.unreadable, found.num_left_out) == ((), (), 0)


SAID_NEITHER = Missing(Why.NOT_THERE, "the line says neither Fatal nor Non-fatal")
SXIDS = [  # number, switch, bus, fatal, text
    (12028, "nvidia-nvswitch3", "c1", False, "Non-fatal, Link 32 egress non-posted PRIV error (First)"),
    (20034, "nvidia-nvswitch0", "c2", True, "Fatal, Link 28 LTSSM Fault Up"),
    (10002, "nvidia-nvswitch2", "c4", SAID_NEITHER, "Severity 5 Engine instance 00 Sub-engine instance 00"),
]
LOST = [
    ("NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", "00000000:91:00.0"),
    ("NVRM: GPU at PCI:0000:91:00 has fallen off the bus.", "00000000:91:00.0"),
    (
        r"NVRM: The NVIDIA GPU 0000:b3:00.0\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\x0a"
        r"NVRM: fallen off the bus and is not responding to commands.",
        "00000000:B3:00.0",
    ),
]
PCIE = [
    ("nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)", "00000000:3B:00.0", "corrected"),
    ("nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (x)", "00000000:3B:00.0", "corrected"),
    ("mlx5_core 0000:1a:00.1: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Inaccessible", "00000000:1A:00.1", "non-fatal"),
    ("nvme 0000:1a:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Inaccessible", "00000000:1A:00.0", "non-fatal"),
    ("nvme 0000:1a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", "00000000:1A:00.0", "fatal"),
    ("pcieport 0000:15:01.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer", "00000000:15:01.0", "fatal"),
    ("nvidia 0000:3b:00.0: PCIe Bus Error: severity=Worse, type=x", "00000000:3B:00.0", Missing(Why.UNREADABLE, "severity=Worse")),
    (  # reported by firmware
        *("nvidia 0000:3b:00.0: AER: aer_status: 0x00000001, aer_mask: 0x0000e000", "00000000:3B:00.0"),
        Missing(Why.NOT_THERE, "the line names no severity"),
    ),
]
HOST = [
    "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 5: bea0000000000108",
    "{1}[Hardware Error]: event severity: corrected",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x12345 offset:0x0)",
    "EDAC MC1: 2 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
]
UNKNOWN = [
    "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
    "NVRM: Xid critical error: 79, details follow",
    "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal",
    "NVRM: a GPU has fallen off the bus",
]
OTHERS = [
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
    "NVRM: GPU at PCI:0000:3b:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
    "xid_watch[80]: I saw NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
]


@pytest.mark.parametrize(
    ("line", "name", "message"),
    [
        *(
            (
                *(f"{switch}: SXid (PCI:0000:{bus}:00.0): {number}, {text}", "sxids"),
                SXid(number, switch, f"00000000:{bus.upper()}:00.0", 1.0, fatal, text),
            )
            for number, switch, bus, fatal, text in SXIDS
        ),
        *((line, "lost_gpus", LostGpu(bus_id, 1.0)) for line, bus_id in LOST),
        *((line, "pcie_errors", PcieError(bus_id, severity, 1.0, line)) for line, bus_id, severity in PCIE),
        *((line, "host_errors", Message(1.0, line)) for line in HOST),
        *((line, "unreadable", Message(1.0, line)) for line in UNKNOWN),
        *((line, "", None) for line in OTHERS),
    ],
)
def test_a_line_is_in_one_list_or_in_none(line, name, message, tmp_path):
    found = log(tmp_path, line)
    lists = {one: getattr(found, one) for one in ("xids", "sxids", "lost_gpus", "pcie_errors", "host_errors", "unreadable")}
    assert {one: messages for one, messages in lists.items() if messages} == ({name: (message,)} if name else {})


def test_a_healthy_log_has_no_xids_and_says_how_far_it_reaches(tmp_path):
    found = log(tmp_path)
    assert found.xids == ()
    assert found.reach.is_since_boot
    assert not log(tmp_path, first=4711).reach.is_since_boot


def test_one_xid_that_repeats_for_ever_does_not_hide_another(tmp_path):
    flood = [f"NVRM: Xid (PCI:0000:3b:00): 13, pid={pid}, name=a, Graphics Exception" for pid in range(300)]
    found = log(tmp_path, *flood, "NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus.", *flood)
    assert [xid.number for xid in found.xids] == [13] * 100 + [79]
    assert found.num_left_out == 500


def test_a_long_text_is_cut_in_the_middle(tmp_path):
    (xid,) = log(tmp_path, "NVRM: Xid (PCI:0000:3b:00): 13, " + "a" * 500 + "z").xids
    assert len(xid.text) <= 300
    assert "[... cut ...]" in xid.text
    assert xid.text.endswith("z")


def everything(found):
    return {getattr(found, name) for name in KernelLog.__dataclass_fields__}


def test_a_log_that_is_not_there_is_missing_and_never_without_xids(tmp_path):
    assert everything(kernel_log.read(tmp_path)) == {Missing(Why.NOT_THERE, str(tmp_path / "dev" / "kmsg"))}


def test_a_log_that_is_garbage_is_missing(tmp_path):
    path = tmp_path / "dev" / "kmsg"
    path.parent.mkdir()
    path.write_text("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    (only,) = everything(kernel_log.read(tmp_path))
    assert only.missing == Why.UNREADABLE
    assert only.detail.startswith(f"{path} holds no record of a kernel log: b'NVRM: Xid (PCI:0000:3b:00)")


def test_a_log_that_may_not_be_read_is_missing():
    with reachable_root() as root:
        log(root, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
        (root / "dev" / "kmsg").chmod(0o000)
        with as_nobody():
            found = kernel_log.read(root)
        assert everything(found) == {Missing(Why.NOT_PERMITTED, str(root / "dev" / "kmsg"))}


WORDS = (
    *("NVRM: ", "Xid ", "(PCI:0000:3b:00", " GPU-I:05", "): ", "79", ", ", "pid=", "'<unknown>'", "name=", "nvidia-nvswitch0: SXid ", ".0"),
    *("GPU ", "fallen off the bus", "nvidia 0000:3b:00.0: ", "PCIe Bus Error: severity=", "aer_status: 0x", "[Hardware Error]"),
)


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=5))).map("".join))
def test_no_line_breaks_it(line):
    parsed = kernel_log._parse(1.0, line)
    assert parsed is None or parsed[0] in KernelLog.__dataclass_fields__


def test_this_machine():
    found = kernel_log.read()
    if isinstance(found.reach, Missing):
        assert everything(found) == {found.reach}
    else:
        assert not any(isinstance(answer, Missing) for answer in everything(found))
