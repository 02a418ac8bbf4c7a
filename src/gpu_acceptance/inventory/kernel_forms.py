"""Forms of the kernel's lines about hardware: the one table of what is read, and what each means for the verdict.

Sources: Linux, drivers/pci/pcie/{aer,err,dpc}.c, drivers/pci/hotplug/pciehp_*.c, drivers/firmware/efi/cper.c,
drivers/acpi/apei/ghes.c, drivers/edac/{edac_mc,edac_device,mce_amd}.c, arch/x86/kernel/cpu/mce/core.c, mm/memory-failure.c,
drivers/net/ethernet/{mellanox,broadcom,intel/ice}, drivers/infiniband/hw/{bnxt_re,efa}, drivers/iommu/{intel/dmar,amd/iommu}.c,
drivers/nvme/host/{pci,core}.c, block/blk-core.c, arch/x86/kernel/nmi.c, drivers/thermal/thermal_core.c;
NVIDIA's open kernel modules 570, kernel_rc.c, osinit.c and error_nvswitch.c.
"""

import re
from dataclasses import dataclass
from functools import cached_property

CORRECTED, UNCORRECTED, NON_FATAL, FATAL = "corrected", "uncorrected", "non-fatal", "fatal"
WORST_FIRST = (FATAL, NON_FATAL, UNCORRECTED, CORRECTED)
GPUS, PCIE, HOST = "gpus", "pcie", "host"  # what a line in no known form may be about

_START = ("probe of", "probe with", "inaccessible", "efused to change power state", "giving up")
_HEALTH = ("Health issue", "synd 0x")
# What a driver says of a device that no longer does what it is told, and what else stands in such a line. NVIDIA's NVSentinel has the
# list for mlx5 and EFA: health-monitors/syslog-health-monitor/pkg/nicdriver/config.go, `isFatal`.
_GIVES_UP = {
    "health compromised": "",
    "bad device here": "",
    "Internal error detected": "",
    "PCI slot ": ".*unavailable",
    "health recovery ": "(?:failed|flow aborted)",
    "timeout. Will cause a leak of a command resource": "",  # mlx5: also its command that recovered says timeout
    "FW STALL Detected": "",  # bnxt_re
    "Abandoning msg ": ".* due to firmware status",  # bnxt_en
    "didn't send any completion for admin cmd": "",  # this and the following ones: efa
    "Wait for completion (polling) timeout": "",
    "Admin queue is closed": "",
    "Reset indication didn't turn ": "",
    "Device isn't ready": "",
    "Rebuild failed, unload and reload driver": "",  # ice
}
WORDS_OF = {  # one of them is in each line of this kind
    "xids": ("Xid",),
    "sxids": ("SXid",),
    "lost_gpus": ("NVRM",),
    "pcie_errors": ("PCIe Bus Error", "AER", "aer_", "DPC", "Slot(", ":    [", "AMD-Vi: Event", "Request device ["),
    "host_errors": (
        *("[Hardware Error]", "EDAC ", "Memory failure", "Injecting memory failure", "MCE", "mce: Unc", "reset reason"),
        *("ritical temperature", "nvme nvme", "critical medium error"),
    ),
    "unreadable": ("NMI", "LOCKUP", "soft lockup", "EXT4-fs", "XFS (", "blocked for more than"),  # all of these are in doubt
    "device_errors": ("atal", "ATAL", *_GIVES_UP, *_START, *_HEALTH),
    "devices": (" class 0x",),
}
WORDS = tuple(word.encode() for words in WORDS_OF.values() for word in words)


@dataclass(frozen=True)
class Form:
    """One form of line. `counts`: what it means for the verdict; it stands with the example in docs/kernel-log.md."""

    kind: str
    role: str
    counts: str
    example: str
    regex: str
    severity: str = ""  # of every such line

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(self.regex)


_BUS = r"(?:PCI:)?(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?P<function>\.[0-7])?"
_SOURCE = r"(?:id=|ID)?(?P<source>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]|[0-9a-fA-F]{4}\b)"
_SLOT = r"(?P<slot>[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"  # of the first domain, which the kernel leaves out
_DEVICE = rf"(?P<driver>\S+) {_BUS}(?::pcie[0-9a-f]+)?: "
# An interface has a state behind its name: "bnxt_en 0000:9a:00.0 (unnamed net_device) (uninitialized): ...".
_DRIVER = rf"(?P<driver>\S+) {_BUS}(?: [^:]+)?: "
DRIVER_GIVES_UP = "|".join(re.escape(word) + rest for word, rest in _GIVES_UP.items())
# Older kernels write the first. A device that does not go to sleep is as good as before.
_NO_POWER = r"[Rr]efused to change power state(?:, currently in D3| from D3\w* to D0)"
_NO_RESET = r"not ready \d+ms after .*; giving up"
_SXID = rf"(?P<switch>nvidia-nvswitch\d+): SXid \({_BUS}\): (?P<number>\d{{1,9}})"
_SEVERITY = r"(?P<severity>(?:Corr|Uncorr)ect(?:ed|able)(?: \((?:Non-)?Fatal\))?)"

# The first form that fits a whole line holds. What is none of them, and looks like one, is in doubt (`_DOUBTFUL`).
FORMS: tuple[Form, ...] = (
    # krcReportXid, under MIG with instances; the catalogue also shows the older form without `PCI:`.
    Form(
        *("xids", "xid", "by its number and, from 144 to 149, its severity"),
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        rf"NVRM: Xid \({_BUS}(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): (?P<number>\d{{1,9}})(?:, *(?P<rest>.*))?",
    ),
    Form(
        *("sxids", "data", "belongs to its head line; 1 is fatal"),
        "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00",
        rf"{_SXID}, Severity (?P<level>\d+) .*",
    ),
    Form(
        *("sxids", "data", "belongs to its head line"),
        "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Data {0x20000000, 0x20000000}",
        rf"{_SXID}, Data .*",
    ),
    Form(
        *("sxids", "head", "if fatal"),
        "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        rf"{_SXID}(?:, *(?P<rest>(?:(?P<fatality>Fatal|Non-fatal)(?=,|$))?.*))?",
    ),
    # Also of a driver that misses the GPU at its start: "NVRM: The NVIDIA GPU 0000:91:00.0\\x0aNVRM: (PCI ID: ..."
    Form(
        *("lost_gpus", "lost", "always"),
        "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
        rf"NVRM: (?:The NVIDIA )?GPU(?: at)? {_BUS}\b.*fallen off the bus.*",
    ),
    Form(
        *("lost_gpus", "init", "always"),
        "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x55:2477)",
        rf"NVRM: GPU {_BUS}: RmInitAdapter failed.*",
    ),
    Form(
        *("lost_gpus", "start", "with the line above, else by itself"),
        "NVRM: GPU 0000:1b:00.0: rm_init_adapter failed, device minor number 0",
        rf"NVRM: GPU {_BUS}: rm_init_adapter failed.*",
    ),
    Form(
        *("lost_gpus", "open", "with the lines above, else by itself"),
        "NVRM: nvidia_open: GPU 0000:1b:00.0: failed",
        rf"NVRM: nvidia_open: GPU {_BUS}: failed.*",
    ),
    # The driver does not take the GPU: nv-pci.c.
    Form(
        *("lost_gpus", "refused", "always"),
        r"NVRM: The NVIDIA GPU 0000:1b:00.0 (PCI ID: 10de:2330)\x0aNVRM: installed in this system is not supported by the",
        rf"NVRM: The NVIDIA GPU {_BUS}\b.*installed in this system.*",
    ),
    Form(
        *("lost_gpus", "region", "always"),
        "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:1b:00.0)",
        rf"NVRM: (?:This PCI I/O region .*NVRM: )?BAR\d+ is \d+M @ 0x[0-9a-f]+ \({_BUS}\).*",
    ),
    Form(
        *("lost_gpus", "refusals", "in doubt, unless other lines name as many GPUs"),
        "NVRM: The NVIDIA probe routine failed for 1 device(s).",
        r"NVRM: (?:The NVIDIA probe routine failed for (?P<refused>\d{1,4}) device.*|This PCI I/O region assigned .*"
        r"|.*[Rr]m_?[Ii]nit_?[Aa]dapter.*failed.*)",
    ),
    # Advanced Error Reporting: the root port's own word first, then the device's.
    Form(
        *("pcie_errors", "notice", "unless corrected, of the device that it names; one error with that device's own line"),
        "pcieport 0000:15:01.0: AER: Uncorrected (Fatal) error received: 0000:1b:00.0",
        rf"{_DEVICE}AER: (?:Multiple )?{_SEVERITY}(?: error(?: message)? received(?: from|:) {_SOURCE})?.*",
    ),
    Form(
        *("pcie_errors", "gone", "belongs to the line above: the device does not answer"),
        "pcieport 0000:15:01.0: AER: can't find device of ID1b00",
        rf"{_DEVICE}AER: (?:can't find device of |found no error details for ){_SOURCE}.*",
    ),
    Form(
        *("pcie_errors", "detail", "unless corrected"),
        "nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)",
        rf"{_DEVICE}(?:AER: )?PCIe Bus Error: severity=(?P<words>[^,]+)(?:, .*)?",
    ),
    Form(
        *("pcie_errors", "status", "by the other lines of its record: the firmware reported it"),
        "nvidia 0000:1b:00.0: AER: aer_status: 0x00004000, aer_mask: 0x00000000",
        rf"{_DEVICE}(?:AER: )?aer_status: 0x(?P<status>[0-9a-f]{{1,8}}).*",
    ),
    Form(
        *("pcie_errors", "uncorrected", "belongs to aer_status: not corrected, and which bits are fatal"),
        "nvidia 0000:1b:00.0: AER: aer_uncor_severity: 0x00062011",
        rf"{_DEVICE}(?:AER: )?aer_uncor_severity: 0x(?P<fatal_bits>[0-9a-f]{{1,8}}).*",
        UNCORRECTED,
    ),
    Form(
        *("pcie_errors", "layer", "belongs to aer_status"),
        "nvidia 0000:1b:00.0: AER: aer_layer=Transaction Layer, aer_agent=Requester ID",
        rf"{_DEVICE}(?:AER: )?aer_layer=.*",
    ),
    Form(
        *("pcie_errors", "bit", "belongs to the lines above; its name says if it was corrected"),
        "nvidia 0000:1b:00.0: AER:    [14] CmpltTO                (First)",
        rf"{_DEVICE}(?:AER: )? *\[ ?\d{{1,2}}\] (?P<bit>.*?) *(?:\(First\))?",
    ),
    Form(
        *("pcie_errors", "aftermath", "as fatal, with the error before it, else by itself"),
        "nvidia 0000:1b:00.0: AER: can't recover (no error_detected callback)",
        rf"{_DEVICE}AER: can't recover.*",
        UNCORRECTED,
    ),
    Form(
        *("pcie_errors", "recovered", "with the error before it, else by itself"),
        "pcieport 0000:15:01.0: AER: device recovery successful",
        rf"{_DEVICE}AER: [Dd]evice recovery successful.*",
        UNCORRECTED,
    ),
    Form(
        *("pcie_errors", "aftermath", "as fatal, with the error before it, else by itself"),
        "pcieport 0000:15:01.0: AER: device recovery failed",
        rf"{_DEVICE}AER: [Dd]evice recovery .*",
        UNCORRECTED,
    ),
    Form(
        *("pcie_errors", "containment", "as fatal, but in doubt where software triggered it"),
        "pcieport 0000:15:01.0: DPC: containment event, status:0x1f01 source:0x0000",
        rf"{_DEVICE}DPC:? containment event, status:0x(?P<trigger>[0-9a-f]{{1,4}})(?:[: ].*)?",
    ),
    Form(
        *("pcie_errors", "reason", "belongs to the line above"),
        "pcieport 0000:15:01.0: DPC: unmasked uncorrectable error detected",
        rf"{_DEVICE}DPC:? (?P<reason>unmasked uncorrectable error|ERR_NONFATAL|ERR_FATAL|RP PIO error|software trigger|reserved error)\b.*",
    ),
    Form(
        *("pcie_errors", "hotplug", "as fatal, unless the kernel ignores it: the port has lost its link"),
        "pcieport 0000:15:01.0: pciehp: Slot(12): Link Down",
        rf"{_DEVICE}(?:(?:pciehp: )?Slot\([^)]*\): (?:Link Down|Card not present|Power fault|Cannot train link|No link)"
        r"|Card not present on Slot\()(?!.*ignored).*",
        UNCORRECTED,
    ),
    # Its own mistake, that of its driver, or of the settings: nobody can tell.
    Form(
        *("pcie_errors", "iommu", "in doubt: the IOMMU refused an access of the device"),
        "DMAR: [DMA Read NO_PASID] Request device [1b:00.0] fault addr 0x7c346000 [fault reason 0x06] PTE Read access is not set",
        rf"(?:DMAR: \[.*\] Request device \[|AMD-Vi: Event logged \[\S+ device=(?:0000:)?){_SLOT}\b.*|{_DEVICE}AMD-Vi: Event logged \[.*",
    ),
    Form(
        # Linux before 5.8 prints nothing else where a decoder is registered, later ones where nobody has handled the event.
        *("host_errors", "info", "in doubt, unless another line near it says what the event was"),
        "mce: [Hardware Error]: Machine check events logged",
        r"mce: \[Hardware Error\]: Machine check events logged",
    ),
    # Records of the firmware (GHES, BERT), and machine checks with what they are decoded to: see kernel_records.
    Form(
        *("host_errors", "firmware", "by the severity and section of its record, or the status of the machine check"),
        "{7}[Hardware Error]: event severity: recoverable",
        r"(?:[\w-]+: )*(?:\{(?P<record>\d{1,10})\})?\[Hardware Error\]:(?P<field>.*)",
    ),
    Form(
        *("host_errors", "memory", "if UE, each page once"),
        "EDAC MC3: 1 UE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1f4ab30 offset:0x0 grain:32)",
        r"EDAC (?!DEVICE|PCI)\S+: (?:\d+ )?(?P<edac>[CU]E)\b.*",
    ),
    Form(
        *("host_errors", "device", "if UE"),
        "EDAC DEVICE0: UE: L2 instance: cpu0 block: L2_0 'ECC'",
        r"EDAC (?:DEVICE|PCI)\d*: (?:\d+ )?(?P<edac>[CU]E)\b.*",
    ),
    Form(
        *("host_errors", "memory", "each page once"),
        "Memory failure: 0x1f4ab30: recovery action for dirty LRU page: Recovered",
        r"(?:Memory failure: |MCE )0x(?P<page>[0-9a-f]{1,16}): .*",
        UNCORRECTED,
    ),
    Form(
        *("host_errors", "injected", "never: somebody tries how memory failures are handled, and that of this page is no fault"),
        "Injecting memory failure for pfn 0x1f4ab30 at process virtual address 0x7f1200000000",
        r"(?:.*: )?Injecting memory failure (?:for|at) pfn (?:0x)?(?P<page>[0-9a-f]{1,16})\b.*",
    ),
    Form(
        *("host_errors", "memory", "each page once"),
        "mce: Uncorrected hardware memory error in user-access at 1f4ab30000",
        r"mce: Uncorrected hardware memory error in user-access at (?P<address>[0-9a-f]{1,16})",
        UNCORRECTED,
    ),
    Form(
        *("host_errors", "killed", "with the error before it, else by itself"),
        "MCE: Killing python3:4711 due to hardware memory corruption fault at 7f0000000000",
        r"(?:mce: )?MCE: Killing .* due to hardware memory corruption.*",
        UNCORRECTED,
    ),
    # Linux 6.16, arch/x86/kernel/cpu/amd.c; other reasons are buttons, watchdogs and software.
    Form(
        *("host_errors", "reset", "if the hardware failed; one error with the records and machine checks of that failure"),
        "x86/amd: Previous system reset reason [0x08000800]: an uncorrected error caused a data fabric sync flood event",
        r"x86/amd: Previous system reset reason \[0x[0-9a-f]{1,8}\]: (?:an uncorrected error|a parity error|.*\bthermal\b).*",
        UNCORRECTED,
    ),
    Form(
        *("host_errors", "fault", "always"),
        "thermal thermal_zone0: critical temperature reached (105 C), shutting down",
        r".*\b[Cc]ritical temperature reached.*",
        FATAL,
    ),
    Form(
        *("host_errors", "disk", "always; each disk once"),
        "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
        r"nvme (?P<disk>nvme\d+): (?:controller is down; will reset|Device not ready; aborting (?:reset|initiali[sz]ation)"
        r"|Disabling device after reset failure|Removing after probe failure).*",
        FATAL,
    ),
    Form(
        *("host_errors", "disk", "always; each disk once"),
        "critical medium error, dev nvme0n1, sector 123456 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
        r"(?:blk_update_request: |print_req_error: )?critical medium error, dev (?P<disk>nvme\d+|sd[a-z]+)\w*,.*",
        UNCORRECTED,
    ),
    # What the kernel and a driver say of a device: drivers/base/dd.c of kernels up to 6.8 and since, drivers/pci/pci.c, mlx5 health.c.
    Form(
        *("device_errors", "probe", "if of the GPU driver, or of a network card that the job uses"),
        "nvidia 0000:1b:00.0: probe with driver nvidia failed with error -1",
        rf"(?P<driver>\S+) {_BUS}: probe with driver \S+ failed with error.*",
        FATAL,
    ),
    Form(
        *("device_errors", "probe", "if of the GPU driver, or of a network card that the job uses"),
        "nvidia: probe of 0000:1b:00.0 failed with error -1",
        rf"(?P<driver>\S+): probe of {_BUS} failed with error.*",
        FATAL,
    ),
    Form(
        *("device_errors", "inaccessible", "if of a GPU, or of a network card that the job uses"),
        "nvidia 0000:1b:00.0: Unable to change power state from D3cold to D0, device inaccessible",
        rf"(?P<driver>\S+) {_BUS}: .*(?:\b(?:device|config space) inaccessible|{_NO_POWER}|{_NO_RESET}).*",
        FATAL,
    ),
    Form(
        *("device_errors", "health", "if of a network card that the job uses, and of severity 0 to 3: EMERGENCY, ALERT, CRITICAL, ERROR"),
        "mlx5_core 0000:9a:00.0: print_health_info:431:(pid 0): Health issue observed, unrecoverable hardware error, severity(2) CRITICAL:",
        rf"{_DRIVER}.*Health issue observed, .*\bseverity\((?P<health>\d{{1,3}})\).*",
    ),
    Form(
        *("device_errors", "syndrome", "if of a network card that the job uses, unless the line above has another severity"),
        "mlx5_core 0000:9a:00.0: print_health_info:424:(pid 0): synd 0x8: unrecoverable hardware error",
        rf"{_DRIVER}.*\bsynd 0x0*[1-9a-f][0-9a-f]*: .*",
    ),
    Form(
        *("device_errors", "driver", "if of a network card that the job uses"),
        "mlx5_core 0000:9a:00.0: poll_health:957:(pid 0): Fatal error 1 detected",
        rf"{_DRIVER}.*(?:(?i:\bfatal\b)|{DRIVER_GIVES_UP}).*",
        FATAL,
    ),
    Form(
        *("device_errors", "driver", "if of a network card that the job uses"),
        "infiniband rdmap16s27: Admin queue is closed",
        rf"infiniband (?P<rdma_device>\S+): .*(?:(?i:\bfatal\b)|{DRIVER_GIVES_UP}).*",
        FATAL,
    ),
    Form(
        *("devices", "class", "never: it tells what each device was at boot"),
        "pci 0000:1b:00.0: [10de:2330] type 00 class 0x030200",
        rf"pci {_BUS}: \[(?P<vendor>[0-9a-f]{{4}}):[0-9a-f]{{4}}\] .*class 0x(?P<class>[0-9a-f]{{4}}).*",
    ),
)
