"""A node in words for the report: what files tell, in the words that are compared, each of bounded length."""

from host_root import fill, x86_node

from gpu_acceptance.inventory import node


def test_a_server(tmp_path):
    facts = node.read_facts(x86_node(tmp_path))
    assert facts["product_serial"] == "1660224000123"
    assert facts["chassis_serial"] == "1660224000124"
    assert facts["product"] == "NVIDIA, DGXH200"
    assert facts["cpu"] == "2 x Intel(R) Xeon(R) Platinum 8480C, 4 cores, 8 threads"
    assert facts["memlock"] == "unlimited of unlimited"
    assert facts["nofile"] == "1024 of 1048576"
    assert "/projects nfs4" in facts["mounts"]
    assert "/scratch lustre read only" in facts["mounts"]
    assert facts["rdma_devices"] == "not there"


def test_what_is_compared_has_the_same_words(tmp_path):
    root = x86_node(tmp_path)
    compared = dict(node.facts(node.read(root), {}))
    told = node.read_facts(root)
    shared = told.keys() & compared.keys()
    assert {name: told[name] for name in shared} == {name: compared[name] for name in shared}
    assert shared == told.keys() - {"product_serial", "chassis_serial", "mounts"}


def test_cards_of_one_kind_are_counted_with_their_firmware(tmp_path):
    for number in range(2):
        folder = f"sys/class/infiniband/mlx5_{number}"
        fill(tmp_path, {f"{folder}/hca_type": "MT4129\n", f"{folder}/board_id": "MT_0000000838\n", f"{folder}/fw_ver": "28.39.1002\n"})
    assert node.read_facts(tmp_path)["rdma_devices"] == "2 x MT4129, MT_0000000838, 28.39.1002"


def test_a_machine_that_says_nothing_gives_words_and_no_traceback(tmp_path):
    facts = node.read_facts(tmp_path)
    assert facts["product_serial"].startswith("not there (")
    assert all(facts.values())


def test_a_fact_is_of_bounded_length(tmp_path):
    lines = [f"{number} 27 0:52 / /projects/{number:0200d} rw - nfs4 filer:/export rw" for number in range(100, 200)]
    fill(tmp_path, {"proc/self/mountinfo": "\n".join(["27 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw", *lines, ""])})
    assert 1_900 < len(node.read_facts(tmp_path)["mounts"]) <= 2_000
