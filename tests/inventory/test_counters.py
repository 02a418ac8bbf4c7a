"""Counters of one GPU over a stand-in for the C library of NVML, and of RDMA ports from a tree of files."""

import threading

import pynvml
import pytest
from host_root import fill
from inventory.fake_nvml import COUNTERS, FIELDS, UUIDS, EventQueue, fails, fields, install

from gpu_acceptance.inventory import counters
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.counters import GPU_NAMES, GpuCounters, Heard, read_traffic, unread
from gpu_acceptance.inventory.infiniband import LINK_ERRORS
from gpu_acceptance.inventory.nvml import Asker

ALL_FIELDS = {**FIELDS, **COUNTERS}


def opened(monkeypatch, **changes):
    install(monkeypatch, **changes)
    return GpuCounters(pynvml, UUIDS[0])


def read(monkeypatch, each_link=False, **changes):
    return opened(monkeypatch, **changes).read(each_link=each_link)


def test_a_healthy_gpu_has_all_counters(monkeypatch):
    reading = read(monkeypatch)
    assert {name for name, _ in reading.values} == set(GPU_NAMES)
    assert not [counter for counter, value in reading.values.items() if isinstance(value, Missing)]
    assert links_of(reading) == [f"link {number}" for number in range(18)]
    assert reading.values["nvlink.replays", "link 17"] == FIELDS["NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY"]
    assert reading.values["nvlink.replays", ""] == 18 * FIELDS["NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY"]
    assert reading.values["throttle.sw_power_cap", ""] == FIELDS["NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP"]
    assert reading.values["ecc.corrected", ""] == COUNTERS["NVML_FI_DEV_ECC_SBE_VOL_TOTAL"]
    assert reading.xids == Heard()


def links_of(reading):
    return [part for name, part in reading.values if name == "nvlink.replays" and part]


def test_links_are_read_again_after_a_change_of_their_sum_or_on_demand(monkeypatch):
    watched = opened(monkeypatch)
    assert links_of(watched.read(each_link=False)) == [f"link {number}" for number in range(18)]
    assert links_of(watched.read(each_link=False)) == []
    assert links_of(watched.read(each_link=True)) == [f"link {number}" for number in range(18)]
    risen = {("NVML_FI_DEV_NVLINK_ERROR_DL_CRC", 0xFFFFFFFF): 1, ("NVML_FI_DEV_NVLINK_ERROR_DL_CRC", 7): 1}
    install(monkeypatch, nvmlDeviceGetFieldValues=fields(ALL_FIELDS, risen))
    reading = watched.read(each_link=False)
    assert [key for key, value in reading.values.items() if key[0] == "nvlink.crc_errors" and value] == [
        ("nvlink.crc_errors", "link 7"),
        ("nvlink.crc_errors", ""),
    ]
    assert links_of(watched.read(each_link=False)) == []


def test_each_xid_is_reported_once(monkeypatch):
    events = EventQueue()
    watched = opened(monkeypatch, nvmlEventSetWait_v2=events.wait)
    assert watched.read(each_link=False).xids == Heard()
    events.xids += [79, 31]
    assert watched.read(each_link=False).xids == Heard((79, 31))
    assert watched.read(each_link=False).xids == Heard()


def test_endless_xids_do_not_block_the_reader(monkeypatch):
    events = EventQueue()
    events.xids += [79] * 5_000
    assert len(read(monkeypatch, nvmlEventSetWait_v2=events.wait).xids.xids) == 1_000


def test_a_gpu_without_nvlink_has_no_links_to_count(monkeypatch):
    without = {name: value for name, value in ALL_FIELDS.items() if "NVLINK" not in name}
    reading = read(monkeypatch, nvmlDeviceGetFieldValues=fields(without))
    assert reading.values["nvlink.replays", ""] == Missing(Why.NOT_SUPPORTED)
    assert reading.values["pcie.replays", ""] == 0


class Busy:
    """Fields of which those of NVLinks are not supported the next `num_times` times."""

    def __init__(self):
        self.num_times, self.num_calls = 0, 0

    def fields(self, device, count, array):
        self.num_calls += 1
        is_busy = self.num_times > 0
        self.num_times -= is_busy
        known = {name: value for name, value in ALL_FIELDS.items() if not (is_busy and "NVLINK_ERROR" in name)}
        return fields(known)(device, count, array)


def not_told(reading):
    return {name for (name, _), value in reading.values.items() if isinstance(value, Missing)}


def test_links_that_are_unsupported_for_a_while_are_missing_only_then(monkeypatch):
    busy = Busy()
    watched = opened(monkeypatch, nvmlDeviceGetFieldValues=busy.fields)
    assert not_told(watched.read(each_link=False)) == set()
    busy.num_times = 1000
    assert not_told(watched.read(each_link=False)) == {"nvlink.crc_errors", "nvlink.replays", "nvlink.recoveries"}
    busy.num_times = 0
    assert not_told(watched.read(each_link=False)) == set()


def test_link_counters_that_a_gpu_never_supports_are_not_read_again(monkeypatch):
    busy = Busy()
    watched = opened(monkeypatch, nvmlDeviceGetFieldValues=busy.fields)
    busy.num_times = 1000
    reading = watched.read(each_link=False)
    assert not_told(reading) == {"nvlink.crc_errors", "nvlink.replays", "nvlink.recoveries"}
    assert reading.values["nvlink.replays", "link 7"] == Missing(Why.NOT_SUPPORTED)
    busy.num_calls = 0
    assert watched.read(each_link=False).values == reading.values
    assert busy.num_calls == 1  # for what is no link's


def test_two_threads_never_ask_for_fields_at_once(monkeypatch):
    """NVML says that NVLink errors are not supported while another thread reads the traffic."""
    inside, together = [], []

    def slow(device, count, array):
        inside.append(1)
        together.append(len(inside))
        threading.Event().wait(0.002)
        inside.pop()
        return fields(ALL_FIELDS)(device, count, array)

    one, other = opened(monkeypatch, nvmlDeviceGetFieldValues=slow), GpuCounters(pynvml, UUIDS[0])
    threads = [threading.Thread(target=lambda watched=watched: watched.read(each_link=True)) for watched in (one, other) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(together) == {1}


def test_one_unsupported_field_leaves_the_others(monkeypatch):
    without = {name: value for name, value in ALL_FIELDS.items() if name != "NVML_FI_DEV_PCIE_REPLAY_COUNTER"}
    reading = read(monkeypatch, nvmlDeviceGetFieldValues=fields(without))
    assert [counter for counter, value in reading.values.items() if isinstance(value, Missing)] == [("pcie.replays", "")]


def test_a_gpu_that_fell_off_the_bus_has_no_counters(monkeypatch):
    watched = opened(monkeypatch)
    install(
        monkeypatch,
        nvmlDeviceGetFieldValues=fails(pynvml.NVML_ERROR_GPU_IS_LOST),
        nvmlEventSetWait_v2=fails(pynvml.NVML_ERROR_GPU_IS_LOST),
    )
    reading = watched.read(each_link=False)
    assert {value.detail for value in reading.values.values()} == {"nvmlDeviceGetFieldValues: GPU is lost"}
    assert reading.xids == Heard(unread=Missing(Why.UNREADABLE, "after 0 XIDs: nvmlEventSetWait_v2: GPU is lost"))


@pytest.mark.parametrize("function", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlDeviceGetHandleByUUID"])
def test_without_events_the_xids_are_missing(monkeypatch, function):
    reading = read(monkeypatch, **{function: fails(pynvml.NVML_ERROR_NO_PERMISSION)})
    assert reading.xids == Heard(unread=Missing(Why.NOT_PERMITTED, f"{function}: Insufficient Permissions"))


def test_without_a_reading_every_counter_is_missing():
    reading = unread("why")
    assert {name for name, _ in reading.values} == set(GPU_NAMES)
    assert {*reading.values.values(), reading.xids.unread} == {Missing(Why.UNREADABLE, "why")}


@pytest.mark.parametrize("number", [65, 2**32])
def test_more_links_than_any_gpu_has_are_unreadable(monkeypatch, number):
    told = fields({**ALL_FIELDS, "NVML_FI_DEV_NVLINK_LINK_COUNT": number})
    install(monkeypatch, nvmlDeviceGetFieldValues=told)
    links = Asker(pynvml).num_links(pynvml.nvmlDeviceGetHandleByUUID(UUIDS[0]))
    assert links == Missing(Why.UNREADABLE, f"NVML_FI_DEV_NVLINK_LINK_COUNT: {number} links, more than any GPU has")
    assert links_of(read(monkeypatch, nvmlDeviceGetFieldValues=told)) == []


def test_a_value_of_an_unknown_type_is_unreadable(monkeypatch):
    def odd(device, count, array):
        fields(FIELDS)(device, count, array)
        array._obj[0].valueType = 99
        return 0

    install(monkeypatch, nvmlDeviceGetFieldValues=odd)
    value = Asker(pynvml).field(pynvml.nvmlDeviceGetHandleByUUID(UUIDS[0]), "NVML_FI_DEV_MEMORY_TEMP")
    assert value == Missing(Why.UNREADABLE, "NVML_FI_DEV_MEMORY_TEMP: a value of type 99")


FILES = (*LINK_ERRORS, "port_xmit_data", "port_rcv_data")


def port(root, device, number, **counts):
    folder = root / f"sys/class/infiniband/{device}/ports/{number}/counters"
    return fill(folder, {name: f"{counts.get(name, 0)}\n" for name in FILES})


def test_every_port_of_the_devices_that_the_job_uses(tmp_path):
    port(tmp_path, "mlx5_0", 1, link_downed=2, port_xmit_data=250, port_rcv_data=1)
    port(tmp_path, "mlx5_0", 2)
    port(tmp_path, "mlx5_storage", 1, link_downed=9)
    values = counters.read_ports("mlx5_[0-9]", tmp_path)
    assert {part for _, part in values} == {"mlx5_0 port 1", "mlx5_0 port 2"}
    assert {tuple(part.labels.values()) for _, part in values} == {("mlx5_0", "1"), ("mlx5_0", "2")}
    assert {name for name, _ in values} == set(counters.PORT_NAMES)
    assert values["infiniband.link_downed", "mlx5_0 port 1"] == 2
    assert [values[f"infiniband.{way}_bytes", "mlx5_0 port 1"] for way in ("sent", "received")] == [1000, 4]
    traffic = read_traffic(tmp_path)
    assert {name: (one.tx_bytes, one.rx_bytes) for name, one in traffic.items()} == {
        "mlx5_0 port 1": (1000, 4),
        "mlx5_0 port 2": (0, 0),
        "mlx5_storage port 1": (0, 0),
    }


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        ("mlx5_9", "no RDMA device matches mlx5_9; devices here: 1"),
        ("mlx5_0 mlx5_9", "no RDMA device matches mlx5_9; devices here: 1"),  # a device that is there does not hide one that is not
        ("", "no port of an RDMA device that is one of "),
    ],
)
def test_without_a_device_that_the_job_uses_every_counter_is_missing(tmp_path, devices, why):
    port(tmp_path, "mlx5_0", 1)
    assert counters.read_ports(devices, tmp_path) == {(name, ""): Missing(Why.NOT_THERE, why) for name in counters.PORT_NAMES}


@pytest.mark.parametrize("files", [{}, {"sys/class/infiniband/rxe0/hca_type": ""}])
def test_without_ports_every_counter_is_missing(tmp_path, files):
    fill(tmp_path, files)
    assert {value.missing for value in counters.read_ports("*", tmp_path).values()} == {Why.NOT_THERE}
    assert read_traffic(tmp_path) == {}


@pytest.mark.parametrize(
    ("name", "highest"),
    [
        *(("link_downed", 255), ("symbol_error", 65_535), ("port_rcv_errors", 65_535)),
        *(("port_xmit_data", 2**32 - 1), ("port_rcv_data", 2**64 - 1)),
    ],
)
def test_a_counter_at_its_highest_value_is_missing(tmp_path, name, highest):
    """It may have stopped there. A counter beyond is wider than the specification says, and counts."""
    folder = port(tmp_path, "mlx5_0", 1)
    metric = {"port_xmit_data": "sent_bytes", "port_rcv_data": "received_bytes"}.get(name, name)
    factor = 4 if name.endswith("_data") else 1
    stopped = Missing(Why.UNREADABLE, f"it stands at its highest value, {highest}, until it is reset")
    for value, wanted in ((highest - 1, factor * (highest - 1)), (highest, stopped), (highest + 1, factor * (highest + 1))):
        (folder / name).write_text(f"{value}\n")
        assert counters.read_ports("*", tmp_path)[f"infiniband.{metric}", "mlx5_0 port 1"] == wanted


def test_a_counter_that_is_not_there_leaves_the_others(tmp_path):
    folder = port(tmp_path, "mlx5_0", 1, port_xmit_data=1)
    for name in ("symbol_error", "port_rcv_data"):
        (folder / name).unlink()
    values = counters.read_ports("*", tmp_path)
    lacking = ["infiniband.symbol_error", "infiniband.received_bytes"]
    assert [name for (name, _), value in values.items() if isinstance(value, Missing)] == lacking
    (one,) = read_traffic(tmp_path).values()
    assert (one.tx_bytes, one.rx_bytes.missing) == (4, Why.NOT_THERE)


def test_errors_and_bytes_of_a_port_whose_driver_names_them_otherwise(tmp_path):
    """bnxt_re of an older Linux has no folder `counters`; its bytes are bytes. With the folder, the wider counter of errors counts."""
    folder = tmp_path / "sys/class/infiniband/bnxt_re0/ports/1"
    fill(folder / "hw_counters", {"rx_roce_errors": "70000\n", "tx_bytes": "12\n", "rx_bytes": f"{2**32 - 1}\n"})
    values = counters.read_ports("*", tmp_path)
    read = ["infiniband.port_rcv_errors", "infiniband.received_bytes", "infiniband.sent_bytes"]
    assert sorted(name for (name, _), value in values.items() if not isinstance(value, Missing)) == read
    assert [values[name, "bnxt_re0 port 1"] for name in read] == [70_000, 2**32 - 1, 12]
    port(tmp_path, "bnxt_re0", 1, port_rcv_errors=70_000 % 2**16, port_xmit_data=250)
    values = counters.read_ports("*", tmp_path)
    assert [values[name, "bnxt_re0 port 1"] for name in read] == [70_000, 0, 1000]
