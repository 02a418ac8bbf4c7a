"""A job of Slurm, from commands that print the output of 22.05, with some lines of newer versions."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_acceptance.inventory import slurm, slurm_health
from gpu_acceptance.inventory.answer import Missing, Why

# `scontrol --details --oneliner show job`; of a job of its own, on two nodes of 8 GPUs.
JOB = (
    "JobId=7 JobName=acceptance UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) QOS=(null)"
    " JobState=RUNNING Reason=None Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 DerivedExitCode=0:0"
    " RunTime=00:00:40 TimeLimit=01:00:00 TimeMin=N/A SubmitTime=1795504588 EligibleTime=1795504588 AccrueTime=1795504588"
    " StartTime=1795504589 EndTime=1795508189 Deadline=N/A SuspendTime=None SecsPreSuspend=0 LastSchedEval=1795504589 Scheduler=Main"
    " Partition=main AllocNode:Sid=login:3973 ReqNodeList=(null) ExcNodeList=(null) NodeList=node[1-2] BatchHost=node1 NumNodes=2"
    " NumCPUs=24 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=24,mem=48000M,node=2,billing=24 Socks/Node=* NtasksPerN:B:S:C=1:0:*:*"
    " CoreSpec=* JOB_GRES=gpu:16   Nodes=node1 CPU_IDs=0-15 Mem=32000 GRES=gpu:h200:8(IDX:0-7)"
    "   Nodes=node2 CPU_IDs=0-3,8-11 Mem=16000 GRES=gpu:a:4(IDX:0-2,7),nic:mlx5:2(IDX:0-1),gpu:b:4(IDX:3-6)"
    " MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=NO Contiguous=0 Licenses=(null)"
    " Network=(null) Command=/data/my test.sh WorkDir=/data StdErr=/data/7.txt StdIn=/dev/null StdOut=/data/7.txt Power= \n"
)
NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=8  CPUAlloc=16 CPUEfctv=16 CPUTot=16 CPULoad=3.68 AvailableFeatures=(null)"
    " ActiveFeatures=(null) Gres=gpu:8 NodeAddr=192.0.2.1 NodeHostName={name} Version=22.05.8"
    " OS=Linux 6.8.0 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=64000 AllocMem=32000 FreeMem=10435 Sockets=2 Boards=1 State={state}"
    " ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=main  BootTime=1795504000 SlurmdStartTime=1795504100"
    " LastBusyTime=1795504500 CfgTRES=cpu=16,mem=64000M,billing=16 AllocTRES=cpu=16 CapWatts=n/a CurrentWatts=0 AveWatts=0"
    " ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s{more}\n"
)
PARTITION = "PartitionName=main AllowGroups=ALL Default=YES Nodes=node[1-4] OverSubscribe=YES:4 State=UP TotalCPUs=64 TotalNodes=4\n"
CONFIG = """\
Configuration data as of 1795504588
ProctrackType           = proctrack/cgroup
TaskPlugin              = task/cgroup,task/affinity
TaskPluginParam         = (null type)

Cgroup Support Configuration:
AllowedRAMSpace         = 100.0%
ConstrainCores          = yes
ConstrainDevices        = yes
ConstrainRAMSpace       = yes

Slurmctld(primary) at head-01 is UP
"""
# Only what the suite asks: anything else ends with exit code 9.
SCONTROL = """\
#!/bin/sh
echo "$*" >>{dir}/asked
env >{dir}/env
case "$*" in
    ping) cat {dir}/ping; exit "$(cat {dir}/code)" ;;
    "--details --oneliner show job 7") cat {dir}/job ;;
    "--oneliner show partition main") cat {dir}/partition ;;
    "--oneliner show node node[1-2]") grep -v "^NodeName=node[34] " {dir}/nodes ;;
    "--oneliner show node node[1-4]") cat {dir}/nodes ;;
    "--oneliner show node node"*) grep "^NodeName=$4 " {dir}/nodes ;;
    "show hostnames "*) [ "$3" = "node[1-2]" ] && printf 'node1\\nnode2\\n' || echo "$3" ;;
    "show config") cat {dir}/config ;;
    "listpids * node1") cat {dir}/listpids ;;
    *) exit 9 ;;
esac
"""
SRUN = """\
#!/bin/sh
echo "$*" >>{dir}/asked
. {dir}/srun.sh
"""
ALL_SAY_IT = 'printf " 0: node1\\n 0: $GPU_ACCEPTANCE_NONCE\\n 1: node2\\n 1: $GPU_ACCEPTANCE_NONCE\\n"'
NOW_S = 1795504700.0
MIB = 1 << 20
WELL = {
    "controller.up": (1, "primary at head-01"),
    "controller.down": (0, ""),
    "allocation.unsound": (0, ""),
    "allocation.unused": (0, ""),
    "allocation.doubled": (0, ""),
    "allocation.strangers": (0, ""),
    "partition.up": (True, "main UP"),
    "isolation.cpus": (True, "TaskPlugin=task/cgroup,task/affinity"),
    "isolation.memory": (True, "TaskPlugin=task/cgroup,task/affinity"),
    "isolation.gpus": (True, "TaskPlugin=task/cgroup,task/affinity"),
    "isolation.processes": (True, "ProctrackType=proctrack/cgroup"),
    "cpus.lacking": (0, "CPUs 0-15; Slurm gave 16"),
    "cpus.beyond": (0, "CPUs 0-15; Slurm gave 16"),
    "memory.lacking": (0, "32000 MiB; Slurm gave 32000"),
    "gpus.lacking": (0, "8 seen; Slurm gave 8"),
    "gpus.beyond": (0, "8 seen; Slurm gave 8"),
    "round_trip.lost": (0, ""),
    "time.unplanned": (0, "3489 s left"),
}


class Commands:
    """scontrol and srun in a folder of their own, and what they print: one file for each answer."""

    def __init__(self, folder):
        self.folder = folder
        self.homes = ["7 node1", "7 node2"]
        self.bound, self.num_gpus, self.limit_bytes = range(16), 8, 32_000 * MIB
        for name, text in {"scontrol": SCONTROL, "srun": SRUN}.items():
            (folder / name).write_text(text.format(dir=folder))
            (folder / name).chmod(0o755)
        self.print("ping", "Slurmctld(primary) at head-01 is UP\n", code="0", job=JOB, partition=PARTITION, config=CONFIG)
        self.print("nodes", "".join(NODE.format(name=f"node{n}", state="MIXED" if n < 3 else "IDLE", more="") for n in (1, 2, 3, 4)))
        self.print("srun.sh", ALL_SAY_IT)
        self.environ = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURMD_NODENAME": "node1",
            "SLURM_CONF": "/etc/slurm/slurm.conf",
            "SLURM_CPU_BIND": "none",
            "SLURM_JOB_END_TIME": "1795508189",
        }

    def print(self, name, text, **more):
        for file, said in {name: text, **more}.items():
            (self.folder / file).write_text(said)

    def change(self, name, old, new):
        text = (self.folder / name).read_text()
        assert old in text
        self.print(name, text.replace(old, new, 1))

    @property
    def asked(self):
        return (self.folder / "asked").read_text().splitlines()

    def found(self):
        job = slurm.job(self.environ)
        nodes = self.nodes(job)
        given = slurm.promise(job, slurm.own_node(self.environ), self.environ)
        topics = (
            slurm_health.controller(slurm.controllers(self.environ)),
            slurm_health.allocation(nodes, "7", self.homes),
            slurm_health.partition(slurm.partition_of(job, self.environ)),
            slurm_health.isolation(slurm.config(self.environ)),
            slurm_health.cpus(given, frozenset(self.bound)),
            slurm_health.memory(given, 60_000 * MIB, self.limit_bytes),
            slurm_health.gpus(given, self.num_gpus),
            slurm_health.round_trip(slurm_health.make_round_trip(nodes, self.environ)),
            slurm_health.time(job, self.environ.get("SLURM_JOB_END_TIME"), NOW_S),
        )
        return {metric.removeprefix("slurm."): (value, detail) for topic in topics for metric, value, _, detail in topic}

    def nodes(self, of):
        return slurm.nodes_of(of, self.environ)

    def differing(self):
        now = self.found()
        assert now.keys() == WELL.keys()
        return {metric: answer for metric, answer in now.items() if answer != WELL[metric]}


@pytest.fixture
def commands(tmp_path):
    return Commands(tmp_path)


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
            {"allocation.unsound": (1, "node2 DOWN+* (Not responding [slurm@1795504588])")},
        ),
        *(
            (of_node_2(state), {}, {"allocation.unsound": (1, f"node2 {state}")})
            for state in ("ALLOCATED+COMPLETING", "ALLOCATED+NOT_RESPONDING", "ALLOCATED+SOMETHING_NEW", "IDLE")
        ),
        *(  # plans are no faults
            (of_node_2(state), {}, {})
            for state in ("ALLOCATED", "MIXED+RESERVED", "ALLOCATED+MAINTENANCE", "MIXED+PLANNED", "ALLOCATED+CLOUD", "MIXED-")
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


def facts(commands):
    told = slurm.nodes_of(slurm.partition_of(slurm.job(commands.environ), commands.environ), commands.environ)
    return {metric.removeprefix("slurm.partition."): value for metric, value, _ in slurm_health.partition_facts(told)}


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN", "DOWN+DRAIN+NOT_RESPONDING", "IDLE*", "UNKNOWN", "IDLE+FAIL", "IDLE+POWERED_DOWN"])
def test_nodes_of_the_partition_on_which_no_job_starts_are_counted_and_named(commands, state):
    assert facts(commands) == {"untested": 0, "untested_nodes": "none"}
    commands.change("nodes", NODE.format(name="node4", state="IDLE", more=""), NODE.format(name="node4", state=state, more=" Reason=psu"))
    assert facts(commands) == {"untested": 1, "untested_nodes": f"node4 {state.replace('*', '+*')} (psu)"}


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
    ],
)
def test_a_configuration_and_what_it_isolates(commands, plugin, cores, wanted):
    commands.change("config", "task/cgroup,task/affinity", plugin)
    commands.change("config", "Cores          = yes", f"Cores          = {cores}")
    found = {metric: value for metric, (value, _) in commands.found().items() if metric.startswith("isolation.")}
    assert found == {f"isolation.{name}": value for name, value in {**wanted, "processes": True}.items()}


@pytest.mark.parametrize(
    ("node", "old", "new", "share"),
    [
        ("node2", "", "", slurm.Share("node2", 8, 16_000, 8)),
        ("node2", "Nodes=node1 ", "Nodes=node[1-2] ", slurm.Share("node[1-2]", 16, 32_000, 8)),  # nodes with equal shares
        *(
            ("node1", "GRES=gpu:h200:8(IDX:0-7)", f"GRES={gres}", slurm.Share("node1", 16, 32_000, number))
            for gres, number in (("", 0), ("(null)", 0), ("gpu:2(IDX:0,7)", 2), ("shard:4(IDX:0-1)", 0), ("gpu:3(CNT:3)", 3))
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


def lost(commands):
    return commands.found()["round_trip.lost"]


def test_a_step_goes_to_all_nodes_beside_the_one_that_runs(commands):
    commands.print("srun.sh", f"printf '0: Welcome to node1\\n1: \\n'; {ALL_SAY_IT}")  # a prolog of the site may print other lines first
    assert lost(commands) == (0, "")
    (asked,) = [line for line in commands.asked if line.startswith("--jobid")]
    assert asked.startswith("--jobid=7 --nodes=2 --ntasks=2 --overlap --ntasks-per-node=1 --immediate=30 ")
    assert asked.endswith(" printenv SLURMD_NODENAME GPU_ACCEPTANCE_NONCE")


@pytest.mark.parametrize(
    "said",
    [
        'printf "0: node1\\n0: $GPU_ACCEPTANCE_NONCE\\n"',
        'printf "0: node1\\n0: $GPU_ACCEPTANCE_NONCE\\n1: node2\\n"',
        'printf "0: node1\\n0: $GPU_ACCEPTANCE_NONCE\\n1: node2\\n1: 0123\\n"',
        'printf "0: node1\\n1: node2\\n0: $GPU_ACCEPTANCE_NONCE\\n1: $GPU_ACCEPTANCE_NONCE\\n1: and more\\n"',
    ],
)
def test_a_node_that_does_not_say_the_nonce_is_lost(commands, said):
    commands.print("srun.sh", said)
    assert lost(commands) == (1, "node2")


def test_a_step_that_cannot_be_made_says_why(commands):
    commands.print("srun.sh", f"{ALL_SAY_IT}; echo 'srun: error: Unable to create step for job 7: Requested nodes are busy' >&2; exit 1")
    number, said = lost(commands)
    assert number == 2
    assert said.startswith("srun --jobid=7 --nodes=2 --ntasks=2 --overlap ")
    assert said.endswith("srun: error: Unable to create step for job 7: Requested nodes are busy")


def test_a_step_that_does_not_end(commands, monkeypatch):
    monkeypatch.setattr(slurm, "_TIMEOUT_S", 0.5)
    commands.print("srun.sh", "exec sleep 600")
    number, said = lost(commands)
    assert number == 2
    assert "TimeoutExpired" in said


def test_without_srun_nothing_is_known(commands):
    (commands.folder / "srun").unlink()
    commands.environ["PATH"] = str(commands.folder)
    made = slurm_health.make_round_trip((), commands.environ)
    assert made == Missing(Why.NOT_THERE, "srun is not on PATH")
    assert next(slurm_health.round_trip(made))[1] == made


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


def test_a_command_that_is_not_there(commands):
    commands.environ["PATH"] = "/nowhere"
    missing = Missing(Why.NOT_THERE, "scontrol is not on PATH")
    assert {value for value, _ in commands.found().values()} == {missing}


def test_a_job_that_the_controller_does_not_know(commands):
    commands.environ["SLURM_JOB_ID"] = "8"
    said = "scontrol --details --oneliner show job 8: exit code 9, 0 characters: "
    assert slurm.job(commands.environ) == Missing(Why.UNREADABLE, said)


@pytest.mark.parametrize("number", ["", "7 8", "all", "-1", "7\n"])
def test_a_number_that_is_no_job_is_not_asked_for(commands, number):
    commands.environ["SLURM_JOB_ID"] = number
    assert slurm.job(commands.environ) == Missing(Why.NOT_THERE, f"SLURM_JOB_ID={number!r} is not the number of a job")
    assert not (commands.folder / "asked").exists()


@pytest.mark.parametrize("name", ["", "node 1", "--help\n"])
def test_a_name_that_is_no_node_is_not_asked_for(commands, name):
    commands.environ["SLURMD_NODENAME"] = name
    lack = Missing(Why.NOT_THERE, f"SLURMD_NODENAME={name!r}: Slurm sets it in each step of a job")
    assert slurm.own_node(commands.environ) == slurm_health.read_leftovers(commands.environ) == lack


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("job", "JobName=acceptance", "JobName=x Partition=other", "job of Slurm: Partition= has the values ['other', 'main']"),
        ("job", "JobName=acceptance", "JobName=x JOB_GRES=a Nodes=b CPU_IDs=0 Mem=0 GRES=", "JOB_GRES= has the values ["),
        ("job", "EndTime=1795508189", "EndTime=2026-11-24T08:12:50", "EndTime= has the values ['2026-11-24T08:12:50']"),
        ("job", "NodeList=node[1-2] ", "NodeList=(null) ", "NodeList= has the values ['(null)']"),
        ("job", "Mem=16000", "Mem=16G", "1 shares of nodes in "),
        ("job", "gpu:h200:8(IDX:0-7)", "gpu:h200:many", "no generic resources: 'gpu:h200:many'"),
        ("job", "CPU_IDs=0-15", "CPU_IDs=15-0", "no CPU range: 15-0"),
        ("nodes", "State=MIXED", "State=mixed", "nodes of Slurm: not of the form"),
        ("nodes", " RealMemory=64000", "", "RealMemory= has the values []"),
        ("partition", "State=UP", "State=UP State=DOWN", "partition of Slurm: State= has the values ['UP', 'DOWN']"),
        ("config", "TaskPlugin ", "TaskPluginn ", "config of Slurm: no TaskPlugin: "),
        ("ping", "Slurmctld", "slurmctld", "controllers of Slurm: no controller in "),
    ],
)
def test_an_answer_of_another_form_is_unreadable(commands, file, old, new, said):
    commands.change(file, old, new)
    unreadable = {metric: value for metric, (value, _) in commands.differing().items() if isinstance(value, Missing)}
    assert unreadable
    assert {value.missing for value in unreadable.values()} == {Why.UNREADABLE}
    assert all(said in value.detail for value in unreadable.values())


def test_no_node_at_all(commands):
    commands.print("nodes", "\n")
    lack = Missing(Why.UNREADABLE, "nodes of Slurm: no node")
    assert commands.nodes(slurm.job(commands.environ)) == lack
    assert facts(commands) == {"untested": lack, "untested_nodes": lack}


def test_an_answer_that_does_not_end_is_none(commands, monkeypatch):
    monkeypatch.setattr(slurm, "_MOST_CHARACTERS", 100)
    found = slurm.config(commands.environ)
    assert found.missing is Why.UNREADABLE
    assert found.detail.startswith(f"scontrol show config: exit code 0, {len(CONFIG)} characters: Configuration data")


def test_a_reason_of_several_lines_is_unreadable(commands):
    commands.change("nodes", "ExtSensorsTemp=n/s", "ExtSensorsTemp=n/s Reason=a\tb")
    assert commands.found()["allocation.unsound"][0].missing is Why.UNREADABLE


PARSERS = [slurm.parse_controllers, slurm.parse_job, slurm.parse_partition, slurm.parse_nodes, slurm.parse_names, slurm.parse_config]
WORDS = [*JOB.split(), *NODE.split(), *PARTITION.split(), *CONFIG.split(), "\n", "=", " Nodes=", "\0"]


@given(st.one_of(st.text(), st.lists(st.sampled_from(WORDS)).map(" ".join)))
@pytest.mark.parametrize("parse", [*PARSERS, slurm_health.leftover_pids])
def test_any_output_is_parsed_or_a_value_error(parse, text):
    try:
        parse(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either is fine, an error of another kind is not


def test_a_process_of_a_job():
    assert slurm.is_in_job({"SLURM_JOB_ID": "7"})
    assert not slurm.is_in_job({})
