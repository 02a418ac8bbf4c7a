"""Asks NVML for everything that gpu.py names. Opens no CUDA context, needs no privilege, changes nothing.

What NVML would not answer is `Missing` with NVML's own reason. Source: NVML API reference; field ids and constants from nvidia-ml-py.
"""

from dataclasses import replace

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.gpu import GpuReading, GpusReading, Pcie
from gpu_acceptance.inventory.gpu_link_reader import fabric_of, nvlinks_of, pcie_of, peer_link
from gpu_acceptance.inventory.gpu_load_reader import clocks_of, power_of, temperature_of, throttling_of
from gpu_acceptance.inventory.gpu_memory_reader import ecc_of, remapping_of, retired_pages_of
from gpu_acceptance.inventory.gpu_parts import part, then
from gpu_acceptance.inventory.gpu_use import read_processes
from gpu_acceptance.inventory.nvml import NoNvmlError, library
from gpu_acceptance.inventory.nvml_asker import Asker, text, word

_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_VIRTUALIZATION = {0: "none", 1: "pass-through", 2: "vGPU", 3: "host vGPU", 4: "host vSGA"}
_RECOVERY = {
    0: "none",
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain P2P",
    4: "drain and reset",
    5: "recover the IMEX domain",
    6: "reset the bus",
    7: "reboot the system",
}
_OTHERS = Missing(Why.NOT_THERE, "only this rank's GPU was asked")


def read(uuid: str = "") -> GpusReading:
    """All GPUs of this node. With a `uuid` all of that one and its peers, of the others their names alone: 8 ranks ask at once."""
    try:
        with library() as pynvml:
            return _read(Asker(pynvml), uuid)
    except NoNvmlError as error:
        return not_read(Missing(Why.NOT_THERE, str(error)))


def read_pcie(uuid: str) -> Pcie:
    """The link of one GPU alone: it takes no longer than a copy that keeps the link awake."""
    try:
        with library() as pynvml:
            asker = Asker(pynvml)
            return pcie_of(asker, asker.ask("nvmlDeviceGetHandleByUUID", uuid, make=lambda handle: handle))
    except NoNvmlError as error:
        missing = Missing(Why.NOT_THERE, str(error))
        return Pcie(missing, missing, missing, missing, missing, missing)


def not_read(why: Missing) -> GpusReading:
    return GpusReading(why, why, why, ())


def _read(asker: Asker, only: str) -> GpusReading:
    count = asker.integer("nvmlDeviceGetCount")
    driver = asker.text("nvmlSystemGetDriverVersion")
    cuda = asker.ask("nvmlSystemGetCudaDriverVersion_v2", make=lambda version: f"{version // 1000}.{version % 1000 // 10}")
    if isinstance(count, Missing):
        return GpusReading(driver, cuda, count, ())
    handles = [asker.ask("nvmlDeviceGetHandleByIndex", index, make=lambda handle: handle) for index in range(count)]
    asked = [not only or asker.text("nvmlDeviceGetUUID", handle) == only for handle in handles]
    gpus = tuple((_gpu if asked[index] else _named)(asker, index, handle) for index, handle in enumerate(handles))
    pairs = [(source, target) for source in range(count) for target in range(count) if source != target and asked[source]]
    return GpusReading(driver, cuda, gpus, tuple(peer_link(asker, source, target, handles) for source, target in pairs))


def _gpu(asker: Asker, index: int, handle: object) -> GpuReading:
    memory = asker.ask("nvmlDeviceGetMemoryInfo", handle, make=lambda info: (int(info.total), int(info.used), int(info.free)))
    mig = asker.flags("nvmlDeviceGetMigMode", handle)
    repair = asker.flags("nvmlDeviceGetRepairStatus", handle)
    return GpuReading(
        index=index,
        name=asker.text("nvmlDeviceGetName", handle),
        uuid=asker.text("nvmlDeviceGetUUID", handle),
        serial=asker.text("nvmlDeviceGetSerial", handle),
        part_number=asker.text("nvmlDeviceGetBoardPartNumber", handle),
        vbios=asker.text("nvmlDeviceGetVbiosVersion", handle),
        inforom=asker.text("nvmlDeviceGetInforomImageVersion", handle),
        gsp_firmware=asker.text("nvmlDeviceGetGspFirmwareVersion", handle),
        pci_bus_id=_pci_bus_id(asker, handle),
        module_id=asker.integer("nvmlDeviceGetModuleId", handle),
        virtualization=asker.word(_VIRTUALIZATION, "nvmlDeviceGetVirtualizationMode", handle),
        total_bytes=part(memory, 0),
        used_bytes=part(memory, 1),
        free_bytes=part(memory, 2),
        mig_is_on=part(mig, 0),
        mig_is_on_after_reset=part(mig, 1),
        persistence_is_on=asker.flag("nvmlDeviceGetPersistenceMode", handle),
        compute_mode=asker.word(_COMPUTE_MODES, "nvmlDeviceGetComputeMode", handle),
        recovery_action=then(asker.field(handle, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"), lambda value: word(_RECOVERY, value)),
        channel_repair_is_pending=part(repair, 0),
        tpc_repair_is_pending=part(repair, 1),
        has_unrepairable_memory=asker.flag("nvmlDeviceGetUnrepairableMemoryFlag_v1", handle),
        ecc=ecc_of(asker, handle),
        remapping=remapping_of(asker, handle),
        retired_pages=retired_pages_of(asker, handle),
        clocks=clocks_of(asker, handle),
        power=power_of(asker, handle),
        throttling=throttling_of(asker, handle),
        temperature=temperature_of(asker, handle),
        pcie=pcie_of(asker, handle),
        nvlinks=nvlinks_of(asker, handle),
        fabric=fabric_of(asker, handle),
        processes=read_processes(asker, handle),
    )


def _named(asker: Asker, index: int, handle: object) -> GpuReading:
    """Of a GPU that another rank asks."""
    return replace(
        _gpu(asker, index, _OTHERS),
        name=asker.text("nvmlDeviceGetName", handle),
        uuid=asker.text("nvmlDeviceGetUUID", handle),
        serial=asker.text("nvmlDeviceGetSerial", handle),
        pci_bus_id=_pci_bus_id(asker, handle),
    )


def _pci_bus_id(asker: Asker, handle: object) -> Answer[str]:
    return asker.ask("nvmlDeviceGetPciInfo", handle, make=lambda info: text(info.busId))
