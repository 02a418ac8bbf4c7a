"""A stand-in for libnvidia-ml.so below nvidia-ml-py: functions that write where the C library would, with the values of a real H200.

The values are those that `nvidia-smi -q -x` showed of an idle H200 (SXM) in a virtual machine; serials and UUIDs are made up.
"""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pynvml

SUCCESS = 0
GiB, MiB = 2**30, 2**20
Function = Callable[..., int]


def out(*values: object) -> Function:
    """Writes one value into each pointer argument, in their order."""

    def function(*arguments: Any) -> int:
        for target, value in zip(_pointers(arguments), values, strict=True):
            target.value = value
        return SUCCESS

    return function


def fill(**members: object) -> Function:
    """Writes the members of the structure it is given."""

    def function(*arguments: Any) -> int:
        (target,) = _pointers(arguments)
        for name, value in members.items():
            setattr(target, name, value)
        return SUCCESS

    return function


def string(value: str) -> Function:
    """Writes a text into the buffer it is given; `{}` in it is the number of the GPU, from 1."""

    def function(device: Any, buffer: Any, *_size: object) -> int:
        buffer.value = value.format(ctypes.cast(device, ctypes.c_void_p).value).encode()
        return SUCCESS

    return function


def fails(code: int) -> Function:
    return lambda *_arguments: code


def by(*choices: tuple[tuple[int, ...], object]) -> Function:
    """Returns values by the plain arguments after the device: `by(((1,), 345), ((2,), 3201))`."""
    table = dict(choices)

    def function(_device: object, *arguments: Any) -> int:
        key = tuple(int(getattr(one, "value", one)) for one in arguments if not hasattr(one, "_obj"))
        if key not in table:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return out(table[key])(_device, *arguments)

    return function


def processes(*found: tuple[int, int]) -> Function:
    def function(_device: object, count: Any, array: Any) -> int:
        if array is None:
            count._obj.value = len(found)
            return int(pynvml.NVML_ERROR_INSUFFICIENT_SIZE) if found else SUCCESS
        count._obj.value = len(found)
        for place, (pid, used) in enumerate(found):
            array[place].pid, array[place].usedGpuMemory = pid, used
        return SUCCESS

    return function


UUIDS = tuple(f"GPU-0000000{n}-0000-4000-8000-00000000000{n}" for n in (1, 2))
NUM_LINKS, ALL_LINKS = 18, 0xFFFFFFFF


def fields(values: dict[str, int], changed: dict[tuple[str, int], int] | None = None, refused: dict[str, int] | None = None) -> Function:
    """Values by the name of their constant; a field that is not named is not supported. Of all links together: their sum.

    `changed`: of one scope, by name and scope. `refused`: the code that a field is answered with, by name.
    """
    codes = {getattr(pynvml, name): code for name, code in (refused or {}).items()}
    by_scope = {(getattr(pynvml, name), scope): value for (name, scope), value in (changed or {}).items()}
    by_number = {getattr(pynvml, name): value for name, value in values.items()}

    def function(_device: object, count: Any, array: Any) -> int:
        for one in array._obj[: int(getattr(count, "value", count))]:
            one.nvmlReturn = codes.get(one.fieldId, SUCCESS if one.fieldId in by_number else pynvml.NVML_ERROR_NOT_SUPPORTED)
            one.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            in_all = NUM_LINKS if one.scopeId == ALL_LINKS else 1
            one.value.ullVal = by_scope.get((one.fieldId, one.scopeId), in_all * by_number.get(one.fieldId, 0))
        return SUCCESS

    return function


def _pointers(arguments: tuple[Any, ...]) -> Iterator[Any]:
    return (one._obj for one in arguments if hasattr(one, "_obj"))


def _handle(index: Any, device: Any) -> int:
    """The pointer to a device is its number; it is never followed."""
    ctypes.cast(device, ctypes.POINTER(ctypes.c_void_p)).contents.value = index.value + 1
    return SUCCESS


FIELDS = {
    "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION": 0,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP": 1_500_000_000,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": 0,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": 0,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": 0,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST": 0,
    "NVML_FI_DEV_POWER_INSTANT": 79_940,
    "NVML_FI_DEV_MEMORY_TEMP": 35,
    "NVML_FI_DEV_NVLINK_LINK_COUNT": 18,
    "NVML_FI_DEV_NVLINK_GET_SPEED": 26_562,
    "NVML_FI_DEV_NVLINK_ERROR_DL_CRC": 0,
    "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY": 2,
    "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY": 0,
}
COUNTERS = {
    "NVML_FI_DEV_ECC_SBE_VOL_TOTAL": 1,
    "NVML_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
    "NVML_FI_DEV_REMAPPED_COR": 0,
    "NVML_FI_DEV_REMAPPED_UNC": 0,
    "NVML_FI_DEV_PCIE_REPLAY_COUNTER": 0,
    "NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR": 0,
    "NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR": 0,
}


class EventQueue:
    """XIDs that wait to be heard."""

    def __init__(self) -> None:
        self.xids: list[int] = []

    def wait(self, _events: object, data: Any, _timeout: object) -> int:
        if not self.xids:
            return int(pynvml.NVML_ERROR_TIMEOUT)
        data._obj.eventType, data._obj.eventData = pynvml.nvmlEventTypeXidCriticalError, self.xids.pop(0)
        return SUCCESS


def driver_r595() -> dict[str, Function]:
    """Functions of a driver that has dropped what CUDA 14 drops, as far as it is asked here (NVML API Reference, Deprecation Notices)."""
    dropped = ("nvmlDeviceGetApplicationsClock", "nvmlDeviceGetDefaultApplicationsClock", "nvmlDeviceGetTemperature")
    return {
        "nvmlSystemGetDriverVersion": lambda buffer, _size: string("595.58.03")(1, buffer),
        **dict.fromkeys(dropped, fails(26)),
        "nvmlDeviceGetTemperatureV": fill(temperature=34),
    }


_WORDS = {3: b"Not Supported", 25: b"Argument version mismatch", 26: b"Requested functionality has been deprecated", 27: b"Not Ready"}


def _words(code: int) -> bytes:
    return _WORDS.get(code, b"Unknown Error")


H200: dict[str, Function] = {
    "nvmlErrorString": _words,
    "nvmlInitWithFlags": lambda _flags: SUCCESS,
    "nvmlShutdown": lambda: SUCCESS,
    "nvmlDeviceGetCount_v2": out(2),
    "nvmlDeviceGetHandleByIndex_v2": _handle,
    "nvmlSystemGetDriverVersion": lambda buffer, _size: string("580.159.04")(1, buffer),
    "nvmlSystemGetCudaDriverVersion_v2": out(13000),
    "nvmlDeviceGetName": string("NVIDIA H200"),
    "nvmlDeviceGetUUID": string("GPU-0000000{0}-0000-4000-8000-00000000000{0}"),
    "nvmlDeviceGetSerial": string("165392410000{}"),
    "nvmlDeviceGetBoardPartNumber": string("692-2G520-0282-001"),
    "nvmlDeviceGetVbiosVersion": string("96.00.A5.00.1A"),
    "nvmlDeviceGetInforomImageVersion": string("G520.0282.02.02"),
    "nvmlDeviceGetGspFirmwareVersion": string("580.159.04"),
    "nvmlDeviceGetPciInfo_v3": fill(busId=b"00000000:00:06.0"),
    "nvmlDeviceGetModuleId": out(2),
    "nvmlDeviceGetVirtualizationMode": out(1),
    "nvmlDeviceGetMemoryInfo": fill(total=143_771 * MiB, used=616 * MiB, free=143_155 * MiB),
    "nvmlDeviceGetMigMode": out(0, 0),
    "nvmlDeviceGetRepairStatus": fill(bChannelRepairPending=0, bTpcRepairPending=0),
    "nvmlDeviceGetUnrepairableMemoryFlag_v1": fill(unrepairableMemory=0),
    "nvmlDeviceGetPersistenceMode": out(1),
    "nvmlDeviceGetComputeMode": out(0),
    "nvmlDeviceGetFieldValues": fields({**FIELDS, **COUNTERS}),
    "nvmlDeviceGetHandleByUUID": lambda uuid, device: _handle(ctypes.c_uint(int(uuid.value.decode()[-1]) - 1), device),
    "nvmlEventSetCreate": out(1),
    "nvmlDeviceRegisterEvents": lambda _device, _kinds, _events: SUCCESS,
    "nvmlEventSetWait_v2": EventQueue().wait,
    "nvmlDeviceGetEccMode": out(1, 1),
    "nvmlDeviceGetMemoryErrorCounter": by(*(((kind, counter, place), 0) for kind in (0, 1) for counter in (0, 1) for place in (2, 7))),
    "nvmlDeviceGetSramEccErrorStatus": fill(bThresholdExceeded=0),
    "nvmlDeviceGetRemappedRows": out(0, 0, 0, 0),
    "nvmlDeviceGetRowRemapperHistogram": fill(max=3072, high=0, partial=0, low=0, none=0),
    "nvmlDeviceGetRetiredPages": fails(pynvml.NVML_ERROR_NOT_SUPPORTED),
    "nvmlDeviceGetRetiredPagesPendingStatus": fails(pynvml.NVML_ERROR_NOT_SUPPORTED),
    "nvmlDeviceGetClockInfo": by(((1,), 345), ((2,), 3201)),
    "nvmlDeviceGetMaxClockInfo": by(((1,), 1980), ((2,), 3201)),
    "nvmlDeviceGetApplicationsClock": by(((0,), 1980)),
    "nvmlDeviceGetDefaultApplicationsClock": by(((0,), 1980)),
    "nvmlDeviceGetUtilizationRates": fill(gpu=0, memory=0),
    "nvmlDeviceGetPowerUsage": out(79_780),
    "nvmlDeviceGetPowerManagementLimit": out(700_000),
    "nvmlDeviceGetEnforcedPowerLimit": out(700_000),
    "nvmlDeviceGetPowerManagementDefaultLimit": out(700_000),
    "nvmlDeviceGetPowerManagementLimitConstraints": out(200_000, 700_000),
    "nvmlDeviceGetCurrentClocksEventReasons": out(0x1),
    "nvmlDeviceGetTemperature": by(((0,), 34)),
    "nvmlDeviceGetMarginTemperature": fill(marginTemperature=53),
    "nvmlDeviceGetCurrPcieLinkGeneration": out(5),
    "nvmlDeviceGetCurrPcieLinkWidth": out(16),
    "nvmlDeviceGetMaxPcieLinkGeneration": out(5),
    "nvmlDeviceGetMaxPcieLinkWidth": out(16),
    "nvmlDeviceGetGpuMaxPcieLinkGeneration": out(5),
    "nvmlDeviceGetPcieReplayCounter": out(0),
    "nvmlDeviceGetNvLinkState": out(1),
    "nvmlDeviceGetNvLinkRemoteDeviceType": out(2),
    "nvmlDeviceGetGpuFabricInfoV": fill(state=3, status=0, cliqueId=0, healthMask=0, healthSummary=0),
    "nvmlDeviceGetComputeRunningProcesses_v3": processes(),
    "nvmlDeviceGetP2PStatus": out(0),
}


def install(monkeypatch: Any, **changes: Function | None) -> None:
    """The library for one test; a change replaces a function, None takes it away as an older driver would."""
    functions = {name: function for name, function in {**H200, **changes}.items() if function is not None}

    def pointer(name: str) -> Function:
        if name not in functions:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return functions[name]

    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", pointer)
