"""Lines behind `[Hardware Error]:` - records of the firmware (GHES, BERT), and machine checks with what they are decoded to."""

import re
from collections.abc import Iterable, Iterator, Sequence

from gpu_acceptance.inventory.kernel_forms import CORRECTED, FATAL, UNCORRECTED
from gpu_acceptance.inventory.kernel_groups import severity_by_bits, worst_of
from gpu_acceptance.inventory.kernel_lines import Line

_FIRMWARE_FIELD = re.compile(
    r" *(?:event severity|Error \d+, type|section[_ ]type|fru_|(?:im)?precise tstamp|flags|port_type|version|command|device_id|slot"
    r"|secondary_bus|vendor_id|class_code|serial number|bridge|aer_|TLP Header|physical_address|error_type|error_status|node|APEI generic"
    r"|Hardware error from APEI|It has been corrected)\b.*"
)
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
    unnumbered = 0
    for line in lines:
        number, text = line.facts.get("record", ""), line.facts["field"]
        if not number and not _FIRMWARE_FIELD.fullmatch(text):
            yield _machine_check(line)
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
    return Line("host_errors", "record", first.text, first.at_s, (), severity, facts={} if section else {"no_section": "yes"})


def _nvml(address: str) -> str:
    domain, _, rest = address.partition(":")
    return f"{int(domain, 16):08X}:{rest.upper()}"


# MCi_STATUS: bit 61 uncorrected, 57 the processor's context is corrupt (Intel SDM 3B, 17.3.2.2); AMD's decoder prints the flags.
_CHECK = re.compile(r" *CPU ?\d+: Machine Check(?: Exception)?: [0-9a-f]+ Bank \d+: ([0-9a-f]{1,16}).*")
_DECODED = re.compile(r".*\bMC\d+_STATUS\[([^\]]*)\]: 0x([0-9a-f]{1,16}).*")
_VERDICTS = {
    re.compile(r" *Corrected error, no action required\..*"): CORRECTED,
    re.compile(r" *(?:Deferred error|Uncorrected, software (?:restartable|containable)).*"): UNCORRECTED,
    re.compile(r" *System Fatal error\..*"): FATAL,
}


def _machine_check(line: Line) -> Line:
    """Return a line of a machine check by its status word, or by what the kernel says about it."""
    text, role, severity = line.facts["field"], "line", ""
    for pattern, verdict in _VERDICTS.items():
        if pattern.fullmatch(text):
            role, severity = "words", verdict
    if match := _CHECK.fullmatch(text) or _DECODED.fullmatch(text):
        status, flags = int(match[match.lastindex or 1], 16), match[1] if match.lastindex == 2 else ""
        is_bad = status >> 61 & 1 or "Deferred" in flags
        role, severity = "check", (FATAL if status >> 57 & 1 else UNCORRECTED) if is_bad else CORRECTED
    return Line("host_errors", role, line.text, line.at_s, ("machine check",), severity)
