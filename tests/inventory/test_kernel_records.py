"""Records of several lines: what each real log counts, and that no order, tear or repetition hides a fault or counts a detail twice."""

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kernel_logs import BLOCKS, CARD, DOUBT, GPU, PATH, write_log
from snapshots import changed, healthy_h200, snapshot_of

from gpu_acceptance.inventory import kernel_log
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.kernel_records import OLD_SNAPSHOT, DeviceError
from gpu_acceptance.inventory.pci_topology import Place, nvml_bus_id

PLACE = Place(GPU, PATH, 0)
SHOWN = snapshot_of(changed(healthy_h200(), "node.gpus.gpus.0.pci_bus_id", GPU)).node.gpus.gpus[0]
# Order tells apart what the firmware does not number.
IN_ORDER = re.compile("two errors in one record|two records of the firmware|the previous boot")
LINES = sorted({line for _, lines in BLOCKS.values() for line in lines})


@pytest.fixture(scope="module")
def card():
    return snapshot_of(changed(healthy_h200(), "node.infiniband.devices", [CARD])).node.infiniband.devices[0]


@pytest.fixture(scope="module")
def figures(card, tmp_path_factory):
    """Figures that are not 0 of a log with these lines; `?` is a figure without a value."""
    root = tmp_path_factory.mktemp("root")

    def figures_of(lines, **how):
        write_log(root, lines, **how)
        log = kernel_log.read(root)
        found = [*kernel_log.errors(log, SHOWN, PLACE), *kernel_log.elsewhere(log, [SHOWN])]
        found += [*kernel_log.host(log), *kernel_log.nics(log, (card,), (card,))]
        named = {metric.removeprefix("kernel_log."): DOUBT if isinstance(value, Missing) else str(value) for metric, value, *_ in found}
        return {metric: value for metric, value in named.items() if value != "0"}

    return figures_of


@pytest.mark.parametrize("name", BLOCKS)
def test_a_real_log_counts_what_it_says(name, figures):
    wanted, lines = BLOCKS[name]
    assert figures(lines) == wanted
    assert figures(lines, apart_s=0.000_01) == wanted


@pytest.mark.parametrize("name", [name for name in BLOCKS if not IN_ORDER.search(name)])
@given(data=st.data())
def test_no_order_loses_a_fault_or_counts_one_more(name, figures, data):
    wanted, lines = BLOCKS[name]
    found = figures(data.draw(st.permutations(lines)), apart_s=0.001)
    assert {metric: wanted[metric] for metric in wanted if found.get(metric) not in {wanted[metric], DOUBT}} == {}
    assert found.keys() <= wanted.keys()


FIRMWARE = re.compile(r"^(\{\d+\})\[Hardware Error\]", re.MULTILINE)  # lines with one number are one record
# The end of a program a moment after a memory failure belongs to it, also where somebody injected that.
EXPLAINED = {"host: only the end of a program is left", "host: somebody injects a memory failure"}


@given(st.lists(st.sampled_from(sorted(BLOCKS)), min_size=2, max_size=4, unique=True), st.randoms())
def test_a_mixture_of_logs_has_the_faults_of_each(figures, names, order):
    """Lines of each log stay in their order; those of others come between them, and may be the head that a detail in doubt lacks."""
    numbers = [number for name in names for number in {*FIRMWARE.findall("\n".join(BLOCKS[name][1]))}]
    assume(not set(names) >= EXPLAINED and len(numbers) == len(set(numbers)))
    rest = [list(BLOCKS[name][1]) for name in names]
    mixed = []
    while rest := [lines for lines in rest if lines]:
        mixed.append(order.choice(rest).pop(0))
    found = figures(mixed, apart_s=0.001)
    assert [metric for name in names for metric, value in BLOCKS[name][0].items() if value != DOUBT and metric not in found] == []


@given(
    st.lists(st.tuples(st.sampled_from(LINES), st.integers(0, 200), st.integers(1, 200)), max_size=12),
    st.sampled_from(["utf-8", "latin-1"]),
)
def test_torn_lines_break_nothing(figures, torn, encoding):
    figures([line[start : start + length].replace("\n", " ") for line, start, length in torn], encoding=encoding)


@given(st.data())
def test_lines_that_are_printed_again_hide_no_fault(figures, data):
    wanted, lines = BLOCKS[data.draw(st.sampled_from(sorted(BLOCKS)))]
    again = data.draw(st.lists(st.sampled_from(lines), max_size=6))
    assert wanted.keys() <= figures([*lines, *again]).keys()


DETAILS = re.compile(r"SXid .*(?:Severity|Data)|\[ ?\d+\] |aer_layer|aer_uncor|Slot\(|Memory failure|Killing|recovery failed|can't recover")


@pytest.mark.parametrize("name", [name for name, (wanted, lines) in BLOCKS.items() if DOUBT not in wanted.values()])
def test_details_that_are_printed_again_add_nothing(name, figures):
    details = re.compile(
        r"SXid .*(?:Severity|Data)|\[ ?\d+\] |aer_layer|aer_uncor|Slot\(|Memory failure|Killing|recovery failed|can't recover"
    )
    wanted, lines = BLOCKS[name]
    assert figures([line for line in lines for _ in range(2 if details.search(line) else 1)]) == wanted


def test_a_record_hours_later_is_another_one(figures):
    lines = BLOCKS["switches: one fatal event"][1]
    assert figures(lines, apart_s=3600) == {"elsewhere.sxids": "1"}
    assert figures([*lines, *lines], apart_s=1) == {"elsewhere.sxids": "2"}


def test_a_snapshot_of_an_older_version_has_nothing_about_the_drivers_of_cards(card, tmp_path):
    write_log(tmp_path, [])
    log = kernel_log.read(tmp_path)
    ((_, number, *_),) = kernel_log.nics(replace(log, device_errors=OLD_SNAPSHOT), (card,), (card,))
    assert str(number) == "not there (the snapshot is of an older version)"
    ((_, number, *_),) = kernel_log.nics(
        replace(log, device_errors=(DeviceError(nvml_bus_id(card.pci_address), 1.0, "x"),)), (card,), (card,)
    )
    assert number == 1


@pytest.mark.parametrize(("lines", "said"), [([], "0"), (BLOCKS["cards: the driver gives the card up"][1], "unreadable (nearest)")])
def test_where_the_job_s_cards_are_unknown_a_log_without_any_error_is_enough(card, lines, said, tmp_path):
    write_log(tmp_path, lines)
    ((_, number, *_),) = kernel_log.nics(kernel_log.read(tmp_path), Missing(Why.UNREADABLE, "nearest"), (card,))
    assert str(number) == said


XID, SWITCH, PORT = "NVRM: Xid (PCI:0000:1b:00): ", "nvidia-nvswitch3: SXid (PCI:0000:0a:00.0): ", "pcieport 0000:c0:01.0: "
FLOODS = {  # harmless line, line that counts, its figure
    "severity of an NVLink's XID": (
        XID + "145, RLW_TAGSTATE Nonfatal XC0 i0 Link 13 (0x00000008 0x00000001)",
        XID + "145, RLW_SRC_TRACK Fatal XC0 i0 Link 03 (0x00000007 0x00000001)",
        "errors.xids",
    ),
    "action of XID 154": (
        XID + "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        XID + "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        "errors.xids",
    ),
    "fatality of a switch's SXid": (
        SWITCH + "20034, Non-fatal, Link 28 LTSSM Fault Up",
        SWITCH + "20034, Fatal, Link 30 LTSSM Fault Up",
        "elsewhere.sxids",
    ),
    "device that a port blames": (
        PORT + "AER: Uncorrected (Non-Fatal) error received: 0000:c2:00.0",
        PORT + "AER: Uncorrected (Non-Fatal) error received: 0000:c3:00.0",
        "elsewhere.gpus",
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_harmless_messages_hides_none_that_counts(name, figures):
    harmless, bad, metric = FLOODS[name]
    at_boot = [
        "pci 0000:c2:00.0: [15b3:1021] type 00 class 0x020700 PCIe Endpoint",
        "pci 0000:c3:00.0: [10de:2330] type 00 class 0x030200",
    ]
    assert figures([*at_boot, *[harmless] * 100, bad]) == {metric: "1"}
