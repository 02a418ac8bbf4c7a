"""The kernel's log as it is read: each kind of message is in one list, and nothing that is in doubt is left out."""

import pytest
from host_root import as_nobody, reachable_root
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import kernel_log
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.kernel_forms import FORMS
from gpu_acceptance.inventory.kernel_forms import WORDS as WORDS_THAT_ARE_READ
from gpu_acceptance.inventory.kernel_lines import read_line
from gpu_acceptance.inventory.kernel_log import KernelLog
from gpu_acceptance.inventory.kernel_records import HostError, LostGpu, Message, PcieError, SXid, Xid

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
    ("mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 5: bea0000000000108", "machine check", "fatal"),
    ("{1}[Hardware Error]: event severity: corrected", "firmware", "corrected"),
    ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 page:0x12345 offset:0x0)", "memory", "corrected"),
    ("EDAC MC1: 2 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0", "memory", "uncorrected"),
    ("EDAC DEVICE0: UE: L2 instance: cpu0 block: L2_0 'ECC'", "machine check", "uncorrected"),
    (
        *("mce: [Hardware Error]: TSC 0 ADDR ffffffa9e0b2c0 MISC d012000100000000", "machine check"),
        Missing(Why.NOT_THERE, "the line names no severity"),
    ),
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
        *(
            (line, "pcie_errors", PcieError(bus_id, severity, 1.0, line, gpus=(bus_id,) if line.startswith("nvidia") else ()))
            for line, bus_id, severity in PCIE
        ),
        *((line, "host_errors", HostError(1.0, line, kind, severity)) for line, kind, severity in HOST),
        *((line, "unreadable", Message(1.0, line)) for line in UNKNOWN),
        *((line, "", None) for line in OTHERS),
    ],
)
def test_a_line_is_in_one_list_or_in_none(line, name, message, tmp_path):
    found = log(tmp_path, line)
    lists = {one: messages for one in KernelLog.__dataclass_fields__ if isinstance(messages := getattr(found, one), tuple)}
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
    found = read_line(1.0, line)
    assert found is None or (found.kind in {"devices", *KernelLog.__dataclass_fields__} and found.text == line)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.example[:40])
def test_the_example_of_each_form_is_read_as_that_form(form):
    found = read_line(1.0, form.example)
    assert (found.kind, found.role) == (form.kind, form.role)
    assert any(word in form.example.encode() for word in WORDS_THAT_ARE_READ)


def test_this_machine():
    found = kernel_log.read()
    if isinstance(found.reach, Missing):
        assert everything(found) == {found.reach}
    else:
        assert not any(isinstance(answer, Missing) for answer in everything(found))
