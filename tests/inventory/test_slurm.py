"""A job of Slurm, from commands that print the output of 22.05, with some lines of newer versions."""

import pytest

from gpu_acceptance.inventory import slurm
from gpu_acceptance.inventory.answer import Missing, Why
from tests.inventory.slurm_commands import JOB, MIB, NODE, WELL, facts


def test_a_job_that_is_well(commands):
    assert commands.found() == WELL


def test_commands_are_told_where_slurm_is_and_nothing_of_the_job(commands):
    slurm.config(commands.environ)
    names = dict(line.partition("=")[::2] for line in (commands.folder / "env").read_text().splitlines())
    assert {name: value for name, value in names.items() if name.startswith("SLURM_")} == {
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_TIME_FORMAT": "%s",
    }


def of_node_2(state, more=""):
    return {"nodes": (NODE.format(name="node2", state="MIXED", more=""), NODE.format(name="node2", state=state, more=more))}


PRIMARY, BACKUP = "Slurmctld(primary) at head-01 is UP\n", "Slurmctld(backup) at head-02 is DOWN\n"
NO_CGROUP = Missing(Why.NOT_SUPPORTED, "no cgroup")
TOLD_CPUS = "CPUs 0-1,4; Slurm gave 16"


@pytest.mark.parametrize(
    ("changes", "attributes", "differing"),
    [
        ({"ping": (PRIMARY, PRIMARY + BACKUP), "code": ("0", "1")}, {}, {"controller.down": (1, "backup at head-02")}),
        (
            {"ping": ("UP\n", "DOWN\n*******\n"), "code": ("0", "1")},
            {},
            {"controller.up": (0, ""), "controller.down": (1, "primary at head-01")},
        ),
        (
            of_node_2("MIXED+DRAIN", " Reason=fan State=UP [root@1795504588]"),
            {},
            {"allocation.unsound": (1, "node2 MIXED+DRAIN (fan State=UP [root@1795504588])")},
        ),
        (
            of_node_2("DOWN*", " Reason=Not responding [slurm@1795504588]"),
            {},
            {"allocation.unsound": (1, "node2 DOWN+NOT_RESPONDING (Not responding [slurm@1795504588])")},
        ),
        *(
            (of_node_2(state), {}, {"allocation.unsound": (1, f"node2 {state}")})
            for state in ("ALLOCATED+NOT_RESPONDING", "IDLE", "MIXED+CLOUD+POWERING_UP", "MIXED+REBOOT_ISSUED", "MIXED+DRAIN+SOMETHING_NEW")
        ),
        *(  # plans are no faults, and COMPLETING is set while another job on the node ends (sinfo(1), ALLOCATED+)
            (of_node_2(state), {}, {})
            for state in (
                "ALLOCATED",
                "MIXED+RESERVED",
                "ALLOCATED+MAINTENANCE",
                "MIXED+PLANNED",
                "ALLOCATED+CLOUD",
                "MIXED-",
                "ALLOCATED$",
                "ALLOCATED+",
                "MIXED+COMPLETING",
                "ALLOCATED+REBOOT_REQUESTED",
                "MIXED@",
                "ALLOCATED+POWER_DOWN",
                "ALLOCATED!",
                "MIXED+EXTERNAL",
                "MIXED+BLOCKED",
            )
        ),
        (
            {},
            {"homes": ["7 node1", "7 node1", "8 node3", " "]},
            {
                "allocation.unused": (1, "node2"),
                "allocation.doubled": (1, "node1"),
                "allocation.strangers": (2, "job and node ' ', job and node '8 node3'"),
            },
        ),
        ({"partition": ("State=UP", "State=DRAIN")}, {}, {"partition.up": (False, "main DRAIN")}),
        (
            {"config": ("proctrack/cgroup", "proctrack/linuxproc")},
            {},
            {"isolation.processes": (False, "ProctrackType=proctrack/linuxproc")},
        ),
        ({}, {"bound": [0, 1, 4]}, {"cpus.lacking": (13, TOLD_CPUS), "cpus.beyond": (0, TOLD_CPUS)}),
        (
            {},
            {"bound": range(20)},
            {"cpus.lacking": (0, "CPUs 0-19; Slurm gave 16"), "cpus.beyond": (4, "CPUs 0-19; Slurm gave 16")},
        ),
        ({}, {"limit_bytes": 20_000 * MIB}, {"memory.lacking": (12_000, "20000 MiB; Slurm gave 32000")}),
        ({}, {"limit_bytes": 31_999 * MIB + 1}, {"memory.lacking": (1, "31999 MiB; Slurm gave 32000")}),
        ({}, {"limit_bytes": "unlimited"}, {"memory.lacking": (0, "60000 MiB; Slurm gave 32000")}),
        # Slurm does not count memory: what it says the node has.
        ({"job": ("Mem=32000", "Mem=0")}, {"limit_bytes": "unlimited"}, {"memory.lacking": (4000, "60000 MiB; Slurm gave 64000")}),
        ({}, {"limit_bytes": NO_CGROUP}, {"memory.lacking": (NO_CGROUP, "")}),
        *(
            ({}, {"num_gpus": seen}, {name: (number, f"{seen} seen; Slurm gave 8") for name, number in found.items()})
            for seen, found in (
                (0, {"gpus.lacking": 8, "gpus.beyond": 0}),
                (7, {"gpus.lacking": 1, "gpus.beyond": 0}),
                (9, {"gpus.lacking": 0, "gpus.beyond": 1}),
            )
        ),
        ({"job": ("EndTime=1795508189", "EndTime=1795504989")}, {}, {"time.unplanned": (3200, "289 s left")}),
    ],
)
def test_one_difference_is_found_and_no_other(commands, changes, attributes, differing):
    for file, (old, new) in changes.items():
        commands.change(file, old, new)
    vars(commands).update(attributes)
    assert commands.differing() == differing


@pytest.mark.parametrize(
    ("state", "told"),
    [  # of public reports, scontrol 17 to 25; the last two as src/common/slurm_protocol_defs.c writes them
        ("REBOOT*+DRAIN", "REBOOT+NOT_RESPONDING+DRAIN"),
        ("DOWN*+DRAIN", "DOWN+NOT_RESPONDING+DRAIN"),
        ("MIXED*+CLOUD", "MIXED+NOT_RESPONDING+CLOUD"),
        ("ALLOCATED#+CLOUD", "ALLOCATED+POWERING_UP+CLOUD"),
        ("IDLE~+CLOUD+POWER", "IDLE+POWERED_DOWN+CLOUD+POWER"),
        ("MIXED@+DRAIN+REBOOT_REQUESTED", "MIXED+REBOOT_REQUESTED+DRAIN"),
        ("DOWN*+NOT_RESPONDING*", "DOWN+NOT_RESPONDING"),
        ("DOWN+DRAIN+INVALID_REG", "DOWN+DRAIN+INVALID_REG"),
        ("IDLE+", "IDLE+COMPLETING"),
        ("MIXED%", "MIXED+POWERING_DOWN"),
        ("MIXED+DRAIN+?", "MIXED+DRAIN+?"),
    ],
)
def test_marks_of_a_state_stand_behind_any_of_its_words(commands, state, told):
    old, new = of_node_2(state)["nodes"]
    commands.change("nodes", old, new)
    assert commands.differing() == {"allocation.unsound": (1, f"node2 {told}")}


@pytest.mark.parametrize("flag", ["SOMETHING_NEW", "?"])
def test_an_unknown_flag_is_neither_a_fault_nor_sound(commands, flag):
    old, new = of_node_2(f"ALLOCATED+{flag}")["nodes"]
    commands.change("nodes", old, new)
    lack = Missing(Why.UNREADABLE, f"node2 ALLOCATED+{flag}: unknown to this program: {flag}")
    assert commands.differing() == {"allocation.unsound": (lack, "")}
    assert facts(commands) == {"untested": 1, "untested_nodes": f"node2 ALLOCATED+{flag}"}


def set_node_4(commands, state):
    commands.change("nodes", NODE.format(name="node4", state="IDLE", more=""), NODE.format(name="node4", state=state, more=" Reason=psu"))


@pytest.mark.parametrize(
    ("state", "told"),
    [
        *((state, state) for state in ("IDLE+DRAIN", "DOWN", "DOWN+DRAIN+NOT_RESPONDING", "UNKNOWN", "IDLE+FAIL", "IDLE+POWERED_DOWN")),
        *((f"IDLE+{flag}", f"IDLE+{flag}") for flag in ("REBOOT_ISSUED", "POWERING_UP", "MAINTENANCE+RESERVED", "BLOCKED", "PERFCTRS")),
        *((f"IDLE{mark}", f"IDLE+{word}") for mark, word in (("*", "NOT_RESPONDING"), ("~", "POWERED_DOWN"), ("^", "REBOOT_ISSUED"))),
        *((f"IDLE{mark}", f"IDLE+{word}") for mark, word in (("#", "POWERING_UP"), ("%", "POWERING_DOWN"), ("!", "POWER_DOWN"))),
        ("IDLE$", "IDLE+MAINTENANCE"),
    ],
)
def test_nodes_of_the_partition_on_which_no_job_starts_are_counted_and_named(commands, state, told):
    assert facts(commands) == {"untested": 0, "untested_nodes": "none"}
    set_node_4(commands, state)
    assert facts(commands) == {"untested": 1, "untested_nodes": f"node4 {told} (psu)"}


@pytest.mark.parametrize(
    "state", ["MIXED+MAINTENANCE+RESERVED", "ALLOCATED+BLOCKED", "ALLOCATED!", "IDLE-", "IDLE+CLOUD", "IDLE+COMPLETING"]
)
def test_a_node_at_work_or_in_a_plan_is_one_on_which_jobs_start(commands, state):
    set_node_4(commands, state)
    assert facts(commands) == {"untested": 0, "untested_nodes": "none"}


def test_many_nodes_are_counted_and_not_all_named(commands):
    commands.print("nodes", "".join(NODE.format(name=f"node{n}", state="DOWN", more="") for n in range(1200)))
    told = facts(commands)
    assert told["untested"] == 1200
    *shown, more = told["untested_nodes"].split("; ")
    assert shown == [f"node{n} DOWN" for n in range(len(shown))]
    assert more == f"and {1200 - len(shown)} more"


@pytest.mark.parametrize(
    ("plugin", "cores", "wanted"),
    [
        ("task/none", "yes", {"cpus": False, "memory": False, "gpus": False}),  # cgroup.conf is there, and nothing reads it
        ("task/affinity", "yes", {"cpus": True, "memory": False, "gpus": False}),
        ("task/cgroup", "no", {"cpus": False, "memory": True, "gpus": True}),
        ("task/cgroup", "yes", {"cpus": True, "memory": True, "gpus": True}),
        ("affinity,cgroup", "no", {"cpus": True, "memory": True, "gpus": True}),  # Slurm adds `task/` where slurm.conf leaves it out
        ("cgroup", "no", {"cpus": False, "memory": True, "gpus": True}),
        ("none", "yes", {"cpus": False, "memory": False, "gpus": False}),
    ],
)
def test_a_configuration_and_what_it_isolates(commands, plugin, cores, wanted):
    commands.change("config", "task/cgroup,task/affinity", plugin)
    commands.change("config", "Cores          = yes", f"Cores          = {cores}")
    found = {metric: value for metric, (value, _) in commands.found().items() if metric.startswith("isolation.")}
    assert found == {f"isolation.{name}": value for name, value in {**wanted, "processes": True}.items()}


def test_a_tracker_of_processes_without_its_kind(commands):
    commands.change("config", "proctrack/cgroup", "cgroup")
    assert commands.differing() == {"isolation.processes": (True, "ProctrackType=cgroup")}


@pytest.mark.parametrize(
    ("node", "old", "new", "share"),
    [
        ("node2", "", "", slurm.Share("node2", 8, 16_000, 8)),
        ("node2", "Nodes=node1 ", "Nodes=node[1-2] ", slurm.Share("node[1-2]", 16, 32_000, 8)),  # nodes with equal shares
        *(
            ("node1", "GRES=gpu:h200:8(IDX:0-7)", f"GRES={gres}", slurm.Share("node1", 16, 32_000, number))
            for gres, number in (
                ("", 0),
                ("(null)", 0),
                ("gpu:2(IDX:0,7)", 2),
                ("shard:4(IDX:0-1)", 0),
                ("gpu:3(CNT:3)", 3),
                ("gpu:1g.10gb+me:2(IDX:0-1)", 2),  # types as NVIDIA names MIG profiles
                ("gpu:1g.24gb+me.all:1(IDX:0),gpu:2g.48gb-me:3(IDX:1-3)", 4),
                ("gpu:a100_3g.20gb:2(IDX:0-1),gpu:nvidia_h100_80gb_hbm3:6(IDX:2-7)", 8),
                ("gpu:geforce/rtx-4090:1(IDX:0),craynetwork:0", 1),
                ("shard:h100:8(IDX:0-1,4/8),gpu:h100:1(IDX:2)", 1),
                ("lustre-bb:no_consume:4K,gpu:no_consume:2", 2),
                ("gpu:1K", 1024),
                ("gres/gpu:h200:8", 8),
                ("gres:gpu:8,gres:shard:8", 8),
            )
        ),
    ],
)
def test_each_node_has_its_own_share(commands, node, old, new, share):
    commands.print("job", JOB.replace(old, new, 1))
    assert slurm.promise(slurm.job(commands.environ), node, commands.environ) == share


def test_a_node_of_which_the_job_has_nothing(commands):
    commands.environ["SLURMD_NODENAME"] = "node3"
    lack = Missing(Why.NOT_THERE, "the job has no share of node node3; its nodes: node[1-2]")
    assert commands.differing() == dict.fromkeys(
        ("cpus.lacking", "cpus.beyond", "memory.lacking", "gpus.lacking", "gpus.beyond"), (lack, "")
    )


@pytest.mark.parametrize("ends", ["Unknown", "NONE"])
def test_a_job_without_an_end(commands, ends):
    commands.change("job", "EndTime=1795508189", f"EndTime={ends}")
    del commands.environ["SLURM_JOB_END_TIME"]
    assert commands.differing() == {"time.unplanned": (0, "no limit")}


@pytest.mark.parametrize("planned", [None, "", "soon"])
def test_a_run_that_does_not_know_when_its_job_ends(commands, planned):
    commands.environ.pop("SLURM_JOB_END_TIME")
    if planned is not None:
        commands.environ["SLURM_JOB_END_TIME"] = planned
    lack = Missing(Why.NOT_THERE, f"SLURM_JOB_END_TIME={planned!r}: this run does not know when the job ends")
    assert commands.differing() == {"time.unplanned": (lack, "3489 s left")}


def test_a_process_of_a_job():
    assert slurm.is_in_job({"SLURM_JOB_ID": "7"})
    assert not slurm.is_in_job({})
