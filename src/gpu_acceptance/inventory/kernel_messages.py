"""Messages of the kernel's log as they are kept and judged."""

from dataclasses import dataclass

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.kernel_forms import GPUS

OLD_SNAPSHOT = Missing(Why.NOT_THERE, "the snapshot is of an older version")


@dataclass(frozen=True)
class Message:
    """One line of the log. `at_s`: seconds since boot, by the kernel's own clock."""

    at_s: float
    text: str
    about: str = GPUS  # or pcie, host


@dataclass(frozen=True)
class Xid:
    """A message of the GPU driver. `pci_bus_id` is written as in NVML. Meaning of the numbers: xids.yaml."""

    number: int
    pci_bus_id: str
    at_s: float
    pid: Answer[int]  # of the process that owns the channel, if the driver knows it
    process: Answer[str]
    text: str  # the rest of the line


@dataclass(frozen=True)
class SXid:
    """An event of the NVSwitch driver (up to Hopper). Numbers: NVIDIA Fabric Manager User Guide, "NVSwitch SXid Errors"."""

    number: int
    switch: str  # nvidia-nvswitch0
    pci_bus_id: str
    at_s: float
    is_fatal: Answer[bool]
    text: str


@dataclass(frozen=True)
class PcieError:
    """One error on a PCIe link, of a GPU, a network card, or a port above them.

    `pci_bus_id` is the device that reported it or that a port above it names, else that port; `also` are others in its lines.
    """

    pci_bus_id: str
    severity: Answer[str]  # corrected, uncorrected (fatal or not), non-fatal, fatal
    at_s: float
    text: str
    also: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()  # those of these devices that are GPUs by their driver, or by the kernel's list of devices at boot
    gone: str = ""  # the device that the port names, of which no line and no list of devices says what it was


@dataclass(frozen=True)
class LostGpu:
    """A GPU that has fallen off the bus, or did not start, by its driver. XID 79 does not report either where the driver starts."""

    pci_bus_id: str
    at_s: float
    did_not_start: bool = False


@dataclass(frozen=True)
class HostError:
    """An error of the host's memory, CPUs or buses: machine checks, EDAC, records of the firmware."""

    at_s: float
    text: str
    kind: str = "machine check"  # or memory, firmware
    severity: Answer[str] = OLD_SNAPSHOT


@dataclass(frozen=True)
class DeviceError:
    """A fatal error of a device by its own driver."""

    pci_bus_id: str
    at_s: float
    text: str


AnyMessage = Message | Xid | SXid | PcieError | LostGpu | HostError | DeviceError
