"""deploy/bare-metal/acceptance.sh over a real sshd on each of two hosts: host names and checkouts of their own, one network."""

import re
import shutil
import socket
from pathlib import Path

import pytest
from hosts import NO_NAME
from ports import free_port
from sshd import CLIENT, make_key, start_sshd
from suite import PYTHON, finished, make_suite, start
from waiting import HANG_S

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "deploy" / "bare-metal" / "acceptance.sh"
NAMES = ("node-a", "node-b")
KNOWN_TO_THE_FIRST = "meeting.invalid"
HOST = """\
Host {name}
  HostName 127.0.0.1
  Port {port}
"""
TIGHT = """\
limits:
  passes.value:
    at_least: 3
    unit: GB/s
    scope: rank
    source: "policy: more than there is"
"""
# Host name, checkout and names of hosts are its own; the checkout is at the same path.
OWN = 'echo "$0" >/proc/sys/kernel/hostname && mount --bind "$1" "$2" && mount --bind "$3" /etc/hosts && shift 3 && exec "$@"'

pytestmark = [
    pytest.mark.launcher,
    pytest.mark.needs("privileged", "openssh-client", "openssh-server", "util-linux"),
]


class Hosts:
    """Two, each with an sshd; `checkouts[1]` is what the second has where the first has `checkouts[0]`."""

    def __init__(self, folder):
        self.folder = folder
        self.checkouts = [make_suite(folder / name, "passes") for name in ("checkout", "checkout-of-b")]
        self._daemons = []
        key = make_key(folder)
        client = [f"IdentityFile {key}", *CLIENT]
        for name, checkout in zip(NAMES, self.checkouts, strict=True):
            known, more = folder / f"hosts-of-{name}", KNOWN_TO_THE_FIRST if name == NAMES[0] else ""
            known.write_text(f"127.0.0.1 localhost {' '.join(NAMES)} {more}\n")
            own = ["unshare", "--mount", "--uts", "sh", "-c", OWN, name, str(checkout), str(self.checkouts[0]), str(known)]
            daemon, port = start_sshd(key, *own)
            self._daemons.append(daemon)
            client.append(HOST.format(name=name, port=port))
        (folder / "ssh.conf").write_text("\n".join(client))

    def accept(self, *arguments, hosts=NAMES, **env):
        """Run the script as on the first host, and return how it ended."""
        listed = self.folder / "hosts.txt"
        listed.write_text("# of rack 7\n" + "".join(f"{name}   # a comment\n" for name in hosts))
        ours = {"SSH": f"ssh -F {self.folder}/ssh.conf", "PYTHON": PYTHON, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        environment = {"OMP_NUM_THREADS": "1", "RANKS": "1", **ours, **env}
        process = start([str(SCRIPT), str(listed), *arguments], self.checkouts[0], environment)
        output, _ = process.communicate(timeout=HANG_S)
        return finished(process.returncode, output, self.checkouts[0])

    def greeting(self):
        """An ssh as of hosts whose ~/.bashrc says something, and never the same."""
        script = self.folder / "ssh"
        script.write_text(f'#!/bin/sh\necho "Welcome, you are number $$"\nexec ssh -F {self.folder}/ssh.conf "$@"\n')
        script.chmod(0o755)
        return str(script)

    def close(self):
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    made = Hosts(tmp_path_factory.mktemp("bare-metal"))
    yield made
    made.close()


def test_one_command_accepts_a_list_of_hosts(hosts):
    run = hosts.accept("--expect-nodes=2", NCCL_DEBUG="INFO", SSH=hosts.greeting())
    assert run.returncode == 0, run.output
    assert run.verdict_line == "ACCEPTED (cpu profile: no GPU was tested)"
    assert [identity.host for identity in run.record.ranks] == list(NAMES)
    assert {identity.environment["NCCL_DEBUG"] for identity in run.record.ranks} == {"INFO"}
    assert run.output.splitlines()[-1].startswith(f"ACCEPTED (cpu profile: no GPU was tested) | run {run.folder.name} | ended "), run.output
    assert len(list((hosts.checkouts[1] / "reports" / run.folder.name / "journal").iterdir())) == 1


def test_a_host_that_misses_rejects_and_the_code_is_the_verdicts(hosts):
    run = hosts.accept("--limits=tight.yaml")
    assert run.returncode == 4, run.output
    assert "no run in " in run.output
    for checkout in hosts.checkouts:
        (checkout / "tight.yaml").write_text(TIGHT)
    shutil.rmtree(hosts.checkouts[0] / "reports", ignore_errors=True)
    run = hosts.accept("--limits=tight.yaml")
    assert run.returncode == 1, run.output
    assert run.output.splitlines()[-1].startswith("REJECTED: 1 limit missed in 1 of ")


def test_checkouts_that_differ_are_refused_before_anything_runs(hosts):
    other = hosts.checkouts[1] / "acceptance" / "test_passes.py"
    before = other.read_text()
    other.write_text(before + "\n# not the same commit\n")
    try:
        run = hosts.accept()
    finally:
        other.write_text(before)
    assert run.returncode == 4, run.output
    said = run.output.splitlines()
    assert [line.split()[:2] for line in said[:2]] == [["node-a", "has"], ["node-b", "has"]]
    assert said[2] == "the checkout and its Python must be the same on every host"


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["node-a", "nowhere.invalid"], "nowhere.invalid cannot take part: ssh: Could not resolve hostname nowhere.invalid: "),
        (["node-a", "node-a"], "hosts.txt: node-a is there twice"),
        (["node-a", "-oProxyCommand=true"], "hosts.txt: '-oProxyCommand=true' is no host as ssh takes it; one a line"),
        ([], "hosts.txt: no host in it; one a line"),
    ],
)
def test_a_list_that_cannot_be_used(hosts, names, text):
    run = hosts.accept(hosts=names)
    assert run.returncode == 4, run.output
    assert text in run.output


@pytest.mark.parametrize(
    ("arguments", "env", "text"),
    [
        ([], {"MASTER_PORT": "0"}, "MASTER_PORT=0: a port is from 1 to 65535"),
        ([], {"RANKS": "none"}, "RANKS=none: wants the number of ranks of each host"),
        ([], {"GRACE": "1m"}, "GRACE=1m: wants whole seconds"),
        ([], {"PYTHON": "/nowhere/python"}, "node-a cannot take part: "),
        ([], {"JOIN_TIMEOUT": "soon"}, "--timeout: 'soon' is not allowed; allowed: more than 0 seconds, as 90, 90s, 15m or 2h"),
        (["--run-id=mine"], {}, "--run-id=mine is not for "),
    ],
)
def test_a_setting_that_cannot_be_used(hosts, arguments, env, text):
    run = hosts.accept(*arguments, **env)
    assert run.returncode == 4, run.output
    assert text in run.output


def test_a_port_that_is_taken_on_the_first_host_is_named_before_anything_runs(hosts):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = hosts.accept(MASTER_PORT=str(port))
    assert run.returncode == 4, run.output
    other = "name another one, the same on every node (MASTER_PORT, --rdzv-endpoint)"
    assert run.output.splitlines() == [f"gpu-acceptance: port {port} of node-a (node 0): Address already in use; {other}"]


def test_where_hosts_cannot_meet_the_first_one_says_why(hosts):
    run = hosts.accept(MASTER_ADDR="nowhere.invalid", JOIN_TIMEOUT="2s")
    assert run.returncode == 4, run.output
    (said,) = run.output.splitlines()
    why = rf"{NO_NAME}; name the host of node 0 \(MASTER_ADDR, --rdzv-endpoint\)"
    assert re.fullmatch(rf"gpu-acceptance: node 0 is node-a, and nowhere\.invalid:\d+ does not lead there: {why}", said)


def test_a_host_that_finds_no_other_says_so_beside_the_first_one(hosts):
    run = hosts.accept(MASTER_ADDR=KNOWN_TO_THE_FIRST, JOIN_TIMEOUT="2s")
    assert run.returncode == 6, run.output
    first, second = run.output.splitlines()
    where = rf"{KNOWN_TO_THE_FIRST}:\d+"
    assert re.fullmatch(rf"gpu-acceptance: node 1 did not come to {where} within 2 s; see what was said there", first)
    said = rf"node 0 does not answer at {where} within 2 s: {NO_NAME}; this is node 1 \(node-b\)"
    assert re.fullmatch(f"node-b: gpu-acceptance: {said}", second)
