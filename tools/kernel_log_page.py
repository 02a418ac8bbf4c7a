"""The lines of the kernel's log that count, and the table of XIDs, as a page: docs/kernel-log.md."""

from collections.abc import Iterator

from gpu_acceptance.base.text import format_ranges
from gpu_acceptance.inventory.kernel_forms import FORMS
from gpu_acceptance.inventory.xids import NO_REPAIR, Remedy, UnitRules, catalogue, links, meanings
from tools.markdown import MADE_BY, cell

_HEAD = f"""# The kernel's log

{MADE_BY} Validations: [`kernel_log`](limits.md#kernel_log); what to do: [remedies](remedies.md).

## Lines

Lines of one event are one record, in whatever order they come. Any of them may state the severity; the worst one holds. A line of detail
without its head is in doubt, as is a line that looks like one of these and has another form: the run is INCOMPLETE unless it is REJECTED.
So are a CPU that stands still, an NMI that nobody explains, a file system that became read-only, and a task of the GPU driver that hangs.

| record | line | counts |
|---|---|---|
"""
_KINDS = {
    "xids": "XID of the GPU driver",
    "sxids": "SXid of the NVSwitch driver",
    "lost_gpus": "GPU lost or not started",
    "pcie_errors": "PCIe error",
    "host_errors": "error of the host",
    "device_errors": "error of a GPU or network card",
    "devices": "devices at boot",
}
_XIDS = """
## XIDs

Source: [{title}]({url}), {version}. The table is [xids.yaml](../src/gpu_acceptance/inventory/xids.yaml). A number that is not listed
counts. XID 154 has the remedy that its line names. During a run every XID counts
([`counters.xids`](limits.md#counters)), but a link event (144 to 149) by its line in this log: without it that figure has no value.

| XID | name | remedy | counts | advice |
|---|---|---|---|---|
"""
_LINKS = """
## XIDs 144 to 149: severity and error status

These lines say Fatal or Nonfatal. A fatal one counts. A non-fatal one counts only where the table below resets the GPU;
an error status that a unit of the table does not have is in doubt.

| XID | unit | no repair | restart the application | reset the GPU |
|---|---|---|---|---|
"""


def kernel_log_page() -> str:
    """docs/kernel-log.md."""
    source = catalogue()
    head = _XIDS.format(title=source.title, url=source.url, version=source.version)
    return "".join([_HEAD, *_lines(), head, *_xids(), _LINKS, *_links()])


def _lines() -> Iterator[str]:
    for form in FORMS:
        yield f"| {_KINDS[form.kind]} | `{form.example}` | {cell(form.counts)} |\n"


def _xids() -> Iterator[str]:
    rows: dict[tuple[str, Remedy, str], list[int]] = {}
    for number, meaning in sorted(meanings().items()):
        rows.setdefault((meaning.name, meaning.remedy, meaning.advice), []).append(number)
    for (name, remedy, advice), numbers in rows.items():
        counts = "no" if remedy in NO_REPAIR else "yes"
        yield f"| {format_ranges(numbers, ', ')} | {cell(name)} | {cell(str(remedy))} | {counts} | {cell(advice)} |\n"


def _links() -> Iterator[str]:
    for number, units in links().items():
        for unit, rules in units.items():
            yield f"| {number} | `{unit}` | {' '.join(rules.IGNORE)} | {' '.join(rules.RESTART_APPLICATION)} | {_resets(rules)} |\n"


def _resets(rules: UnitRules) -> str:
    tests = [f"{' '.join(one.statuses)} if information & {one.mask} = {one.value}" for one in rules.reset_if]
    return "; ".join(filter(None, [" ".join(rules.RESET_GPU), *tests]))
