"""Asks NVML for what it says of a GPU's memory: errors, rows and pages taken out of use."""

from gpu_acceptance.inventory.gpu import Ecc, EccCounts, RetiredPages, RowRemapping
from gpu_acceptance.inventory.gpu_parts import part, then
from gpu_acceptance.inventory.nvml_asker import Asker


def ecc_of(asker: Asker, handle: object) -> Ecc:
    mode = asker.flags("nvmlDeviceGetEccMode", handle)
    sram = asker.structure("c_nvmlEccSramErrorStatus_v1_t", "nvmlDeviceGetSramEccErrorStatus", handle)
    return Ecc(
        is_on=part(mode, 0),
        is_on_after_reboot=part(mode, 1),
        volatile=_ecc_counts(asker, handle, 0),
        aggregate=_ecc_counts(asker, handle, 1),
        sram_threshold_exceeded=then(sram, lambda status: bool(status.bThresholdExceeded)),
    )


def _ecc_counts(asker: Asker, handle: object, counter: int) -> EccCounts:
    """`counter`: 0 volatile, 1 aggregate. Error types: 0 corrected, 1 uncorrected. Places: 7 SRAM, 2 DRAM (NVML's device memory)."""
    sram_corrected, sram_uncorrected, dram_corrected, dram_uncorrected = (
        asker.integer("nvmlDeviceGetMemoryErrorCounter", handle, kind, counter, place) for place in (7, 2) for kind in (0, 1)
    )
    return EccCounts(sram_corrected, sram_uncorrected, dram_corrected, dram_uncorrected)


def remapping_of(asker: Asker, handle: object) -> RowRemapping:
    rows = asker.ask("nvmlDeviceGetRemappedRows", handle, make=lambda four: (int(four[0]), int(four[1]), bool(four[2]), bool(four[3])))
    histogram = asker.ask(
        "nvmlDeviceGetRowRemapperHistogram",
        handle,
        make=lambda banks: tuple(int(getattr(banks, name)) for name in ("max", "high", "partial", "low", "none")),
    )
    return RowRemapping(
        num_corrected_rows=part(rows, 0),
        num_uncorrected_rows=part(rows, 1),
        is_pending=part(rows, 2),
        has_failed=part(rows, 3),
        num_banks_full=part(histogram, 0),
        num_banks_high=part(histogram, 1),
        num_banks_partial=part(histogram, 2),
        num_banks_low=part(histogram, 3),
        num_banks_none=part(histogram, 4),
    )


def retired_pages_of(asker: Asker, handle: object) -> RetiredPages:
    return RetiredPages(  # causes: 0 several single-bit errors, 1 one double-bit error
        num_single_bit=asker.ask("nvmlDeviceGetRetiredPages", handle, 0, make=len),
        num_double_bit=asker.ask("nvmlDeviceGetRetiredPages", handle, 1, make=len),
        is_pending=asker.flag("nvmlDeviceGetRetiredPagesPendingStatus", handle),
    )
