"""XIDs that NVML reports while a validation runs: none that was heard is lost, and the kernel's log says how bad one of an NVLink is."""

import pynvml
import pytest
from inventory.fake_nvml import UUIDS, EventQueue, install
from kernel_logs import write_log

from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.counters import GpuCounters, Heard

XID = "NVRM: Xid (PCI:0000:00:06): "  # the address of the GPU of fake_nvml
HARMLESS = XID + "145, RLW_TAGSTATE   Nonfatal XC0 i0 Link 13 (0x00000008 0x00000001)"
FATAL = XID + "145, RLW_SRC_TRACK   Fatal XC0 i0 Link 03 (0x00000007 0x00000001)"
UNKNOWN = XID + "145, RLW_TAGSTATE   Nonfatal XC0 i0 Link 13 (0x00000008 0x00000009)"
OTHER = "NVRM: Xid (PCI:0000:1b:00): 145, RLW_TAGSTATE   Nonfatal XC0 i0 Link 13 (0x00000008 0x00000001)"
AMBIGUOUS = "unreadable (XID 145: the kernel's log has several of it, and does not say which one this was)"
NOT_LOGGED = "not there (XID 145: the kernel's log does not have it, and NVML does not tell its severity)"


def heard(monkeypatch, root, xids, *, then=pynvml.NVML_ERROR_TIMEOUT):
    queue = EventQueue()
    queue.xids += xids

    def wait(*arguments):
        return queue.wait(*arguments) if queue.xids else int(then)

    install(monkeypatch, nvmlEventSetWait_v2=wait)
    return GpuCounters(pynvml, UUIDS[0], root).read(each_link=False).xids


def test_what_was_heard_before_an_error_is_kept_with_the_error(monkeypatch, tmp_path):
    lost = heard(monkeypatch, tmp_path, [48], then=pynvml.NVML_ERROR_GPU_IS_LOST)
    assert lost == Heard((48,), Missing(Why.UNREADABLE, "after 1 XIDs: nvmlEventSetWait_v2: GPU is lost"))


@pytest.mark.parametrize(
    ("lines", "xids", "counted", "unread"),
    [
        ([HARMLESS], [145], (), "None"),
        ([HARMLESS] * 150, [145] * 150, (), "None"),
        ([FATAL], [145], (145,), "None"),
        ([HARMLESS, FATAL], [145], (145,), "None"),
        ([HARMLESS, FATAL], [145, 79, 145], (79, 145), "None"),
        ([FATAL, HARMLESS], [145], (), AMBIGUOUS),
        ([UNKNOWN], [145], (), "unreadable (XID 145: RLW_TAGSTATE has no error status 0x00000009)"),
        ([], [145], (), NOT_LOGGED),
        ([OTHER], [145], (), NOT_LOGGED),
        ([HARMLESS], [145, 145], (), NOT_LOGGED),
    ],
)
def test_an_xid_of_an_nvlink_counts_by_its_line_in_the_kernel_log(lines, xids, counted, unread, monkeypatch, tmp_path):
    write_log(tmp_path, lines)
    found = heard(monkeypatch, tmp_path, xids)
    assert (found.xids, str(found.unread)) == (counted, unread)


def test_without_a_kernel_log_an_xid_of_an_nvlink_is_not_decided_and_any_other_counts(monkeypatch, tmp_path):
    found = heard(monkeypatch, tmp_path, [149, 48, 150])
    assert found.xids == (48, 150)
    assert str(found.unread) == f"not there (XID 149: {tmp_path}/dev/kmsg)"
