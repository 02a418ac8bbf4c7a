"""Reader of all facts in gpu.py from NVML. It opens no CUDA context, needs no privilege and changes nothing.

A value that NVML does not give is `Missing` with NVML's own reason. Source: NVML API reference; field ids and constants from nvidia-ml-py.
"""

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any, get_type_hints
from uuid import UUID

from gpu_acceptance.inventory.answer import Answer, Missing, Why, then
from gpu_acceptance.inventory.gpu import (
    Call,
    Clocks,
    Ecc,
    EccCounts,
    Fabric,
    GpuReading,
    GpusReading,
    NvLink,
    Pcie,
    PeerLink,
    Power,
    RetiredPages,
    RowRemapping,
    Temperature,
    Throttling,
    text,
)
from gpu_acceptance.inventory.nvml import Asker, NoNvmlError, library, read_pci_bus_id, read_processes, word

_FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
_FABRIC_HEALTH = {0: "not supported", 1: "healthy", 2: "unhealthy", 3: "limited capacity"}
_REMOTES = {0: "gpu", 1: "npu", 2: "switch", 255: "unknown"}
_P2P = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by regkey",
    5: "not supported",
}
_OF_LINK = (  # in the order of NvLink
    "NVML_FI_DEV_NVLINK_GET_SPEED",
    "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
    "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
    "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
)
_NAMES = {"name", "uuid", "serial"}
_PARTS: dict[str, Callable[..., Any]] = {
    "retired_pages": RetiredPages,
    "clocks": Clocks,
    "power": Power,
    "throttling": Throttling,
    "temperature": Temperature,
    "pcie": Pcie,
}
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


def _spread(values: Any, count: int) -> tuple[Any, ...]:
    """Return values that one call returned together, or as often the reason why there are none."""
    return (values,) * count if isinstance(values, Missing) else tuple(values)


@cache
def _calls_of(kind: object) -> dict[str, Call]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: call for name, hint in hints.items() for call in getattr(hint, "__metadata__", ())}


def _declared(kind: object, asker: Asker, handle: object, named: object = None) -> dict[str, Any]:
    """Ask for the fields that declare a call. `named`: the handle that is asked for names."""
    found: dict[str, Any] = {}
    for name, call in _calls_of(kind).items():
        if call.name.startswith("NVML_FI_"):
            found[name] = asker.field(handle, call.name)
        else:
            found[name] = asker.ask(call.name, named if name in _NAMES else handle, *call.arguments, make=call.make)
    return found


def _nvlinks(asker: Asker, handle: object) -> Answer[tuple[NvLink, ...]]:
    count = asker.num_links(handle)
    if isinstance(count, Missing):
        return count
    answers = iter(asker.fields(handle, [(field, link) for link in range(count) for field in _OF_LINK]))
    return tuple(
        NvLink(
            link,
            asker.ask("nvmlDeviceGetNvLinkState", handle, link, make=bool),
            next(answers),
            asker.word(_REMOTES, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
            *itertools.islice(answers, len(_OF_LINK) - 1),
        )
        for link in range(count)
    )


def _fabric(asker: Asker, handle: object) -> Fabric:
    info = asker.structure("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV", handle)
    if isinstance(info, Missing):  # an older driver
        info = asker.structure("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV", handle)
    health = then(info, lambda info: getattr(info, "healthSummary", 0))
    return Fabric(
        state=then(info, lambda info: word(_FABRIC_STATES, info.state)),
        status=then(info, lambda info: "success" if info.status == 0 else str(asker.pynvml.NVMLError(info.status))),
        clique_id=then(info, lambda info: int(info.cliqueId)),
        cluster_uuid=then(info, lambda info: str(UUID(bytes=bytes(info.clusterUuid)))),
        health=then(health, lambda health: word(_FABRIC_HEALTH, health) if health else Missing(Why.NOT_SUPPORTED)),
    )


def _ecc(asker: Asker, handle: object) -> Ecc:
    sram = asker.structure("c_nvmlEccSramErrorStatus_v1_t", "nvmlDeviceGetSramEccErrorStatus", handle)
    is_on, is_on_after_reboot = _spread(asker.flags("nvmlDeviceGetEccMode", handle), 2)
    return Ecc(
        is_on=is_on,
        is_on_after_reboot=is_on_after_reboot,
        volatile=_ecc_counts(asker, handle, 0),
        aggregate=_ecc_counts(asker, handle, 1),
        sram_threshold_exceeded=then(sram, lambda status: bool(status.bThresholdExceeded)),
    )


def _ecc_counts(asker: Asker, handle: object, counter: int) -> EccCounts:
    """`counter`: 0 volatile, 1 aggregate. Error types: 0 corrected, 1 uncorrected. Places: 7 SRAM, 2 DRAM (NVML's device memory)."""
    return EccCounts(
        *(asker.ask("nvmlDeviceGetMemoryErrorCounter", handle, kind, counter, place, make=int) for place in (7, 2) for kind in (0, 1))
    )


def _remapping(asker: Asker, handle: object) -> RowRemapping:
    rows = asker.ask("nvmlDeviceGetRemappedRows", handle, make=lambda four: (int(four[0]), int(four[1]), bool(four[2]), bool(four[3])))
    histogram = asker.ask(
        "nvmlDeviceGetRowRemapperHistogram",
        handle,
        make=lambda banks: tuple(int(getattr(banks, name)) for name in ("max", "high", "partial", "low", "none")),
    )
    return RowRemapping(*_spread(rows, 4), *_spread(histogram, 5))


def read(uuid: str = "") -> GpusReading:
    """Read all GPUs of this node. With a `uuid`, that GPU and its peer links, and only the names of the others: 8 ranks ask at once."""
    try:
        with library() as pynvml:
            return _read(Asker(pynvml), uuid)
    except NoNvmlError as error:
        return not_read(Missing(Why.NOT_THERE, str(error)))


def read_pcie(uuid: str) -> Pcie:
    """Read the link of one GPU alone, which takes no longer than a copy that keeps the link awake."""
    try:
        with library() as pynvml:
            asker = Asker(pynvml)
            return Pcie(**_declared(Pcie, asker, asker.handle(uuid)))
    except NoNvmlError as error:
        return Pcie(*[Missing(Why.NOT_THERE, str(error))] * 6)


def not_read(why: Missing) -> GpusReading:
    """Return a reading in which everything is missing for this reason."""
    return GpusReading(why, why, why, ())


def _read(asker: Asker, only: str) -> GpusReading:
    count = asker.ask("nvmlDeviceGetCount", make=int)
    driver = asker.ask("nvmlSystemGetDriverVersion", make=text)
    cuda = asker.ask("nvmlSystemGetCudaDriverVersion_v2", make=lambda version: f"{version // 1000}.{version % 1000 // 10}")
    if isinstance(count, Missing):
        return GpusReading(driver, cuda, count, ())
    handles = [asker.ask("nvmlDeviceGetHandleByIndex", index, make=lambda handle: handle) for index in range(count)]
    asked = [not only or asker.ask("nvmlDeviceGetUUID", handle, make=text) == only for handle in handles]
    gpus = tuple(_gpu(asker, index, handle, handle if asked[index] else _OTHERS) for index, handle in enumerate(handles))
    peers = [_peer_link(asker, handles, *pair) for pair in itertools.permutations(range(count), 2) if asked[pair[0]]]
    return GpusReading(driver, cuda, gpus, tuple(peers))


def _peer_link(asker: Asker, handles: list[object], source: int, target: int) -> PeerLink:
    """Read the three capabilities of a pair: read, write, NVLink."""
    return PeerLink(
        source, target, *(asker.word(_P2P, "nvmlDeviceGetP2PStatus", handles[source], handles[target], kind) for kind in (0, 1, 2))
    )


def _gpu(asker: Asker, index: int, named: object, handle: object) -> GpuReading:
    """Read one GPU. `named`: its handle, for its names; `handle`: the same for all other facts, missing where another rank asks."""
    memory = asker.ask("nvmlDeviceGetMemoryInfo", handle, make=lambda info: (int(info.total), int(info.used), int(info.free)))
    total_bytes, used_bytes, free_bytes = _spread(memory, 3)
    mig_is_on, mig_is_on_after_reset = _spread(asker.flags("nvmlDeviceGetMigMode", handle), 2)
    channel_repair_is_pending, tpc_repair_is_pending = _spread(asker.flags("nvmlDeviceGetRepairStatus", handle), 2)
    return GpuReading(
        index=index,
        **_declared(GpuReading, asker, handle, named),
        **{name: kind(**_declared(kind, asker, handle)) for name, kind in _PARTS.items()},
        pci_bus_id=read_pci_bus_id(asker, named),
        virtualization=asker.word(_VIRTUALIZATION, "nvmlDeviceGetVirtualizationMode", handle),
        total_bytes=total_bytes,
        used_bytes=used_bytes,
        free_bytes=free_bytes,
        mig_is_on=mig_is_on,
        mig_is_on_after_reset=mig_is_on_after_reset,
        compute_mode=asker.word(_COMPUTE_MODES, "nvmlDeviceGetComputeMode", handle),
        recovery_action=then(asker.field(handle, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"), lambda value: word(_RECOVERY, value)),
        channel_repair_is_pending=channel_repair_is_pending,
        tpc_repair_is_pending=tpc_repair_is_pending,
        ecc=_ecc(asker, handle),
        remapping=_remapping(asker, handle),
        nvlinks=_nvlinks(asker, handle),
        fabric=_fabric(asker, handle),
        processes=read_processes(asker, handle),
    )
