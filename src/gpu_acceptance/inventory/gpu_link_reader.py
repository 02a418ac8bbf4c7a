"""Asks NVML for the links of a GPU: PCIe, NVLink and its fabric, and whether it reaches its peers."""

from typing import Any
from uuid import UUID

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.gpu import Fabric, NvLink, Pcie, PeerLink
from gpu_acceptance.inventory.gpu_parts import then
from gpu_acceptance.inventory.nvml_asker import Asker, word

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


def pcie_of(asker: Asker, handle: object) -> Pcie:
    return Pcie(
        generation=asker.integer("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        width=asker.integer("nvmlDeviceGetCurrPcieLinkWidth", handle),
        max_generation=asker.integer("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        max_width=asker.integer("nvmlDeviceGetMaxPcieLinkWidth", handle),
        max_device_generation=asker.integer("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
        num_replays=asker.integer("nvmlDeviceGetPcieReplayCounter", handle),
    )


def nvlinks_of(asker: Asker, handle: object) -> Answer[tuple[NvLink, ...]]:
    count = asker.num_links(handle)
    if isinstance(count, Missing):
        return count
    answers = asker.fields(handle, [(field, link) for link in range(count) for field in _OF_LINK])
    return tuple(_nvlink(asker, handle, link, *answers[link * len(_OF_LINK) : (link + 1) * len(_OF_LINK)]) for link in range(count))


def _nvlink(asker: Asker, handle: object, link: int, *fields: Answer[int]) -> NvLink:
    speed_mb_per_s, num_crc_errors, num_replays, num_recoveries = fields
    return NvLink(
        index=link,
        is_active=asker.flag("nvmlDeviceGetNvLinkState", handle, link),
        speed_mb_per_s=speed_mb_per_s,
        remote=asker.word(_REMOTES, "nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
        num_crc_errors=num_crc_errors,
        num_replays=num_replays,
        num_recoveries=num_recoveries,
    )


def fabric_of(asker: Asker, handle: object) -> Fabric:
    info = asker.structure("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV", handle)
    if isinstance(info, Missing):  # an older driver
        info = asker.structure("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV", handle)
    return Fabric(
        state=then(info, lambda info: word(_FABRIC_STATES, info.state)),
        status=then(info, lambda info: "success" if info.status == 0 else str(asker.pynvml.NVMLError(info.status))),
        clique_id=then(info, lambda info: int(info.cliqueId)),
        cluster_uuid=then(info, lambda info: str(UUID(bytes=bytes(info.clusterUuid)))),
        health=then(info, _health),
    )


def _health(info: Any) -> Answer[str]:
    summary = getattr(info, "healthSummary", 0)
    return word(_FABRIC_HEALTH, summary) if summary else Missing(Why.NOT_SUPPORTED)


def peer_link(asker: Asker, source: int, target: int, handles: list[object]) -> PeerLink:
    read, write, nvlink = (
        asker.word(_P2P, "nvmlDeviceGetP2PStatus", handles[source], handles[target], capability) for capability in (0, 1, 2)
    )
    return PeerLink(source, target, read, write, nvlink)
