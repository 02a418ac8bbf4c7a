"""Commands of Slurm that print the output of 22.05, with some lines of newer versions."""

import os

from gpu_acceptance.inventory import slurm, slurm_health

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
            slurm_health.round_trip(nodes, self.environ),
            slurm_health.time(job, self.environ.get("SLURM_JOB_END_TIME"), NOW_S),
        )
        return {metric.removeprefix("slurm."): (value, detail) for topic in topics for metric, value, _, detail in topic}

    def nodes(self, of):
        return slurm.nodes_of(of, self.environ)

    def differing(self):
        now = self.found()
        assert now.keys() == WELL.keys()
        return {metric: answer for metric, answer in now.items() if answer != WELL[metric]}


def facts(commands):
    told = slurm.nodes_of(slurm.partition_of(slurm.job(commands.environ), commands.environ), commands.environ)
    return {metric.removeprefix("slurm.partition."): value for metric, value, _ in slurm_health.partition_facts(told)}
