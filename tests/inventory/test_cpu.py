"""CPUs of an x86 server and of NVIDIA Grace, and of machines that show only a part of them."""

import os
import shutil
from dataclasses import replace

import pytest
from host_root import fill, grace_node

from gpu_acceptance.inventory import cpu
from gpu_acceptance.inventory.answer import Missing, Why
from gpu_acceptance.inventory.cpu import Cpu, NumaNode, ScalingGovernor

CPUS = "sys/devices/system/cpu"


def test_an_x86_server(node):
    assert cpu.read(node) == Cpu(
        model="Intel(R) Xeon(R) Platinum 8480C",
        vendor="GenuineIntel",
        num_sockets=2,
        num_cores=4,
        num_threads=8,
        smt_active=True,
        scaling_governors=(ScalingGovernor("performance", 8),),
        max_mhz=3800.0,
        numa_nodes=(NumaNode(0, "0-1,4-5", 1056503524 * 1024), NumaNode(1, "2-3,6-7", 1056881684 * 1024)),
        offline_cpu_list="",
        isolated_cpu_list="",
        affinity_cpu_list="0-3",
    )


def test_a_grace_server_has_names_and_a_numa_node_without_cpus(tmp_path):
    found = cpu.read(grace_node(tmp_path))
    assert (found.model, found.vendor) == ("Neoverse-V2", "ARM")
    assert (found.num_sockets, found.num_cores, found.num_threads, found.smt_active) == (2, 4, 4, False)
    assert found.numa_nodes[2] == NumaNode(2, "", 98_000_000 * 1024)
    governor = tmp_path / CPUS / "cpu0/cpufreq/scaling_governor"
    assert found.scaling_governors == Missing(Why.NOT_THERE, str(governor))
    assert found.max_mhz.missing is Why.NOT_THERE


def test_an_arm_core_that_we_do_not_know_keeps_its_numbers(tmp_path):
    fill(tmp_path, {"proc/cpuinfo": "processor\t: 0\nCPU implementer\t: 0x4e\nCPU part\t: 0x0ff\n"})
    found = cpu.read(tmp_path)
    assert found.model == Missing(Why.NOT_SUPPORTED, "this kernel gives numbers, no name: implementer 0x4e, part 0x0ff")
    assert found.vendor == "NVIDIA"
    fill(tmp_path, {"proc/cpuinfo": "CPU implementer\t: 0x77\nCPU part\t: 0x001\n"})
    assert cpu.read(tmp_path).vendor == Missing(Why.NOT_SUPPORTED, "this kernel gives a number, no name: implementer 0x77")


@pytest.mark.parametrize(
    ("files", "field", "expected"),
    [
        (
            {f"cpu{number}/cpufreq/scaling_governor": "powersave\n" for number in (1, 5, 6)},
            *("scaling_governors", (ScalingGovernor("performance", 5), ScalingGovernor("powersave", 3))),
        ),
        ({"cpu3/cpufreq/cpuinfo_max_freq": "3900500\n"}, "max_mhz", 3900.5),
        ({"isolated": "2-3,6-7\n"}, "isolated_cpu_list", "2-3,6-7"),
        (
            {f"cpu{number}/topology/physical_package_id": "-1\n" for number in range(8)},
            *("num_sockets", Missing(Why.NOT_SUPPORTED, "physical_package_id is -1: the kernel does not know the sockets")),
        ),
        (
            {"cpu2/topology/thread_siblings_list": "3,7\n"},
            *("num_cores", Missing(Why.UNREADABLE, "cpu2/topology/thread_siblings_list does not hold CPU 2 itself")),
        ),
        ({"online": "\n"}, "num_threads", Missing(Why.UNREADABLE, "online says ''")),
    ],
)
def test_files_that_differ(node, files, field, expected):
    fill(node, {f"{CPUS}/{name}": text for name, text in files.items()})
    found = getattr(cpu.read(node), field)
    if isinstance(found, Missing):
        found = replace(found, detail=found.detail.removeprefix(f"{node / CPUS}/"))
    assert found == expected


def test_one_cpu_that_cannot_be_read_leaves_no_answer_for_all(node):
    (node / CPUS / "cpu6/cpufreq/scaling_governor").unlink()
    assert cpu.read(node).scaling_governors == Missing(Why.NOT_THERE, str(node / CPUS / "cpu6/cpufreq/scaling_governor"))


def test_an_offline_cpu_is_named_and_not_counted(node):
    """cpu 7 was switched off and its topology went with it; 8 to 15 are slots that nothing was ever in."""
    shutil.rmtree(node / CPUS / "cpu7/topology")
    fill(
        node,
        {
            f"{CPUS}/online": "0-6\n",
            f"{CPUS}/possible": "0-15\n",
            f"{CPUS}/offline": "7-15\n",
            f"{CPUS}/cpu3/topology/thread_siblings_list": "3\n",
        },
    )
    found = cpu.read(node)
    assert (found.offline_cpu_list, found.num_threads, found.num_cores) == ("7", 7, 4)


def test_a_sandbox_without_sysfs(node):
    shutil.rmtree(node / "sys")
    found = cpu.read(node)
    assert found.model == "Intel(R) Xeon(R) Platinum 8480C"
    assert found.affinity_cpu_list == "0-3"
    nowhere = Missing(Why.NOT_THERE, str(node / CPUS / "online"))
    assert [found.num_sockets, found.num_cores, found.num_threads, found.scaling_governors, found.max_mhz] == [nowhere] * 5
    assert {answer.missing for answer in (found.smt_active, found.numa_nodes, found.isolated_cpu_list)} == {Why.NOT_THERE}
    assert found.offline_cpu_list == Missing(Why.NOT_THERE, str(node / CPUS / "present"))


def test_a_numa_node_that_cannot_be_read_is_kept(node):
    (node / "sys/devices/system/node/node1/meminfo").unlink()
    broken = cpu.read(node).numa_nodes[1]
    assert (broken.number, broken.cpu_list) == (1, "2-3,6-7")
    assert broken.memory_bytes.missing is Why.NOT_THERE


STAT = "cpu  1000 50 250 9000 77 5 6 90 0 0\ncpu0 500 25 125 4500 0 0 0 0 0 0\ncpu1 500 25 125 4500 0 0 0 0 0 0\nintr 5\n"
OF_A_PROCESS = "{} (a) b ({}) S 1 1 1 0 -1 4194560 1 2 3 4 {} 0 0 20 0 1 0 77 1 1\n"


def test_the_time_of_all_programs_and_of_some_with_their_ended_children(tmp_path):
    (tmp_path / "stat").write_text(STAT)
    for pid, times in {7: "100 20 3 4", 8: "1 1 0 0"}.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(OF_A_PROCESS.format(pid, ") 9", times))
    found = cpu.cpu_time([7, 8, 9], tmp_path)  # 9 has ended
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    assert (found.busy_s, found.own_s, found.num_cpus) == (pytest.approx(1300 * tick_s), pytest.approx(129 * tick_s), 2)


@pytest.mark.parametrize("text", ["", "cpu  a b c\n", "cpu 1\n"])
def test_times_that_cannot_be_are_missing(tmp_path, text):
    (tmp_path / "stat").write_text(text)
    assert cpu.cpu_time([], tmp_path).missing is Why.UNREADABLE


def test_this_machine_tells_its_time():
    before = cpu.cpu_time([os.getpid()])
    sum(range(3_000_000))
    after = cpu.cpu_time([os.getpid()])
    assert after.own_s >= before.own_s
    assert after.busy_s >= before.busy_s
    assert after.num_cpus >= 1
