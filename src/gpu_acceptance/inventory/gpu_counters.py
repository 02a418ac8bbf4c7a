"""Counters of one GPU that only ever rise, read in one go. What rises while a validation runs is a finding about that validation.

Needs no privilege. A call may hang with the driver: supervisor/gpu_watch.py asks from a thread of its own.
Field ids by name: a CUDA 13 header numbers some of them otherwise than an older one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_acceptance.inventory.answer import Answer, Missing, Why
from gpu_acceptance.inventory.nvml import Asker, is_lacking

Counter = tuple[str, str]  # name, and which part of the machine: "link 7", "" for the GPU or the sum over all links

_OF_GPU = {
    "ecc.corrected": "NVML_FI_DEV_ECC_SBE_VOL_TOTAL",
    "ecc.uncorrected": "NVML_FI_DEV_ECC_DBE_VOL_TOTAL",
    "remapping.corrected_rows": "NVML_FI_DEV_REMAPPED_COR",
    "remapping.uncorrected_rows": "NVML_FI_DEV_REMAPPED_UNC",
    "pcie.replays": "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
    "pcie.non_fatal_errors": "NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR",
    "pcie.fatal_errors": "NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR",
    "throttle.sw_power_cap": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP",
    "throttle.sw_thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "throttle.hw_thermal": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "throttle.hw_power_brake": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
}
_OF_LINK = {
    "nvlink.crc_errors": "NVML_FI_DEV_NVLINK_ERROR_DL_CRC",
    "nvlink.replays": "NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY",
    "nvlink.recoveries": "NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY",
}
NAMES = (*_OF_GPU, *_OF_LINK)
ALL_LINKS = 0xFFFFFFFF  # the sum over all links; documented for throughput, answered for errors (H200, driver 580): never trusted alone
_LinkCounter = tuple[str, int]  # name, and which link or all of them
_MOST_XIDS = 1_000  # in one reading; a GPU that is lost may report without end


@dataclass(frozen=True)
class CountersReading:
    """All counters at one moment, and the XIDs since the reading before.

    Of NVLink errors the sum over all links, and those of each link where they were read.
    """

    values: Mapping[Counter, Answer[int]]
    xids: Answer[tuple[int, ...]]


class GpuCounters:
    """The counters of one GPU, from the moment it is made: XIDs are events, and those from before are in the kernel log alone."""

    def __init__(self, pynvml: Any, uuid: str) -> None:
        self._asker = Asker(pynvml)
        self._handle = self._asker.ask("nvmlDeviceGetHandleByUUID", uuid, make=lambda handle: handle)
        self._num_links = self._asker.num_links(self._handle)
        self._sums: dict[Counter, Answer[int]] = {}  # as they were when each link was last read
        self._told: set[_LinkCounter] = set()
        self._lacking: dict[_LinkCounter, Answer[int]] = {}
        self._events = self._asker.ask("nvmlEventSetCreate", make=lambda events: events)
        self._registered = self._asker.ask(
            "nvmlDeviceRegisterEvents", self._handle, getattr(pynvml, "nvmlEventTypeXidCriticalError", 8), self._events, make=bool
        )

    def read(self, *, each_link: bool, is_glance: bool = False) -> CountersReading:
        """Each link costs a call into the driver: unless `each_link`, links are read only where a sum has changed or is not told.

        `is_glance`: the reading after it reads the same links again.
        """
        fields = self._asker.fields(self._handle, [(field, 0) for field in _OF_GPU.values()])
        values = {(name, ""): answer for name, answer in zip(_OF_GPU, fields, strict=True)}
        sums = self._of_links([(name, ALL_LINKS) for name in _OF_LINK])
        if each_link or sums != self._sums or any(isinstance(value, Missing) for value in sums.values()):
            self._sums = self._sums if is_glance else sums
            values |= self._each_link()
        return CountersReading({**values, **sums}, self._xids())

    def _each_link(self) -> dict[Counter, Answer[int]]:
        """In this order NVML asked the driver once for all three counters of a link (16 ms on an H200, 38 in the other)."""
        if isinstance(self._num_links, Missing):
            return {}
        return self._of_links([(name, link) for link in range(self._num_links) for name in _OF_LINK])

    def _of_links(self, wanted: Sequence[_LinkCounter]) -> dict[Counter, Answer[int]]:
        """What is not supported is asked no more; what was told before, and is not now, is not known."""
        asked = [one for one in wanted if one not in self._lacking]
        answers = dict(zip(asked, self._asker.fields(self._handle, [(_OF_LINK[name], link) for name, link in asked]), strict=True))
        self._told |= {one for one, answer in answers.items() if not isinstance(answer, Missing)}
        self._lacking |= {one: answer for one, answer in answers.items() if is_lacking(answer) and one not in self._told}
        told = {**self._lacking, **answers}
        return {(name, "" if link == ALL_LINKS else f"link {link}"): told[name, link] for name, link in wanted}

    def _xids(self) -> Answer[tuple[int, ...]]:
        if isinstance(self._registered, Missing):
            return self._registered
        xids: list[int] = []
        while len(xids) < _MOST_XIDS:
            try:
                event = self._asker.pynvml.nvmlEventSetWait_v2(self._events, 0)
            except self._asker.pynvml.NVMLError_Timeout:
                return tuple(xids)
            except self._asker.pynvml.NVMLError as error:
                return Missing(Why.UNREADABLE, f"after {len(xids)} XIDs, nvmlEventSetWait_v2: {error}"[:200])
            xids.append(int(event.eventData))
        return tuple(xids)


def unread(reason: str, names: Collection[str] = NAMES) -> CountersReading:
    """What is known where nothing could be read."""
    missing = Missing(Why.UNREADABLE, reason[:200])
    return CountersReading({(name, ""): missing for name in names}, missing)
