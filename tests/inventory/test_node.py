"""Facts of a node: the same text for nodes that are alike, another text where something differs."""

import json
import tempfile

import pynvml
import pytest
from host_root import fill, x86_node
from inventory import fake_nvml
from inventory.fake_nvml import fails, install
from snapshots import changed, healthy_h200, snapshot_of
from torch._inductor.runtime.cache_dir_utils import cache_dir

from gpu_acceptance.inventory import node
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.pci_topology import Place
from gpu_acceptance.inventory.system import environment

PATH = "pci0000:15/0000:15:01.0/0000:18:00.0"


def on_the_bus(root):
    fill(root / "sys/devices" / PATH, {"numa_node": "1\n"})
    links = root / "sys/bus/pci/devices"
    links.mkdir(parents=True)
    (links / "0000:18:00.0").symlink_to(f"../../../devices/{PATH}")
    return root


def test_two_gpus_of_one_address_have_one_place(tmp_path, monkeypatch):
    install(monkeypatch, nvmlDeviceGetPciInfo_v3=fake_nvml.fill(busId=b"00000000:18:00.0"))
    assert node.read(on_the_bus(tmp_path)).gpu_places == (Place("00000000:18:00.0", PATH, 1),)


@pytest.mark.parametrize("function", ["nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetCount_v2"])
def test_a_gpu_that_gives_no_address_has_no_place(tmp_path, monkeypatch, function):
    install(monkeypatch, **{function: fails(pynvml.NVML_ERROR_GPU_IS_LOST)})
    assert node.read(on_the_bus(tmp_path)).gpu_places == ()


def test_facts_of_a_server_from_its_files(tmp_path):
    facts = node.read_facts(x86_node(tmp_path))
    assert facts.items() >= {
        ("product_serial", "1660224000123"),
        ("chassis_serial", "1660224000124"),
        ("product", "NVIDIA, DGXH200"),
        ("cpu", "2 x Intel(R) Xeon(R) Platinum 8480C, 4 cores, 8 threads"),
        ("memlock", "unlimited of unlimited"),
        ("nofile", "1024 of 1048576"),
        ("rdma_devices", "not there"),
    }
    assert "/projects nfs4" in facts["mounts"]
    assert "/scratch lustre read only" in facts["mounts"]
    facts = node.read_facts(tmp_path / "nowhere")
    assert facts["product_serial"].startswith("not there (")
    assert all(facts.values())


def test_facts_of_files_are_the_facts_that_are_compared(tmp_path):
    root = x86_node(tmp_path)
    told, compared = node.read_facts(root), dict(node.facts(node.read(root), {}))
    assert told.keys() - compared.keys() == {"product_serial", "chassis_serial", "mounts"}
    assert {name: text for name, text in told.items() if compared.get(name, text) != text} == {}


def test_cards_of_one_kind_are_counted_with_their_firmware(tmp_path):
    card = {"hca_type": "MT4129\n", "board_id": "MT_0000000838\n", "fw_ver": "28.39.1002\n"}
    fill(tmp_path, {f"sys/class/infiniband/mlx5_{number}/{name}": text for number in range(2) for name, text in card.items()})
    assert node.read_facts(tmp_path)["rdma_devices"] == "2 x MT4129, MT_0000000838, 28.39.1002"


def test_a_fact_is_of_bounded_length(tmp_path):
    lines = [f"{number} 27 0:52 / /projects/{number:0200d} rw - nfs4 filer:/export rw" for number in range(100, 200)]
    fill(tmp_path, {"proc/self/mountinfo": "\n".join(["27 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw", *lines, ""])})
    assert 1_900 < len(node.read_facts(tmp_path)["mounts"]) <= 2_000


HEALTHY = healthy_h200()
NOWHERE = {"missing": "not there", "detail": "x"}


def facts_of(plain, **variables):
    return dict(node.facts(snapshot_of(plain).node, variables))


def test_facts_of_a_node():
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
        ("gpus.gpus.3.gsp_firmware", "570.86.15", "gpus", "1 x NVIDIA H200, 692-2G520-0282-001, 96.00.A5.00.1A, G520.0282.02.02, 570."),
        ("gpus.gpus.3.ecc.is_on", False, "gpus", "7 x "),
        ("gpus.gpus.3.power.enforced_limit_w", 500.0, "gpus", "500.0"),
        ("gpus.gpus.3.nvlinks.7.is_active", False, "topology", "GPU 3: NUMA node not there, nearest not there, 17 of 18 NVLinks up"),
        ("gpus.gpus.3.nvlinks", {"missing": "not supported", "detail": ""}, "topology", "NVLinks not supported"),
        ("gpus.peers.0.nvlink", "no", "topology", "1 x read ok, write ok, nvlink no; 55 x read ok, write ok, nvlink ok"),
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
def test_a_difference_changes_only_the_text_of_its_fact(path, value, name, says):
    before, after = facts_of(HEALTHY), facts_of(changed(HEALTHY, f"node.{path}", value))
    assert {one for one in before if before[one] != after[one]} == ({name} if name else set())
    assert says in after.get(name, "")


def test_the_reason_for_a_missing_value_counts_and_its_path_does_not():
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


def test_a_variable_that_torch_sets_when_it_compiles_is_no_difference(tmp_path, monkeypatch):
    """Each rank has a TMPDIR of its own, and two sound H100 were REJECTED for it."""
    seen = set()
    for rank in range(2):
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / str(rank)))
        assert cache_dir().startswith(str(tmp_path / str(rank)))
        seen.add(facts_of(HEALTHY, **environment())["variables"])
    assert len(seen) == 1


def wired(**changes):
    """Return the healthy node with 2 NICs; the first 4 GPUs share a switch with one, the others with the other."""
    plain = json.loads(json.dumps(HEALTHY))
    names = ("hca_type", "board_id", "node_guid", "sys_image_guid", "netdevs", "ports", "hw_counters")
    nic = {"firmware": "28.39.1002"} | dict.fromkeys(names, NOWHERE)
    chains = [f"pci0000:{number}0/0000:{number}0:01.0/0000:{number}1:00.0" for number in (1, 2)]
    places = [(f"0000:{number + 1}2:00.0", f"{chain}/0000:{number + 1}2:00.0") for number, chain in enumerate(chains)]
    plain["node"]["infiniband"]["devices"] = [
        {
            **nic,
            "name": f"mlx5_{number}",
            "firmware": "28.39.1002",
            "pci_address": address,
            "pci_path": path,
            "numa_node": number,
            **changes,
        }
        for number, (address, path) in enumerate(places)
    ]
    plain["node"]["gpu_places"] = []
    for index, gpu in enumerate(plain["node"]["gpus"]["gpus"]):
        half = index // 4
        gpu["pci_bus_id"] = f"00000000:{half + 1}{index + 3}:00.0"
        place = {"pci_bus_id": gpu["pci_bus_id"], "pci_path": f"{chains[half]}/{gpu['pci_bus_id'][4:]}", "numa_node": half}
        plain["node"]["gpu_places"].append(place)
    return plain


def test_topology_is_the_numa_node_the_nearest_nic_and_the_links_of_each_gpu():
    links = "18 of 18 NVLinks up"
    gpus = f"GPU 0-3: NUMA node 0, nearest mlx5_0 PIX, {links}; GPU 4-7: NUMA node 1, nearest mlx5_1 PIX, {links}"
    assert facts_of(wired())["rdma_devices"] == "2 x not there, not there, 28.39.1002"
    assert facts_of(wired())["topology"] == f"{gpus}; 56 x read ok, write ok, nvlink ok"
    moved = changed(wired(), "node.gpu_places.2.numa_node", 1)
    assert facts_of(moved)["topology"].startswith("GPU 0-1,3: NUMA node 0, nearest mlx5_0 PIX")
    away = facts_of(wired(pci_path=NOWHERE))["topology"]
    assert away.startswith(f"GPU 0-3: NUMA node 0, nearest not there, {links}; GPU 4-7: ")


def test_a_fact_too_long_to_show_is_compared_as_a_whole():
    names = [f"model {number} of a GPU that is called by a long name" for number in range(8)]
    many = json.loads(json.dumps(HEALTHY))
    for gpu, name in zip(many["node"]["gpus"]["gpus"], names, strict=True):
        gpu["name"] = name
    other = changed(many, "node.gpus.gpus.7.vbios", "96.00.74.00.01")
    first, second = facts_of(many)["gpus"], facts_of(other)["gpus"]
    assert len(first) == len(second) == node.MOST_TEXT
    assert first[:12] != second[:12]


UNREAD = {
    "system.kernel_release": "kernel",
    "system.kernel_parameters": "kernel_parameters",
    "cpu.model": "cpu",
    "dmi.product_name": "product",
    "virtualization.hypervisor": "virtualization",
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
@pytest.mark.parametrize("path", UNREAD)
def test_a_fact_that_could_not_be_read_is_missing(path, why):
    before = facts_of(HEALTHY)
    facts = facts_of(changed(HEALTHY, f"node.{path}", {"missing": str(why), "detail": "x"}))
    assert facts == {**before, UNREAD[path]: Missing(why, "x")}


def test_a_link_without_a_state_hides_no_link_that_could_not_be_read():
    links = changed(HEALTHY, "node.gpus.gpus.3.nvlinks.0.is_active", {"missing": "not supported", "detail": ""})
    assert "NVLinks not supported" in facts_of(links)["topology"]
    links = changed(links, "node.gpus.gpus.3.nvlinks.5.is_active", {"missing": "unreadable", "detail": "x"})
    assert facts_of(links)["topology"] == Missing(Why.UNREADABLE, "x")


@pytest.mark.parametrize(("path", "name"), [("infiniband.devices", "rdma_devices"), ("gpus.gpus", "gpus")])
def test_without_devices_the_topology_is_unknown_too(path, name):
    facts = facts_of(changed(HEALTHY, f"node.{path}", {"missing": "unreadable", "detail": "x"}))
    assert facts[name] == facts["topology"] == Missing(Why.UNREADABLE, "x")
