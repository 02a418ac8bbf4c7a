"""Counters read by a thread of their own, over a stand-in for the C library: what rose, and a driver that hangs."""

import select
import threading
import time

import pynvml
import pytest
from inventory.fake_nvml import COUNTERS, FIELDS, EventQueue, fields, install

from gpu_acceptance.inventory import counters as read_counters
from gpu_acceptance.supervisor.gpu_watch import CounterWatch

FIRST, SECOND = (f"GPU-0000000{n}-0000-4000-8000-00000000000{n}" for n in (1, 2))
REPLAYS = frozenset({"counters.pcie.replays", "counters.xids"})


class Nvml:
    """Its PCIe replays and XIDs can be set, and it hangs on demand."""

    def __init__(self, monkeypatch):
        self.values = {**FIELDS, **COUNTERS}
        self.events = EventQueue()
        self.may_answer = threading.Event()
        self.may_answer.set()
        install(monkeypatch, nvmlDeviceGetFieldValues=self._fields, nvmlEventSetWait_v2=self.events.wait)

    def _fields(self, *arguments):
        assert self.may_answer.wait(60)
        return fields(self.values)(*arguments)

    def replay(self, number):
        self.values["NVML_FI_DEV_PCIE_REPLAY_COUNTER"] += number


@pytest.fixture
def nvml(monkeypatch):
    made = Nvml(monkeypatch)
    yield made
    made.may_answer.set()


def answer(watch):
    """As a supervisor waits: woken by the descriptor, or looking every now and then."""
    end = time.monotonic() + 60
    while (figures := watch.figures()) is None:
        assert time.monotonic() < end
        select.select([watch.wake_fd], [], [], 0.05)
    return {figure.metric.removeprefix("counters."): (figure.value, figure.detail or figure.anomaly) for figure in figures}


def ask(watch, uuid=FIRST):
    watch.ask(uuid, REPLAYS, each_link=False)
    return answer(watch)


def test_the_first_reading_is_what_later_ones_are_compared_with(nvml):
    watch = CounterWatch(reads_ports=False)
    assert ask(watch) == {}
    assert ask(watch) == {"pcie.replays": (0, ""), "xids": (0, "")}
    nvml.replay(3)
    nvml.events.xids.append(79)
    assert ask(watch) == {"pcie.replays": (3, ""), "xids": (1, "XID 79, GPU has fallen off the bus: reboot the node")}
    assert ask(watch) == {"pcie.replays": (0, ""), "xids": (0, "")}


def test_of_no_gpu_there_is_nothing_to_wait_for():
    watch = CounterWatch(reads_ports=False)
    watch.ask("", REPLAYS, each_link=True)
    assert watch.figures() == ()


def test_of_another_gpu_there_is_nothing_to_compare_with(nvml):
    watch = CounterWatch(reads_ports=False)
    ask(watch, FIRST)
    nvml.replay(3)
    assert ask(watch, SECOND) == {}
    nvml.replay(1)
    assert ask(watch, SECOND)["pcie.replays"] == (1, "")


def test_a_driver_that_hangs_is_not_waited_for_and_what_rose_is_told_later(nvml, monkeypatch):
    monkeypatch.setattr("gpu_acceptance.supervisor.gpu_watch.LONGEST_S", 0.2)
    late = "unreadable (NVML has not answered for 0.2 s)"
    watch = CounterWatch(reads_ports=False)
    ask(watch)
    nvml.may_answer.clear()
    assert ask(watch) == {"pcie.replays": (None, late), "xids": (None, late)}
    watch.ask(FIRST, REPLAYS, each_link=False)
    assert [figure.value for figure in watch.figures()] == [None, None]  # at once: it would wait behind the first
    nvml.replay(2)
    nvml.events.xids.append(31)
    nvml.may_answer.set()
    assert select.select([watch.wake_fd], [], [], 60)[0]
    watch.figures()  # the late answer, which nobody waits for
    nvml.events.xids.append(43)
    told = ask(watch)
    assert told["pcie.replays"] == (2, "")
    assert told["xids"][0] == 2


def test_a_counter_that_was_not_read_once_rises_with_the_next_reading(nvml):
    watch = CounterWatch(reads_ports=False)
    ask(watch)
    known = nvml.values.pop("NVML_FI_DEV_PCIE_REPLAY_COUNTER")
    assert ask(watch)["pcie.replays"] == (None, "not supported")
    nvml.values["NVML_FI_DEV_PCIE_REPLAY_COUNTER"] = known + 4
    assert ask(watch)["pcie.replays"] == (4, "")


def test_a_reading_that_breaks_is_told_as_such_and_the_next_one_counts(nvml, monkeypatch):
    monkeypatch.setattr(read_counters, "read_ports", lambda _devices: {("infiniband.link_downed", "mlx5_0 port 1"): 3})
    watch, limited = CounterWatch(reads_ports=True), REPLAYS | {"counters.infiniband.link_downed"}
    watch.ask(FIRST, limited, each_link=False)
    answer(watch)
    with monkeypatch.context() as patch:
        patch.setattr(read_counters, "read_ports", lambda _devices: [][0])
        watch.ask(FIRST, limited, each_link=False)
        why = "unreadable (IndexError while counters were read: list index out of range)"
        assert answer(watch) == {"pcie.replays": (None, why), "xids": (None, why), "infiniband.link_downed": (None, why)}
    nvml.replay(2)
    assert ask(watch)["pcie.replays"] == (2, "")


def test_a_machine_whose_nvml_is_gone_has_no_values(monkeypatch):
    install(monkeypatch, nvmlInitWithFlags=lambda _flags: pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    watch = CounterWatch(reads_ports=False)
    ask(watch)
    why = "unreadable (NVML does not start: Driver Not Loaded)"
    assert ask(watch) == {"pcie.replays": (None, why), "xids": (None, why)}


def test_the_first_rank_of_a_node_also_reads_its_ports(nvml, tmp_path, monkeypatch):
    counters = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    for name in ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "port_xmit_discards"):
        (counters / name).write_text("3\n")
    real = read_counters.read_ports
    monkeypatch.setattr(read_counters, "read_ports", lambda devices: real(devices, tmp_path))
    watch, limited = CounterWatch(reads_ports=True), frozenset({"counters.infiniband.link_downed"})
    watch.ask(FIRST, limited, devices="mlx5_*", each_link=False)
    assert answer(watch) == {}
    (counters / "link_downed").write_text("4\n")
    watch.ask(FIRST, limited, devices="mlx5_*", each_link=False)
    assert answer(watch) == {"infiniband.link_downed": (1, "mlx5_0 port 1: 1")}
    watch.ask(FIRST, limited, devices="mlx4_*", each_link=False)
    assert answer(watch)["infiniband.link_downed"][0] is None


def poll(watch):
    watch.ask(FIRST, REPLAYS | {"counters.nvlink.replays"}, each_link=False, is_poll=True)
    return answer(watch)


def test_a_poll_is_nothing_to_compare_with(nvml):
    """Where the reading before the validation did not come: what rose up to the poll would never be told."""
    watch = CounterWatch(reads_ports=False)
    assert poll(watch) == {}
    nvml.replay(3)
    assert poll(watch) == {}
    assert ask(watch) == {}
    assert ask(watch) == {"pcie.replays": (0, ""), "xids": (0, "")}


def test_what_a_poll_saw_is_told_again_and_by_its_link(nvml, monkeypatch):
    links: dict[tuple[str, int], int] = {}
    monkeypatch.setattr(nvml, "_fields", lambda *arguments: fields(nvml.values, links)(*arguments))
    install(monkeypatch, nvmlDeviceGetFieldValues=lambda *arguments: nvml._fields(*arguments), nvmlEventSetWait_v2=nvml.events.wait)
    watch = CounterWatch(reads_ports=False)
    watch.ask(FIRST, REPLAYS, each_link=True)
    answer(watch)
    assert poll(watch) == {"pcie.replays": (0, ""), "nvlink.replays": (0, ""), "xids": (0, "")}
    links |= {("NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY", 5): 5, ("NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY", 0xFFFFFFFF): 39}
    nvml.replay(2)
    nvml.events.xids.append(79)
    seen = {
        "pcie.replays": (2, ""),
        "nvlink.replays": (3, "link 5: 3"),
        "xids": (1, "XID 79, GPU has fallen off the bus: reboot the node"),
    }
    assert poll(watch) == seen
    assert poll(watch) == seen
    assert ask(watch) == seen
    assert ask(watch) == {"pcie.replays": (0, ""), "xids": (0, "")}
