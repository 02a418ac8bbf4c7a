"""Reader of all facts in gpu.py from NVML. It opens no CUDA context, needs no privilege and changes nothing.

A value that NVML does not give is `Missing` with NVML's own reason. Source: NVML API reference; field ids and constants from nvidia-ml-py.
"""

import itertools
from collections.abc import Callable, Collection
from dataclasses import is_dataclass
from functools import cache, partial
from typing import Any, get_type_hints
from uuid import UUID

from gpu_acceptance.inventory.answer import Answer, Missing, T, Why, then
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
    Throttling,
    text,
    word,
)
from gpu_acceptance.inventory.nvml import Asker, NoNvmlError, library

_NO_FABRIC = 0  # NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
_FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
# NVML_GPU_FABRIC_HEALTH_SUMMARY_*, and of the mask the first bit of each part that is 1 where it is true. Drivers of the second version of
# the structure have the mask alone.
_FABRIC_HEALTH = {1: "healthy", 2: "unhealthy", 3: "limited capacity"}
_FABRIC_FAULTS = {0: "degraded bandwidth", 2: "route recovery", 4: "route unhealthy", 6: "access timeout recovery"}
_FABRIC_CONFIGURATION = 8  # a part of 4 bits: 0 not supported, 1 none is incorrect, others what is
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
_NAMES = {"name", "uuid", "serial", "pci_bus_id"}
_OTHERS = Missing(Why.NOT_THERE, "only this rank's GPU was asked")


@cache
def _calls_of(kind: object) -> dict[tuple[str, tuple[int, ...]], dict[str, Callable[[Any], Any]]]:
    """Return the calls that the fields of a type declare: by function and arguments, what makes each field of the result."""
    calls: dict[tuple[str, tuple[int, ...]], dict[str, Callable[[Any], Any]]] = {}
    for field, hint in get_type_hints(kind, include_extras=True).items():
        for call in (one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Call)):
            calls.setdefault((call.name, call.arguments), {})[field] = call.make
    return calls


def _made(makes: dict[str, Callable[[Any], Any]], result: object) -> dict[str, Any]:
    return {field: make(result) for field, make in makes.items()}


def _declared(kind: object, asker: Asker, handle: object, named: object = None, only: Collection[str] = frozenset()) -> dict[str, Any]:
    """Ask for the fields that declare a call, each function once. `named`: the handle that is asked for names; `only` for these fields."""
    found: dict[str, Any] = {}
    for (name, arguments), makes in _calls_of(kind).items():
        if only and makes.keys().isdisjoint(only):
            continue
        if name.startswith("NVML_FI_"):
            found |= {field: then(asker.field(handle, name), make) for field, make in makes.items()}
            continue
        asked = named if makes.keys() <= _NAMES else handle
        answers = asker.ask(name, asked, *arguments, make=partial(_made, makes))
        found |= dict.fromkeys(makes, answers) if isinstance(answers, Missing) else answers
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
            asker.nvlink_end(handle, link),
            *itertools.islice(answers, len(_OF_LINK) - 1),
        )
        for link in range(count)
    )


def _fabric(asker: Asker, handle: object) -> Fabric:
    info = asker.structure("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV", handle)
    if isinstance(info, Missing):  # an older driver
        info = asker.structure("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV", handle)
    info = then(info, lambda info: Missing(Why.NOT_SUPPORTED, "NVML knows no fabric here") if info.state == _NO_FABRIC else info)
    return Fabric(
        state=then(info, lambda info: word(_FABRIC_STATES, info.state)),
        status=then(info, lambda info: "success" if info.status == 0 else str(asker.pynvml.NVMLError(info.status))),
        clique_id=then(info, lambda info: int(info.cliqueId)),
        cluster_uuid=then(info, lambda info: str(UUID(bytes=bytes(info.clusterUuid)))),
        health=then(info, lambda info: _fabric_health(int(getattr(info, "healthSummary", 0)), int(info.healthMask))),
    )


def _fabric_health(summary: int, mask: int) -> Answer[str]:
    """Return `healthy`, or all that the summary and the parts of the mask say against it; missing where neither says anything."""
    if not summary and not mask:
        return Missing(Why.NOT_SUPPORTED)
    found = [] if summary in {0, 1} else [word(_FABRIC_HEALTH, summary)]
    found += [fault for bit, fault in _FABRIC_FAULTS.items() if mask >> bit & 3 == 1]
    configuration = mask >> _FABRIC_CONFIGURATION & 15
    found += [f"incorrect configuration ({configuration})"] if configuration > 1 else []
    return ", ".join(found) or "healthy"


def _ecc(asker: Asker, handle: object) -> Ecc:
    """Read ECC. Counters of NVML: 0 volatile, 1 aggregate. Errors: 0 corrected, 1 uncorrected. Places: 7 SRAM, 2 DRAM (device memory)."""
    sram = asker.structure("c_nvmlEccSramErrorStatus_v1_t", "nvmlDeviceGetSramEccErrorStatus", handle)
    counts = [
        [asker.ask("nvmlDeviceGetMemoryErrorCounter", handle, kind, counter, place, make=int) for place in (7, 2) for kind in (0, 1)]
        for counter in (0, 1)
    ]
    return Ecc(
        **_declared(Ecc, asker, handle),
        volatile=EccCounts(*counts[0]),
        aggregate=EccCounts(*counts[1]),
        sram_threshold_exceeded=then(sram, lambda status: bool(status.bThresholdExceeded)),
    )


def read(uuid: str = "") -> GpusReading:
    """Read all GPUs of this node. With a `uuid`, that GPU and its peer links, and only the names of the others: 8 ranks ask at once."""
    try:
        with library() as pynvml:
            return _read(Asker(pynvml), uuid)
    except NoNvmlError as error:
        return not_read(Missing(Why.NOT_THERE, str(error)))


def read_pcie(uuid: str) -> Pcie:
    """Read the link of one GPU alone, which takes no longer than a copy that keeps the link awake."""
    return _of_one(uuid, lambda asker, handle: Pcie(**_declared(Pcie, asker, handle)))


def read_clocks(uuid: str) -> tuple[Clocks, Answer[tuple[str, ...]]]:
    """Read the clocks of one GPU alone, and the reasons that hold them down, while the GPU works."""

    def read_both(asker: Asker, handle: object) -> tuple[Clocks, Answer[tuple[str, ...]]]:
        return Clocks(**_declared(Clocks, asker, handle)), _declared(Throttling, asker, handle, only={"reasons"})["reasons"]

    return _of_one(uuid, read_both)


def _of_one(uuid: str, read_it: Callable[[Asker, object], T]) -> T:
    try:
        with library() as pynvml:
            asker = Asker(pynvml)
            return read_it(asker, asker.handle(uuid))
    except NoNvmlError as error:
        return read_it(Asker(None), Missing(Why.NOT_THERE, str(error)))


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
    ask = partial(asker.ask, "nvmlDeviceGetP2PStatus", handles[source], handles[target], make=partial(word, _P2P))
    return PeerLink(source, target, *(ask(kind) for kind in (0, 1, 2)))


def _gpu(asker: Asker, index: int, named: object, handle: object) -> GpuReading:
    """Read one GPU. `named`: its handle, for its names; `handle`: the same for all other facts, missing where another rank asks."""
    special: dict[str, Any] = {"ecc": _ecc(asker, handle), "nvlinks": _nvlinks(asker, handle), "fabric": _fabric(asker, handle)}
    parts: dict[str, Any] = {
        name: kind(**_declared(kind, asker, handle))
        for name, kind in get_type_hints(GpuReading).items()
        if isinstance(kind, type) and is_dataclass(kind) and name not in special
    }
    return GpuReading(index=index, **_declared(GpuReading, asker, handle, named), **parts, **special)
