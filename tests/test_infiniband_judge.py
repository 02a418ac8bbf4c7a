"""The network of a snapshot: one thing is wrong with one port or device, and exactly that row fails and names it."""

from pathlib import Path

import pytest
from networks import GOOD_ROCE_PORT, healthy_network
from snapshots import changed, healthy_h200, leaves, snapshot_of

from gpu_acceptance.cli.snapshot_file import judge_snapshot
from gpu_acceptance.inventory import infiniband_health
from gpu_acceptance.record.outcome import Outcome, Status
from gpu_acceptance.thresholds.profile import load_profile, shipped_dir
from tests.judging import shipped_profile

OVERLAY = Path(__file__).with_name("site_network.yaml")
HEALTHY = healthy_network()
BAD = 3
PORT = f"node.infiniband.devices.{BAD}.ports.0"
NOT_PERMITTED = {"missing": "not permitted", "detail": "a file"}
NOWHERE = {"missing": "not there", "detail": "/sys/class/infiniband"}
FINE = {Outcome.PASSED, Outcome.NOT_APPLICABLE}
ROWS = {"devices", "ports", "counters", "roce", "gpudirect"}
NODE = "on node 0 (node-07)"


@pytest.fixture(scope="session")
def overlay(tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "site-network.yaml"
    path.write_text(OVERLAY.read_text(encoding="utf-8"))
    return path


def rows_of(plain, overlays):
    _, rows, conclusion = judge_snapshot(snapshot_of(plain), load_profile("h200-sxm", shipped_dir(), overlays))
    return {row.nodeid.rsplit("test_", 1)[-1]: row for row in rows if row.subject == "infiniband"}, conclusion


@pytest.fixture
def judged(overlay):
    def judge(plain, more=""):
        (overlay.parent / "more.yaml").write_text(more)
        return rows_of(plain, [overlay, *([overlay.parent / "more.yaml"] if more else [])])

    return judge


def counter(name, group="counters"):
    values = HEALTHY["node"]["infiniband"]["devices"][BAD]["ports"][0][group]
    index = next(number for number, one in enumerate(values) if one["name"] == name)
    return f"{PORT}.{group}.{index}.value"


def bad_rows(rows):
    return {topic for topic, row in rows.items() if row.outcome not in FINE}


# what is wrong -> path, value, the row that fails, its words
DAMAGES = {
    "port down": (f"{PORT}.state", "DOWN", "ports", "ports.state = DOWN, ACTIVE (mlx5_3 port 1: DOWN), need == ACTIVE ["),
    "no subnet manager": (f"{PORT}.state", "INIT", "ports", "ports.state = INIT, ACTIVE (mlx5_3 port 1: INIT), need == ACTIVE ["),
    "no partner": (
        *(f"{PORT}.phys_state", "Polling", "ports"),
        "ports.phys_state = Polling, LinkUp (mlx5_3 port 1: Polling), need == LinkUp [",
    ),
    "half the rate": (f"{PORT}.rate.gbit_per_s", 200.0, "ports", "ports.rate = 200 Gbit/s (mlx5_3 port 1), need >= 400 Gbit/s ["),
    "half the width": (f"{PORT}.rate.width", "2X", "ports", "ports.width = 2 lanes (mlx5_3 port 1), need >= 4 lanes ["),
    "gone down once": (counter("link_downed"), 1, "counters", "counters.link_downed = 1 count (mlx5_3 port 1: 1), need <= 0 count ["),
    "trained again": (
        *(counter("link_error_recovery"), 2, "counters"),
        "counters.link_error_recovery = 2 count (mlx5_3 port 1: 2), need <= 0 count [",
    ),
    "symbol errors": (counter("symbol_error"), 17, "counters", "counters.symbol_error = 17 count (mlx5_3 port 1: 17), need <= 0 count ["),
    "damaged packets": (counter("port_rcv_errors"), 4, "counters", "counters.port_rcv_errors = 4 count (mlx5_3 port 1: 4), need <= 0"),
    "dropped packets": (counter("port_xmit_discards"), 5, "counters", "counters.port_xmit_discards = 5 count (mlx5_3 port 1: 5), need"),
    "no GPUDirect": (
        "node.infiniband.gpudirect.has_open_kernel_modules",
        False,
        "gpudirect",
        "gpudirect.available = false, need == true",
    ),
}


def test_a_healthy_network_is_accepted(judged):
    rows, conclusion = judged(HEALTHY)
    assert set(rows) == ROWS
    assert bad_rows(rows) == set()
    assert rows["roce"].outcome is Outcome.NOT_APPLICABLE
    assert conclusion.line.startswith("ACCEPTED (")


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_damage_fails_one_row_and_names_the_port(damage, judged):
    path, value, topic, says = DAMAGES[damage]
    rows, conclusion = judged(changed(HEALTHY, path, value))
    assert bad_rows(rows) == {topic}
    assert (rows[topic].outcome, conclusion.exit_code) == (Outcome.FAILED, 1)
    assert f"infiniband.{says}" in rows[topic].message
    port = {} if topic == "gpudirect" else {"device": "mlx5_3", "port": "1"}
    assert [one.labels for one in rows[topic].judgements if one.status is Status.MISSED] == [port]
    assert f"{NODE}; to do: " in rows[topic].message


@pytest.mark.parametrize("path", [path for path, *_ in DAMAGES.values() if not path.endswith(("gbit_per_s", "width"))] + [f"{PORT}.rate"])
def test_a_value_that_may_not_be_read_is_no_pass_and_its_port_is_named(path, judged):
    rows, conclusion = judged(changed(HEALTHY, path, NOT_PERMITTED))
    (topic,) = bad_rows(rows)
    assert conclusion.verdict == "INCOMPLETE"
    assert f"has no value: not permitted ({'' if topic == 'gpudirect' else 'mlx5_3 port 1: '}a file), need " in rows[topic].message


def test_a_device_that_one_gpu_lacks(judged):
    plain = changed(HEALTHY, "node.host", "node-07")
    del plain["node"]["infiniband"]["devices"][BAD]
    rows, conclusion = judged(plain)
    assert bad_rows(rows) == {"devices"}
    assert conclusion.exit_code == 1
    others = "mlx5_0 mlx5_1 mlx5_2 mlx5_4 mlx5_5 mlx5_6 mlx5_7"
    told = rows["devices"].message
    assert f"infiniband.devices.per_gpu = 0.875 count ({others}), need >= 1 count [base.yaml: " in told
    gpu = "on rank 3 (node-07, GPU 3, serial 1653924100004); to do: "
    near = "(mlx5_0 mlx5_1 mlx5_2 NODE)"
    assert f"infiniband.devices.distance = NODE {near} where most have PIX on ranks 0-2,4-7, need equal on all [base.yaml: " in told
    assert f"infiniband.devices.nearest = 3 count {near} where most have 1 on ranks 0-2,4-7, need equal on all [base.yaml: " in told
    assert told.count(gpu) == 2


HALVES = ["DOWN"] * 4 + ["ACTIVE"] * 4


@pytest.mark.parametrize(
    ("num_down", "said"),
    [
        (8, "DOWN, need == ACTIVE ["),
        (4, f"ACTIVE, DOWN ({', '.join(f'mlx5_{n} port 1: {HALVES[n]}' for n in range(8))}), need == ACTIVE ["),
    ],
)
def test_equal_ports_need_no_name_and_two_halves_are_both_named(num_down, said, judged):
    plain = HEALTHY
    for index in range(num_down):
        plain = changed(plain, f"node.infiniband.devices.{index}.ports.0.state", "DOWN")
    rows, _ = judged(plain)
    assert f"infiniband.ports.state = {said}" in rows["ports"].message


NO_PORT = "has no value: not there (no RDMA device that the job uses has a port), need "
NO_DRIVER = "has no value: not there (no RDMA driver is loaded: no /sys/class/infiniband), need "


@pytest.mark.parametrize(
    ("devices", "code", "per_gpu", "state"),
    [
        ([], 1, "= 0 count, need >= 1 count [", NO_PORT),
        (NOWHERE, 6, f"{NO_DRIVER}>= 1 count [base.yaml: ", f"{NO_DRIVER}== ACTIVE [base.yaml: "),
    ],
    ids=["no device is rejected", "no RDMA driver is incomplete"],
)
def test_a_node_without_devices(devices, code, per_gpu, state, judged):
    rows, conclusion = judged(changed(HEALTHY, "node.infiniband.devices", devices))
    assert (bad_rows(rows), conclusion.exit_code) == ({"devices", "ports", "counters"}, code)
    assert f"infiniband.devices.per_gpu {per_gpu}" in rows["devices"].message
    assert f"infiniband.ports.state {state}" in rows["ports"].message


def test_a_site_that_requires_infiniband_must_give_its_rate(tmp_path):
    site = tmp_path / "site.yaml"
    site.write_text("requires: [infiniband]\n")
    rows, conclusion = rows_of(HEALTHY, [site])
    assert (rows["ports"].outcome, conclusion.verdict) == (Outcome.NO_LIMIT, "INCOMPLETE")
    assert "infiniband.ports.rate = 400 Gbit/s: no limit for a checked metric in profile h200-sxm" in rows["ports"].message


def test_the_network_is_judged_only_where_a_site_requires_it():
    profile = shipped_profile("h200-sxm")
    assert "infiniband" not in profile.requires
    without_rdma = changed(healthy_h200(), "node.infiniband.devices", [])  # a virtual machine with 8 H200: the class is there, and empty
    for plain in (changed(HEALTHY, f"{PORT}.state", "DOWN"), without_rdma):
        _, rows, conclusion = judge_snapshot(snapshot_of(plain), profile)
        assert {row.subject for row in rows} == {"gpu_health"}
        assert conclusion.verdict == "ACCEPTED"


def test_devices_of_other_uses_are_left_out(judged):
    others = 'parameters: {infiniband.devices: "mlx5_[0-2] mlx5_[4-7]"}\n'
    rows, _ = judged(changed(HEALTHY, f"{PORT}.state", "DOWN"), more=others)
    assert bad_rows(rows) == {"devices"}  # seven for eight GPUs
    rows, _ = judged(HEALTHY, more='parameters: {infiniband.devices: "ib*"}\n')
    assert bad_rows(rows) == {"devices", "ports", "counters"}


@pytest.mark.parametrize(
    ("peermem", "is_open", "is_new", "expected"),
    [
        ("nvidia_peermem", False, False, True),
        (NOWHERE, True, True, True),
        (NOT_PERMITTED, True, True, True),
        (NOWHERE, False, True, False),
        (NOWHERE, NOT_PERMITTED, True, "not permitted"),
        (NOWHERE, True, NOT_PERMITTED, "not permitted"),
        (NOT_PERMITTED, False, True, "not permitted"),
        (NOWHERE, True, False, "not supported (no peermem module, and Linux before 5.12, which may or may not have DMA-BUF)"),
    ],
)
def test_gpudirect_by_a_module_or_by_dma_buf(peermem, is_open, is_new, expected):
    direct = {"peermem_module": peermem, "has_open_kernel_modules": is_open, "has_kernel_5_12": is_new}
    network = snapshot_of(changed(HEALTHY, "node.infiniband.gpudirect", direct)).node.infiniband
    ((_, value, _, _),) = infiniband_health.gpudirect(network)
    assert value is expected or str(value).startswith(str(expected))


ROCE = healthy_network(GOOD_ROCE_PORT)


@pytest.fixture
def judged_roce(tmp_path):
    """A site of RoCE, without the declarations of the InfiniBand overlay."""
    site = tmp_path / "roce.yaml"
    rate = '{at_least: 400, unit: Gbit/s, scope: node, source: "policy: what was ordered"}'
    site.write_text(f"requires: [infiniband]\nlimits: {{infiniband.ports.rate: {rate}}}\n")
    return lambda plain: rows_of(plain, [site])


@pytest.mark.parametrize("name", ["out_of_sequence", "packet_seq_err", "rx_icrc_encapsulated"])
def test_roce_counters(name, judged_roce):
    rows, conclusion = judged_roce(ROCE)
    assert (bad_rows(rows), conclusion.verdict) == (set(), "ACCEPTED")
    rows, conclusion = judged_roce(changed(ROCE, counter(name, "hw_counters"), 9))
    assert (bad_rows(rows), conclusion.exit_code) == ({"roce"}, 1)
    assert f"infiniband.roce.{name} = 9 count (mlx5_3 port 1: 9), need <= 0 count [base.yaml: " in rows["roce"].message


def test_a_network_without_roce_must_say_so(judged_roce):
    rows, conclusion = judged_roce(HEALTHY)
    assert (bad_rows(rows), conclusion.verdict) == ({"roce"}, "INCOMPLETE")
    assert "has no value: not there (no port is RoCE; link layers: InfiniBand), need <= 0 count [" in rows["roce"].message


def test_a_counter_that_the_driver_does_not_have(judged):
    values = HEALTHY["node"]["infiniband"]["devices"][BAD]["ports"][0]["counters"]
    kept = [one for one in values if one["name"] != "symbol_error"]
    rows, conclusion = judged(changed(HEALTHY, f"{PORT}.counters", kept))
    assert (bad_rows(rows), conclusion.verdict) == ({"counters"}, "INCOMPLETE")
    said = "infiniband.counters.symbol_error has no value: not there (mlx5_3 port 1: it has no counter symbol_error), need <= 0"
    assert said in rows["counters"].message


@pytest.mark.parametrize("part", ["ports", "ports.0.counters", "ports.0.rate"])
def test_a_part_that_cannot_be_read_is_no_pass(part, judged):
    rows, conclusion = judged(changed(HEALTHY, f"node.infiniband.devices.{BAD}.{part}", NOT_PERMITTED))
    assert bad_rows(rows) <= {"ports", "counters"}
    assert bad_rows(rows)
    assert conclusion.verdict == "INCOMPLETE"


@pytest.mark.slow
def test_every_value_that_any_row_judges_has_a_damage_of_its_own(judged):
    """Tries each value of a device: one that changes a row when it cannot be read is damaged above."""
    moved = set()
    for path in leaves(HEALTHY["node"]["infiniband"]["devices"][BAD], f"node.infiniband.devices.{BAD}"):
        try:
            rows, _ = judged(changed(HEALTHY, path, NOT_PERMITTED))
        except ValueError:
            continue  # what must be there, such as its name
        if bad_rows(rows):
            moved.add(path)
    damaged = {path for path, *_ in DAMAGES.values() if path.startswith("node.infiniband.devices.")}
    assert moved - {f"node.infiniband.devices.{BAD}.pci_path"} == damaged - {f"{PORT}.rate.gbit_per_s", f"{PORT}.rate.width"}


def test_a_gpu_of_unknown_place(judged):
    rows, conclusion = judged(changed(HEALTHY, "node.gpu_places", HEALTHY["node"]["gpu_places"][1:]))
    assert (bad_rows(rows), conclusion.verdict) == ({"devices"}, "INCOMPLETE")
    assert "infiniband.devices.distance has no value: not there (the PCI bus was not asked for it), need " in rows["devices"].message
