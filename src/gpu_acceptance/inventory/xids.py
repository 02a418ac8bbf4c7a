"""What each XID means and what to do about it. Pure.

Sources, all NVIDIA's:
    catalogue   "Analyzing Xid Errors with the Xid Catalog" (A100 and later): docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
    archive     "Xid Errors" (older GPUs; possible causes of 1 to 143): docs.nvidia.com/deploy/xid-errors/archive/index.html
    guidelines  "NVIDIA GPU Debug Guidelines": docs.nvidia.com/deploy/gpu-debug-guidelines/index.html
    memory      "NVIDIA GPU Memory Error Management": docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html
    plugin      NVIDIA/k8s-device-plugin, internal/rm/health.go: 13, 31, 43, 45, 68 and 109 are errors of the application

The catalogue has an immediate action, which gets a node back into service, and an investigatory one. The remedy here is the immediate one;
where that is IGNORE and the other is not, it is the other: an acceptance asks whether a node is sound, not whether it can go on. Where
sources disagree, the one that trusts the hardware less holds, and a comment says so.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Remedy(StrEnum):
    IGNORE = "no repair"
    RESTART_APPLICATION = "restart the application"
    RESET_GPU = "reset the GPU"
    REBOOT_NODE = "reboot the node"
    CHECK_LINK = "check the link, its cables and the fabric manager"
    CHECK_SEATING = "check power cables and seating"
    UPDATE_SOFTWARE = "update driver and firmware"
    FIELD_DIAGNOSTICS = "run NVIDIA's field diagnostics"
    CONTACT_SUPPORT = "contact the vendor's support"
    REPLACE = "replace the GPU (RMA)"


@dataclass(frozen=True)
class XidMeaning:
    number: int
    name: str
    remedy: Remedy
    is_application: bool  # mostly an application's own mistake, and the GPU is held to be healthy
    advice: str

    def __str__(self) -> str:
        return f"XID {self.number}, {self.name}: {self.remedy}"


def labels_of(meanings: Iterable[XidMeaning]) -> dict[str, int]:
    """For a figure: how many XIDs ask for which remedy, by its name in lower case."""
    return dict(Counter(meaning.remedy.name.lower() for meaning in meanings))


def remedies_in(labels: Iterable[str]) -> list[Remedy]:
    """What the XIDs behind a figure with these labels ask for."""
    return [remedy for remedy in Remedy if remedy.name.lower() in labels]


def meaning_of(number: int, text: str = "") -> XidMeaning:
    """`text` is the rest of the log line: XID 154 says there what the GPU needs."""
    if number not in MEANINGS:
        return XidMeaning(number, "not in the table", Remedy.CONTACT_SUPPORT, is_application=False, advice=_UNKNOWN)
    meaning = MEANINGS[number]
    if number == _RECOVERY_ACTION and (action := _NEW_ACTION.fullmatch(text)) and action[1] in _ACTIONS:
        return replace(meaning, remedy=_ACTIONS[action[1]], advice="It sums up the XIDs beside it, which say why.")
    return meaning


_UNKNOWN = "In no source of this table: hold it for a fault of the GPU or its driver until NVIDIA's catalogue or the vendor says otherwise."
_RECOVERY_ACTION = 154
_NEW_ACTION = re.compile(r".*recovery action changed from .* to 0x[0-9a-fA-F]+ \(([^)]*)\).*")
_ACTIONS = {  # in the catalogue's words, and in those of newer drivers' logs
    "None": Remedy.IGNORE,
    "Drain and Reset": Remedy.RESET_GPU,
    "GPU Reset Required": Remedy.RESET_GPU,
    "PF FLR": Remedy.RESET_GPU,
    "Node Reboot Required": Remedy.REBOOT_NODE,
    "OS Reboot": Remedy.REBOOT_NODE,
}

# The plugin has 68 and 109 as well: the archive blames hardware or driver for 68, and anything for 109. The catalogue sends 11, 32, 37, 69
# and 80 to the application: the archive does not blame it for any of them, and the catalogue's own text on 32 blames the PCIe link.
_APPLICATION = frozenset({13, 25, 31, 43, 45, 137})

_AGAIN = "if it comes again, contact support"
_UNUSED = "unused since A100 by the catalogue"

_TABLE: dict[Remedy, dict[tuple[int, ...], tuple[str, str]]] = {
    Remedy.IGNORE: {
        (43,): ("GPU stopped processing", "An application hit a fault of its own and was ended."),
        # Alone, with NVSwitch, the catalogue has the fabric manager restarted.
        (45,): (
            "preemptive cleanup",
            "Its process ended, or another XID came first: follow that one; alone, see the fabric manager's log.",
        ),
        (106, 107): ("SMBPBI test message", "Somebody sent it on purpose over the management bus."),
    },
    Remedy.RESTART_APPLICATION: {
        (8,): ("GPU stopped processing", "A channel timed out: driver, application, bus or heat."),
        (11, 25): ("invalid push buffer stream", "The GPU was sent damaged or illegal commands."),
        (13,): (
            "graphics engine exception",
            "Mostly an access out of bounds in a kernel; always on the same GPC and TPC: field diagnostics.",
        ),
        (31,): ("GPU memory page fault", "Mostly an illegal address in a kernel; always on the same GPU: field diagnostics."),
        (32,): ("invalid push buffer stream", "Mostly the quality of the PCIe link: see its replay counter."),
        (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)): ("copy engine exception", f"Hardware or driver: {_AGAIN}."),
        (60,): ("security processor (SEC2) exception", "The catalogue has the software looked at."),
        (68, 83, 84, 88, 89, 96, 97, 98): ("video decoder (NVDEC) exception", f"Hardware or driver: {_AGAIN}."),
        (69,): ("graphics engine class error", f"With an application known to be good: {_AGAIN}."),
        (80,): ("corrupted data sent to the GPU", f"A checksum over commands failed: {_AGAIN}."),
        (82, *range(99, 106)): ("JPEG engine (NVJPG) error", f"Hardware or driver: {_AGAIN}."),
        (86, 139): ("optical flow accelerator (OFA) exception", f"Hardware or driver: {_AGAIN}."),
        (94,): ("contained memory error", "Memory lost data of this one application: see XIDs 48 and 63; reset the GPU when convenient."),
        (137,): ("NVLink privilege error", "Mostly an illegal access to the memory of a peer."),
    },
    Remedy.RESET_GPU: {
        (46,): ("GPU stopped processing", f"The whole GPU timed out: {_AGAIN}."),
        # The guidelines ask for field diagnostics where no 63 or 64 follows.
        (48,): ("double bit ECC error", "Memory lost data: without 63 or 64, or in SRAM above NVIDIA's threshold, run field diagnostics."),
        # By the guidelines; the catalogue: unused, contact support.
        (61,): ("micro-controller (PMU) breakpoint", f"The power management unit stopped: {_AGAIN}."),
        (62,): ("micro-controller (PMU) halt", f"The power management unit halted: {_AGAIN}."),
        # The catalogue says IGNORE; by memory and guidelines the new row is in use only after a reset.
        (63,): ("row remapping or page retirement", "A bad row of memory is replaced at the next reset."),
        (109,): ("context switch timeout", f"Work did not leave the GPU in time: {_AGAIN}."),
        (119, 120): ("system processor (GSP) error", f"It failed or does not answer; after a power cycle, {_AGAIN}."),
        # The catalogue's columns: IGNORE, contact support; its text: a reset has the link trained again.
        (121,): ("C2C link error", "Errors on the link to a Grace CPU were corrected."),
        (140,): ("unrecovered ECC error", f"Memory lost data, and could not be taken out of use: {_AGAIN}."),
        (143,): ("GPU initialization error", f"The GPU did not start: {_AGAIN}."),
        (150,): ("NVLink management engine (MSE) error", f"Fatal in every case that the catalogue lists: {_AGAIN}."),
        (155,): ("NVLink taken down by software", "Find out who took it down, if nobody meant to."),
        (156,): ("resource retirement", "A damaged unit of the GPU is taken out of use at the next reset."),
        (158,): ("GPU fatal timeout", f"The GPU no longer answers its driver: {_AGAIN}."),
        (159,): ("CHI non-data error", "On a C2C link; other XIDs beside it come first."),
        (171,): ("uncorrectable DRAM error", "It says where the error of XID 48 was: follow XIDs 63 and 64."),
    },
    Remedy.REBOOT_NODE: {
        # By the guidelines (A100 and later); the catalogue: reset the GPU.
        (64,): ("row remapping or page retirement failed", "A bad row of memory is still in use; with a remapping failure in NVML: RMA."),
        (79,): ("GPU has fallen off the bus", f"It does not answer over PCIe: link, power, seating, or the GPU itself; {_AGAIN}."),
        # By the guidelines where MIG is off; catalogue and archive: reset the GPU.
        (95,): ("uncontained memory error", "Memory lost data of several applications: none may go on before."),
        # By the catalogue's text, and the archive's, a cold reset; the catalogue's column: reset the GPU.
        (110,): ("security fault", f"Power it off; rare without a hardware failure: {_AGAIN}."),
        (151,): ("key rotation error", "Confidential computing: it is the virtual machine that is to be restarted."),
    },
    Remedy.CHECK_LINK: {
        (74,): ("NVLink error", "Needs a reset as well; the fault may lie at the other end: see the XIDs of the peers and the SXids."),
        (136,): ("NVLink training failed", "Reset the GPU; if it comes again, have the link's signal examined."),
        tuple(range(144, 150)): (
            "NVLink 5 error",
            "The line says Fatal or Nonfatal; decode it by the catalogue's sheet on XIDs 144 to 150.",
        ),
    },
    Remedy.CHECK_SEATING: {(54,): ("auxiliary power is not connected", "The board misses a power cable, or sits badly.")},
    Remedy.UPDATE_SOFTWARE: {(78,): ("vGPU start error", "The drivers of host and guest, or the vGPU type and its guest, do not match.")},
    Remedy.FIELD_DIAGNOSTICS: {
        # By the guidelines; the catalogue: IGNORE, contact support.
        (92,): ("high rate of single bit ECC errors", "They are corrected, but there are too many of them."),
        (172,): ("uncorrectable SRAM error", "It says where the error of XID 48 was: reset; above NVIDIA's threshold: RMA."),
    },
    Remedy.REPLACE: {(165,): ("power smoothing: lifetime exhausted", "Where power must not swing; elsewhere the GPU goes on without it.")},
    Remedy.CONTACT_SUPPORT: {
        (14,): ("fake error", "Somebody injected it from user space: ask who, and why."),
        (37, 38): ("driver firmware error", "The firmware that switches contexts hung, or was asked for what it does not know."),
        (44,): ("fault during context switch", "By the archive a fault of the driver."),
        (47, 65, 73, 142): ("video encoder (NVENC) error", "Hardware or driver."),
        (56,): ("display engine error", f"Hardware or driver; {_UNUSED}."),
        (57,): ("error programming the memory interface", f"Hardware, driver or memory; {_UNUSED}."),
        (58,): ("unstable memory interface", f"Hardware or driver; {_UNUSED}."),
        (66, 67): ("illegal access by driver", "Driver or application."),
        (81,): ("VGA subsystem error", f"Hardware; {_UNUSED}."),
        (93,): ("InfoROM wear limit", "Somebody set a limit on writes with nvflash, which also clears it."),
        # The guidelines have the GPU reset after 123.
        (122, 123, 124): ("flash (SPI) access failed", f"Hardware or driver; {_UNUSED}."),
        (125,): ("InfoROM file system failure", f"The board's own data are damaged; {_UNUSED}."),
        (141,): ("CUDA fast path error", "The catalogue says no more."),
        (152, 153): ("deep learning accelerator error", "By the catalogue of no GPU from A100 to GB200."),
        (_RECOVERY_ACTION,): ("GPU recovery action changed", "Its line says what the GPU needs, in words not known here."),
        (157,): ("resource retirement failed", "No spare is left: the fault stays and will be met again."),
        # The catalogue has the software looked at; by memory, 160 says that memory is marked for repair.
        (160, 161): ("channel retirement", "Memory is marked for repair (160), or could not be (161)."),
        # From here on the catalogue has no action.
        (162, 163): ("power smoothing turned on or off", "163 comes from heat or a timeout."),
        (164,): ("power smoothing: little lifetime left", "Watch how power swings."),
        (166, 170): ("NVLink encryption error", "Confidential computing only."),
        (167,): ("PCIe fatal timeout", "See the kernel's PCIe errors of the GPU and of the ports above it."),
        (168,): ("reduced GPU memory", "Errors in protected memory; expected only with ECC off: turn it on."),
        (169,): ("micro-controller (SEC2) halt", "The security processor halted."),
        # Newer than the catalogue read for this table; named in leptonai/gpud, components/accelerator/nvidia/xid/xid.go.
        (173,): ("C2C fatal link failure", "The link to a Grace CPU failed."),
    },
}

MEANINGS: Mapping[int, XidMeaning] = {
    number: XidMeaning(number, name, remedy, number in _APPLICATION, advice)
    for remedy, rows in _TABLE.items()
    for numbers, (name, advice) in rows.items()
    for number in sorted(numbers)
}
