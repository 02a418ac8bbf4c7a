"""A Slurm of two nodes on this machine: one slurmctld, two slurmd, munge; no cgroups, traffic on 127.0.0.1 alone.

Its GPUs are device files without a driver, given to whole nodes (--exclusive) and to who asks. Of a third node there is only the name.
"""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from clean_environment import clean_environment
from ports import free_port
from suite import PYTHON, shipped_suite
from waiting import wait_until

ROOT = Path(__file__).parents[1]
BATCH = ROOT / "deploy" / "slurm" / "acceptance.sbatch"
ASKED = ("--limits=site-slurm", "--limits=one-machine.yaml")  # in a suite of slurm_suite
EACH_NODE = BATCH.with_name("acceptance-each-node.sbatch")
CONF = """\
ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge}/socket
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={dir}/ctld.pid
SlurmdPidFile={dir}/slurmd-%n.pid
SlurmctldLogFile={dir}/log/ctld.log
SlurmdLogFile={dir}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
MessageTimeout=60
BatchStartTimeout=120
KillWait=30
OverTimeLimit=0
SlurmctldPort={ports[0]}
NodeName=node1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} {cpus} RealMemory=1000 Gres=gpu:2
NodeName=node2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} {cpus} RealMemory=1000 Gres=gpu:2
NodeName=node3 NodeHostname=localhost NodeAddr=127.0.0.1 {cpus} RealMemory=1000 State=DOWN Reason="no power"
PartitionName=main Nodes=node[1-3] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
_OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
needs_slurm = pytest.mark.needs("privileged", "slurm-wlm", "munge")


@dataclass(frozen=True)
class Job:
    number: int
    output: Path

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""


class Slurm:
    """Two nodes, node1 and node2. What runs on them is killed when it ends."""

    def __init__(self, folder: Path, task_plugin: str, cpus: str) -> None:
        self.folder = folder
        self._task_plugin, self._cpus = task_plugin, cpus
        self._conf = folder / "slurm.conf"
        self._munge = Path(tempfile.mkdtemp(prefix="munge-"))  # its user may not enter a folder of pytest
        self._spool = Path(tempfile.mkdtemp(prefix="spool-"))  # a socket in it may have a path of 108 bytes at most
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        return {**clean_environment(), "SLURM_CONF": str(self._conf)}

    def start(self) -> None:
        for folder in (self.folder / "state", self.folder / "log", self._spool / "node1", self._spool / "node2"):
            folder.mkdir()
        self._start_munge()
        ports = [free_port() for _ in range(3)]
        places = {"dir": self.folder, "spool": self._spool, "munge": self._munge}
        self._conf.write_text(CONF.format(**places, ports=ports, cpus=self._cpus, task_plugin=self._task_plugin))
        for number in (0, 1):  # a major number for experiments, behind which there is no driver (Linux, devices.txt)
            os.mknod(self.folder / f"gpu{number}", stat.S_IFCHR, os.makedev(240, number))
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-1]\n")
        self._daemons.append(self._daemon("slurmctld", "-D", "-f", str(self._conf)))
        self._daemons += [self._daemon("slurmd", "-D", "-N", node, "-f", str(self._conf)) for node in ("node1", "node2")]
        assert wait_until(lambda: "idle 2" in self.ask("sinfo", "-h", "-o", "%T %D").splitlines()), self._logs()

    def _start_munge(self) -> None:
        """With a key and a socket of its own; munged wants its folders to be its user's."""
        folder, user = self._munge, pwd.getpwnam("munge")
        key = folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for path in (folder, key):
            os.chown(path, user.pw_uid, user.pw_gid)
        folder.chmod(0o755)
        options = (f"--key-file={key}", f"--socket={folder}/socket", f"--pid-file={folder}/pid", f"--log-file={folder}/log")
        command = ["munged", "--foreground", *options, f"--seed-file={folder}/seed"]
        self._daemons.append(subprocess.Popen(command, user="munge", group="munge", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        assert wait_until(lambda: (folder / "socket").exists(), 30), "munged does not answer"

    def _daemon(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "log" / f"{command[0]}.txt").open("ab") as log:
            return subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ask(self, *command: str) -> str:
        """Return the output of a client of Slurm."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False).stdout.strip()

    def submit(
        self, suite: Path, *arguments: str, options: tuple[str, ...] = (), env: Mapping[str, str] | None = None, batch: Path = BATCH
    ) -> Job:
        """A shipped batch file in this suite's folder, on both nodes, one rank each."""
        output = suite / "job.txt"
        command = ["sbatch", "--parsable", "--nodes=2", f"--chdir={suite}", f"--output={output}", *options, str(batch), *arguments]
        ours = {"PYTHON": PYTHON, "RANKS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, env={**self.environment, **ours, **(env or {})}, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return Job(int(done.stdout), output)

    def state_of(self, job: Job) -> str:
        """`RUNNING`, `COMPLETED`, `FAILED`, `CANCELLED`, `TIMEOUT`, and what the batch file ended with: `FAILED 1:0`."""
        fields = dict(word.partition("=")[::2] for word in self.ask("scontrol", "show", "job", str(job.number)).split())
        return f"{fields.get('JobState')} {fields.get('ExitCode')}"

    def wait(self, job: Job, seconds: float = 240) -> str:
        """Until the job has ended, batch file included."""
        assert wait_until(lambda: self.state_of(job).startswith(_OVER), seconds), (self.state_of(job), job.text)
        return self.state_of(job)

    def run_again(self, job: Job) -> str:
        """Requeue a job that has ended and return its state; the second attempt must print something."""
        said = job.text
        self.ask("scontrol", "requeue", str(job.number))
        assert wait_until(lambda: self.state_of(job).startswith("PENDING")), self.state_of(job)
        # slurmctld would leave it for two minutes, and slurmd refuses it in the second in which the first attempt ended.
        self.ask("scontrol", "update", f"JobId={job.number}", "StartTime=now+3")
        assert wait_until(lambda: job.text != said, 240), self.state_of(job)
        return self.wait(job)

    def close(self) -> None:
        self.ask("scancel", "--user=root", "--signal=KILL", "--full")
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self._daemons):
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self._munge)
        shutil.rmtree(self._spool, ignore_errors=True)

    def _logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted((self.folder / "log").iterdir()))


@contextmanager
def two_slurm_nodes(folder: Path, task_plugin: str = "task/none", cpus: str = f"CPUs={os.cpu_count()}") -> Iterator[Slurm]:
    """`cpus`: those of each node, as a line of slurm.conf has them; the machine need not have so many."""
    slurm = Slurm(folder, task_plugin, cpus)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.close()


def slurm_suite(folder: Path, not_shown: Mapping[str, str], *subjects: str) -> Path:
    """The subject `slurm` and others, with the overlay that asks for it, and one of what this machine cannot show: glob -> reason."""
    suite = shipped_suite(folder, *subjects, "slurm")
    shutil.copy(ROOT / "thresholds" / "site-slurm.yaml", suite / "thresholds")
    overlay = {"reason": "one machine that plays two nodes", "not_applicable": dict(not_shown)}
    (suite / "one-machine.yaml").write_text(yaml.safe_dump(overlay, width=1000))
    return suite
