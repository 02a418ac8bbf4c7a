"""Lines behind `[Hardware Error]:` - records of the firmware (GHES, BERT), and machine checks with what they are decoded to."""

import re
from collections.abc import Iterable, Iterator, Sequence, Set

from gpu_acceptance.inventory.kernel_forms import CORRECTED, FATAL, UNCORRECTED
from gpu_acceptance.inventory.kernel_lines import MACHINE_CHECK, Line, severity_by_bits, worst_of

# The kernel indents all but the first lines of a record (cper.c), and nothing of a machine check.
_FIRMWARE_FIELD = re.compile(r" {2}.*| *(?:event severity|APEI generic|Hardware error from APEI|It has been corrected)\b.*")
_FACTS = {
    "severity": re.compile(r" *event severity: (\w+).*"),
    "type": re.compile(r" *Error \d+, type: (\w+).*"),
    "section": re.compile(r" *section[_ ]type: (.*)"),
    "device": re.compile(r" *device_id: ([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]).*"),
    "address": re.compile(r" *physical_address: 0x([0-9a-f]+).*"),
    "status": re.compile(r" *aer_uncor_status: 0x([0-9a-f]{1,8}).*"),
    "fatal_bits": re.compile(r" *aer_uncor_severity: 0x([0-9a-f]{1,8}).*"),
    "corrected": re.compile(r" *It has been (corrected) by h/w.*"),
}
_OF_FIRMWARE = {"corrected": CORRECTED, "info": CORRECTED, "recoverable": UNCORRECTED, "fatal": FATAL}  # cper_severity_str


def firmware_records(lines: Sequence[Line]) -> Iterator[Line]:
    """Yield each record of the firmware as one line, and each line of a machine check as it is read.

    The kernel numbers the lines of a record, `{7}[Hardware Error]`. Without a number a new one begins with its severity.
    """
    records: dict[tuple[str, int], list[tuple[Line, dict[str, str]]]] = {}
    unnumbered, vendors = 0, _vendors(lines)
    for line in lines:
        number, text = line.facts.get("record", ""), line.facts["field"]
        if not number and not _FIRMWARE_FIELD.fullmatch(text):
            yield _machine_check(line, vendors)
            continue
        facts = {name: match[1] for name, pattern in _FACTS.items() if (match := pattern.fullmatch(text))}
        unnumbered += not number and "severity" in facts
        records.setdefault((number, 0 if number else unnumbered), []).append((line, facts))
    for record in records.values():
        yield from _sections(record)


def _sections(record: Sequence[tuple[Line, dict[str, str]]]) -> Iterator[Line]:
    """Yield a line for each error of a record: each has a type and a section, and the record the severity of the worst one."""
    parts: list[dict[str, str]] = [{}]
    for _, facts in record:
        if ("type" in facts and "type" in parts[-1]) or ("section" in facts and "section" in parts[-1]):
            parts.append({})
        parts[-1].update(facts)
    of_all = _worst(facts.get("severity", facts.get("corrected", "")) for _, facts in record)
    of_each = [_worst([facts.get("type", "")]) for facts in parts]
    explained = of_all in {"", *of_each} or worst_of(of_each) == worst_of([*of_each, of_all])
    for facts, severity in zip(parts, of_each, strict=True):
        yield _section(record[0][0], facts, severity if severity and explained else of_all)


def _worst(words: Iterable[str]) -> str:
    return worst_of([_OF_FIRMWARE.get(word, "") for word in words])


def _section(first: Line, facts: dict[str, str], severity: str) -> Line:
    section = facts.get("section", "")
    if "PCIe" in section and "device" in facts:
        device = _nvml(facts["device"])
        severity = severity_by_bits(severity, facts.get("status", ""), facts.get("fatal_bits", ""))
        return Line("pcie_errors", "record", first.text, first.at_s, (device,), severity, "", device, "", {})
    if "memory" in section:
        page = int(facts.get("address", "0"), 16) >> 12
        return Line("host_errors", "memory", first.text, first.at_s, (f"page {page:#x}",) if page else (), severity)
    keys = (MACHINE_CHECK,) if "processor" in section else ()
    return Line("host_errors", "record", first.text, first.at_s, keys, severity, facts={} if section else {"no_section": "yes"})


def _nvml(address: str) -> str:
    domain, _, rest = address.partition(":")
    return f"{int(domain, 16):08X}:{rest.upper()}"


# MCi_STATUS: bit 61 uncorrected, 57 the processor's context is corrupt (Intel SDM 3B, 17.3.2.2). Of AMD and Hygon 44 is a deferred error
# and 43 poison: data are lost (asm/mce.h, MCI_STATUS_DEFERRED and MCI_STATUS_POISON); of Intel they belong to a number of corrected errors.
_UNCORRECTED, _CORRUPT, _LOST_DATA = 1 << 61, 1 << 57, 0b11 << 43
_PROCESSOR = re.compile(r" *PROCESSOR (\d{1,3}):.*")
_WITH_LOST_DATA = {"2", "9"}  # vendors, asm/processor.h: X86_VENDOR_AMD, X86_VENDOR_HYGON
_CHECK = re.compile(r" *CPU ?\d+: Machine Check(?: Exception)?: [0-9a-f]+ Bank \d+: ([0-9a-f]{1,16}).*")
_DECODED = re.compile(r".*\bMC\d+_STATUS\[[^\]]*\]: 0x([0-9a-f]{1,16}).*")
_VERDICTS = {
    re.compile(r" *Corrected error, no action required\..*"): CORRECTED,
    re.compile(r" *(?:Deferred error|Uncorrected, software (?:restartable|containable)).*"): UNCORRECTED,
    re.compile(r" *System Fatal error\..*"): FATAL,
}


def _vendors(lines: Sequence[Line]) -> set[str]:
    """Return the vendors of the processors, which the kernel prints with each machine check that it does not decode."""
    return {match[1] for line in lines if (match := _PROCESSOR.fullmatch(line.facts["field"]))}


def _severity_of_check(status: int, vendors: Set[str]) -> str:
    """Return the severity of a status word; an empty text where it depends on the vendor, who is unknown."""
    if status & _UNCORRECTED:
        return FATAL if status & _CORRUPT else UNCORRECTED
    if not status & _LOST_DATA:
        return CORRECTED
    return (UNCORRECTED if vendors & _WITH_LOST_DATA else CORRECTED) if vendors else ""


def _machine_check(line: Line, vendors: Set[str]) -> Line:
    """Return a line of a machine check by its status word, or by what the kernel says about it."""
    text, role, severity = line.facts["field"], "line", ""
    for pattern, verdict in _VERDICTS.items():
        if pattern.fullmatch(text):
            role, severity = "words", verdict
    if match := _CHECK.fullmatch(text):
        role, severity = "check", _severity_of_check(int(match[1], 16), vendors)
    if match := _DECODED.fullmatch(text):  # by the decoder for AMD
        role, severity = "check", _severity_of_check(int(match[1], 16), _WITH_LOST_DATA)
    return Line("host_errors", role, line.text, line.at_s, (MACHINE_CHECK,), severity)
