"""What must be alike on all nodes: the same words for the same node, other words where something differs."""

import json
import tempfile

import pytest
from snapshots import changed, healthy_h200, snapshot_of
from torch._inductor.runtime.cache_dir_utils import cache_dir

from gpu_acceptance.inventory import node
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.system import environment

HEALTHY = healthy_h200()
NOWHERE = {"missing": "not there", "detail": "x"}


def facts_of(plain, **variables):
    return dict(node.facts(snapshot_of(plain).node, variables))


def test_a_node_in_words():
    facts = facts_of(HEALTHY)
    assert facts["cpu"] == "2 x Intel(R) Xeon(R) Platinum 8480C, 4 cores, 8 threads"
    assert facts["governor"] == "performance"
    assert facts["driver"] == "580.159.04, CUDA 13.0"
    gpu = "NVIDIA H200, 692-2G520-0282-001, 96.00.A5.00.1A, G520.0282.02.02, 580.159.04, True, False, True, default, 700.0, 1980"
    assert facts["gpus"] == f"8 x {gpu}"
    assert facts["libraries"] == "NCCL libnccl.so.2; CUDA runtime libcudart.so.13; CUDA driver libcuda.so.580.159.04"
    assert all(0 < len(what) <= 900 for what in facts.values())


@pytest.mark.parametrize(
    ("path", "value", "name", "says"),
    [
        ("gpus.gpus.3.vbios", "96.00.74.00.01", "gpus", "1 x NVIDIA H200, 692-2G520-0282-001, 96.00.74.00.01"),
        ("gpus.gpus.3.mig_is_on", True, "gpus", "7 x "),
        (
            "gpus.gpus.3.gsp_firmware",
            "570.86.15",
            "gpus",
            "1 x NVIDIA H200, 692-2G520-0282-001, 96.00.A5.00.1A, G520.0282.02.02, 570.86.15",
        ),
        ("gpus.gpus.3.ecc.is_on", False, "gpus", "7 x "),
        ("gpus.gpus.3.power.enforced_limit_w", 500.0, "gpus", "500.0"),
        ("gpus.gpus.3.nvlinks.7.is_active", False, "topology", "GPU 3: NUMA node not there, nearest not there, 17 of 18 NVLinks up"),
        ("gpus.gpus.3.nvlinks", {"missing": "not supported", "detail": ""}, "topology", "NVLinks not supported"),
        (
            "gpus.peers.0.nvlink",
            "not supported",
            "topology",
            "1 x read ok, write ok, nvlink not supported; 55 x read ok, write ok, nvlink ok",
        ),
        ("gpus.gpus.3.pci_bus_id", "0000:99:00.0", "topology", "GPU 3: place unknown"),
        ("gpus.gpus.3.pci_bus_id", NOWHERE, "topology", "GPU 3: place not there"),
        ("libraries.nccl.0.path", "/opt/old/libnccl.so.2.21.5", "libraries", "NCCL libnccl.so.2.21.5"),
        ("libraries.nccl.0.deleted", True, "libraries", "NCCL libnccl.so.2, replaced on disk since"),
        ("allowances.nofile", {"soft": 1024, "hard": 4096}, "nofile", "1024 of 4096"),
        ("allowances.shm", {"size_bytes": 2**26, "free_bytes": 2**26}, "shm", "0 GiB"),
        ("allowances.cgroup.memory_bytes", 2**36 + 4096, "cgroup", "memory 64 GiB"),
        ("allowances.cgroup.memory_bytes", {"missing": "not supported", "detail": "no cgroup"}, "cgroup", "memory not supported"),
        ("gpus.driver", "570.86.15", "driver", "570.86.15"),
        ("system.kernel_release", "6.8.0-99-generic", "kernel", "6.8.0-99-generic"),
        ("memory.total_bytes", 10**12, "memory", "931 GiB"),
        ("allowances.memlock_bytes", {"soft": 65536, "hard": "unlimited"}, "memlock", "65536 of unlimited"),
        ("allowances.memlock_bytes", {"missing": "not there", "detail": "/proc/self/limits"}, "memlock", "not there"),
        ("dmi.bios_version", "2.1", "bios", "2.1 of "),
        ("cpu.smt_active", False, None, ""),
    ],
)
def test_a_difference_changes_the_words_of_its_fact_alone(path, value, name, says):
    before, after = facts_of(HEALTHY), facts_of(changed(HEALTHY, f"node.{path}", value))
    assert {one for one in before if before[one] != after[one]} == ({name} if name else set())
    assert says in after.get(name, "")


def test_why_a_value_is_missing_counts_and_where_it_was_looked_for_does_not():
    one, other = ({"missing": "not there", "detail": detail} for detail in ("/a", "/b"))
    assert facts_of(changed(HEALTHY, "node.gpus.gpus", one)) == facts_of(changed(HEALTHY, "node.gpus.gpus", other))


def test_a_folder_that_is_searched_twice_is_no_difference_and_another_order_is():
    """mpirun of Open MPI 4 gave `/usr/lib:/usr/lib` to the ranks of its own node, and `/usr/lib:/usr/lib:/usr/lib` to the others."""
    once, again, turned = (facts_of(HEALTHY, LD_LIBRARY_PATH=path)["variables"] for path in ("/a:/b", "/a:/a:/b:/a", "/b:/a"))
    assert once == again
    assert once != turned


def test_variables_are_shown_and_their_whole_is_compared():
    few = facts_of(HEALTHY, NCCL_DEBUG="WARN", CUDA_VISIBLE_DEVICES="0", NCCL_HOSTID="a")["variables"]
    assert few.endswith(": NCCL_DEBUG=WARN")
    assert few == facts_of(HEALTHY, NCCL_DEBUG="WARN", CUDA_VISIBLE_DEVICES="7", NCCL_HOSTID="b")["variables"]
    many = {f"NCCL_{number:03d}": "x" * 50 for number in range(100)}
    assert facts_of(HEALTHY, **many)["variables"] != facts_of(HEALTHY, **{**many, "NCCL_099": "y"})["variables"]


def test_what_torch_sets_where_it_compiles_is_no_difference_of_ranks(tmp_path, monkeypatch):
    """Each rank has a TMPDIR of its own, and two sound H100 were REJECTED for it."""
    seen = set()
    for rank in range(2):
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / str(rank)))
        assert cache_dir().startswith(str(tmp_path / str(rank)))
        seen.add(facts_of(HEALTHY, **environment())["variables"])
    assert len(seen) == 1


def wired(**changes):
    """The same node with 2 NICs; the first 4 GPUs share a switch with one, the others with the other."""
    plain = json.loads(json.dumps(HEALTHY))
    nic = dict.fromkeys(("hca_type", "board_id", "node_guid", "sys_image_guid", "netdevs", "ports", "hw_counters"), NOWHERE)
    chains = [f"pci0000:{number}0/0000:{number}0:01.0/0000:{number}1:00.0" for number in (1, 2)]
    plain["node"]["infiniband"]["devices"] = [
        {
            **nic,
            "name": f"mlx5_{number}",
            "firmware": "28.39.1002",
            "pci_address": f"0000:{number + 1}2:00.0",
            "pci_path": f"{chain}/0000:{number + 1}2:00.0",
            "numa_node": number,
            **changes,
        }
        for number, chain in enumerate(chains)
    ]
    for gpu in plain["node"]["gpus"]["gpus"]:
        gpu["pci_bus_id"] = f"00000000:{gpu['index'] // 4 + 1}{gpu['index'] + 3}:00.0"
    plain["node"]["gpu_places"] = [
        {
            "pci_bus_id": gpu["pci_bus_id"],
            "pci_path": f"{chains[gpu['index'] // 4]}/{gpu['pci_bus_id'][4:]}",
            "numa_node": gpu["index"] // 4,
        }
        for gpu in plain["node"]["gpus"]["gpus"]
    ]
    return plain


def test_topology_is_the_numa_node_the_nearest_nic_and_the_links_of_each_gpu():
    links = "18 of 18 NVLinks up"
    gpus = f"GPU 0-3: NUMA node 0, nearest mlx5_0 PIX, {links}; GPU 4-7: NUMA node 1, nearest mlx5_1 PIX, {links}"
    assert facts_of(wired())["topology"] == f"{gpus}; 56 x read ok, write ok, nvlink ok"
    moved = changed(wired(), "node.gpu_places.2.numa_node", 1)
    assert facts_of(moved)["topology"].startswith("GPU 0-1,3: NUMA node 0, nearest mlx5_0 PIX")
    away = facts_of(wired(pci_path=NOWHERE))["topology"]
    assert away.startswith(f"GPU 0-3: NUMA node 0, nearest not there, {links}; GPU 4-7: ")


def test_the_firmware_of_a_nic_is_in_the_words():
    assert facts_of(wired())["rdma_devices"] == "2 x not there, not there, 28.39.1002"


def test_a_fact_too_long_to_show_is_compared_as_a_whole():
    names = [f"model {number} of a GPU that is called by a long name" for number in range(8)]
    many = json.loads(json.dumps(HEALTHY))
    for gpu, name in zip(many["node"]["gpus"]["gpus"], names, strict=True):
        gpu["name"] = name
    other = changed(many, "node.gpus.gpus.7.vbios", "96.00.74.00.01")
    first, second = facts_of(many)["gpus"], facts_of(other)["gpus"]
    assert len(first) == len(second) == node.MOST_TEXT
    assert first[:12] != second[:12]


def test_what_a_machine_cannot_say_is_no_traceback():
    plain = json.loads(json.dumps(HEALTHY))
    missing = {"missing": "unreadable", "detail": "x"}
    for room in ("cpu", "memory", "system", "dmi", "virtualization"):
        plain["node"][room] = dict.fromkeys(plain["node"][room], missing)
    facts = facts_of(plain)
    assert facts["cpu"] == facts["memory"] == Missing(Why.UNREADABLE, "x")


UNTOLD = {
    "system.kernel_release": "kernel",
    "system.kernel_parameters": "kernel_parameters",
    "memory.total_bytes": "memory",
    "cpu.numa_nodes": "numa",
    "allowances.memlock_bytes": "memlock",
    "allowances.shm": "shm",
    "infiniband.gpudirect.peermem_module": "gpudirect",
    "libraries.cudart": "libraries",
    "gpus.driver": "driver",
    "gpus.gpus.3.vbios": "gpus",
    "gpus.gpus.3.pci_bus_id": "topology",
    "gpus.gpus.3.nvlinks": "topology",
    "gpus.peers.0.nvlink": "topology",
}


@pytest.mark.parametrize("why", [Why.NOT_PERMITTED, Why.UNREADABLE])
@pytest.mark.parametrize("path", UNTOLD)
def test_what_could_not_be_read_is_no_word_for_which_nodes_could_be_alike(path, why):
    before = facts_of(HEALTHY)
    facts = facts_of(changed(HEALTHY, f"node.{path}", {"missing": str(why), "detail": "x"}))
    assert facts == {**before, UNTOLD[path]: Missing(why, "x")}


def test_one_link_that_has_no_state_hides_none_that_could_not_be_read():
    links = changed(HEALTHY, "node.gpus.gpus.3.nvlinks.0.is_active", {"missing": "not supported", "detail": ""})
    assert "NVLinks not supported" in facts_of(links)["topology"]
    links = changed(links, "node.gpus.gpus.3.nvlinks.5.is_active", {"missing": "unreadable", "detail": "x"})
    assert facts_of(links)["topology"] == Missing(Why.UNREADABLE, "x")


def test_where_the_nics_are_untold_so_is_what_is_near_the_gpus():
    facts = facts_of(changed(HEALTHY, "node.infiniband.devices", {"missing": "unreadable", "detail": "x"}))
    assert facts["rdma_devices"] == facts["topology"] == Missing(Why.UNREADABLE, "x")


def test_of_all_gpus_untold_neither_they_nor_their_topology_are_known():
    facts = facts_of(changed(HEALTHY, "node.gpus.gpus", {"missing": "unreadable", "detail": "x"}))
    assert facts["gpus"] == facts["topology"] == Missing(Why.UNREADABLE, "x")
