"""Several hosts on one machine: network namespaces joined by a switch, each with its own host name, suite and report folder.

A cut is made in the switch: the hosts keep their links and hear nothing, as behind a dead cable. No connection sees a reset.
"""

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from clean_environment import clean_environment
from suite import PYTHON, Finished, finished, make_suite
from waiting import HANG_S, wait_until
from warm import Forked, fork

from tools.system_packages import faketime_library

ADDRESSES = tuple(f"192.0.2.{number}" for number in range(1, 9))  # of documentation: routed nowhere
SECOND_ADDRESSES = tuple(f"198.51.100.{number}" for number in range(1, 9))
PORT = 29500
NO_NAME = r"(Name or service not known|Temporary failure in name resolution)"  # the latter where no name server answers
_SLEEP = Path(__file__).parent / "faketime"  # libfaketime 0.9.10 spoils the sleep of Python 3.11: its issue 426
# Until it is killed.
_HOLDS_A_PORT = """
import signal, socket, sys
with socket.socket() as taken:
    taken.bind(("0.0.0.0", int(sys.argv[1])))
    taken.listen()
    print("up", flush=True)
    signal.pause()
"""

needs_hosts = pytest.mark.needs("privileged", "iproute2", "util-linux")


class Host:
    """One host: a namespace, a suite of its own, and what was started on it."""

    def __init__(self, namespace: str, node: int, suite: Path, name: str) -> None:
        self.namespace = namespace
        self.node = node
        self.name = name
        self.suite = suite
        self.launcher: subprocess.Popen[bytes] | Forked | None = None
        self._namespaces: list[int] = []

    def start(self, command: list[str], env: Mapping[str, str] | None = None) -> None:
        """Starts a command on this host; its process id is the command's own."""
        environment = {**clean_environment(), "OMP_NUM_THREADS": "1", **(env or {})}
        self.launcher = fork(command, self.suite, environment, self._output, self._entered())
        if self.launcher is None:
            with self._output.open("wb") as output:
                self.launcher = subprocess.Popen(
                    self.here(command),
                    cwd=self.suite,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )

    def here(self, command: list[str]) -> list[str]:
        """The command as one of this host."""
        named = ["unshare", "--uts", "sh", "-c", 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"', self.name]
        return ["ip", "netns", "exec", self.namespace, *named, *command]

    def _entered(self) -> list[int]:
        """The namespaces of a process of this host, which stay for as long as we hold them."""
        if not self._namespaces:
            with subprocess.Popen(self.here(["sh", "-c", "echo up; read _"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
                assert process.stdout
                assert process.stdout.readline() == b"up\n"
                self._namespaces = [os.open(f"/proc/{process.pid}/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts", "mnt")]
        return self._namespaces

    @property
    def names(self) -> Path:
        """The host names that this host knows instead of DNS; read at each look-up."""
        return _etc(self) / "hosts"

    @property
    def _output(self) -> Path:
        return self.suite / "launcher.txt"

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def pids(self) -> list[int]:
        """Every process on this host."""
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]

    def wait_for(self, name: str) -> None:
        """Until a validation on this host has made this file."""
        assert self.launcher
        wait_until(lambda: (self.suite / name).exists() or self.launcher.poll() is not None)
        assert (self.suite / name).exists(), self.output

    def wait(self) -> Finished:
        """Until the launcher has ended."""
        assert self.launcher
        self.launcher.wait(HANG_S)
        return finished(self.launcher.returncode, self.output, self.suite)

    def is_quiet_within(self, seconds: float) -> bool:
        """Return whether every process of this host ends within this time."""
        return wait_until(lambda: not self.pids(), seconds)

    def close(self) -> None:
        """Kills all that runs on this host; its namespace ends with it."""
        while pids := self.pids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if self.launcher:
                self.launcher.poll()
            time.sleep(0.05)
        if self.launcher:
            self.launcher.wait()
        while self._namespaces:
            os.close(self._namespaces.pop())


class Hosts:
    """Hosts, one for each suite, and the switch between them. Host N is node-N; in a domain it is DOMAIN-N, and DOMAIN-N.DOMAIN."""

    def __init__(self, suites: Sequence[Path], domain: str) -> None:
        mark = f"acceptance-{os.getpid()}-{secrets.token_hex(2)}"
        self._switch = f"{mark}-switch"
        self.hosts = [Host(f"{mark}-{node}", node, suite, f"{domain or 'node'}-{node}") for node, suite in enumerate(suites)]
        lines = [f"{address} {_names(host, domain)}" for address, host in zip(ADDRESSES, self.hosts, strict=False)]
        self._known = "\n".join(["127.0.0.1 localhost", *lines, ""])

    def __getitem__(self, node: int) -> Host:
        return self.hosts[node]

    def connect(self) -> None:
        _ip("netns", "add", self._switch)
        for host in self.hosts:
            _ip("netns", "add", host.namespace)
            _etc(host).mkdir(parents=True)
            host.names.write_text(self._known)
            _ip("-n", host.namespace, "link", "set", "lo", "up")
        self._link(0, range(len(self.hosts)), ADDRESSES)

    def link(self, *nodes: int) -> None:
        """A second switch: these hosts are on it as eth1."""
        self._link(1, nodes, SECOND_ADDRESSES)

    def _link(self, number: int, nodes: Sequence[int], addresses: Sequence[str]) -> None:
        bridge, link = f"br{number}", f"eth{number}"
        _ip("-n", self._switch, "link", "add", bridge, "type", "bridge")
        for node in nodes:
            port, host = _port(node, number), self[node].namespace
            _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", link, "netns", host)
            _ip("-n", self._switch, "link", "set", port, "master", bridge, "up")
            _ip("-n", host, "addr", "add", f"{addresses[node]}/24", "dev", link)
            _ip("-n", host, "link", "set", link, "up")
        _ip("-n", self._switch, "link", "set", bridge, "up")

    def cut(self) -> None:
        """From now on the switch drops every frame."""
        _ip("-n", self._switch, "link", "set", "br0", "down")

    def heal(self) -> None:
        _ip("-n", self._switch, "link", "set", "br0", "up")

    def shape(self, node: int, mbit_per_s: int, link: str = "eth0") -> None:
        """From now on this host sends no faster there. Little passes at once, and the queue is long enough that nothing is dropped."""
        rate = ["rate", f"{mbit_per_s}mbit", "burst", "16kb", "limit", "16mb"]
        subprocess.run(["tc", "-n", self[node].namespace, "qdisc", "replace", "dev", link, "root", "tbf", *rate], check=True)

    def narrow(self, node: int, mtu: int, number: int = 0) -> None:
        """From now on the switch with this number silently drops larger packets that go to this host."""
        _ip("-n", self._switch, "link", "set", _port(node, number), "mtu", str(mtu))

    def filter(self, node: int, source: int, ports: str) -> None:
        """From now on this host drops what asks for a TCP connection from another one to these ports (`FIRST:LAST`)."""
        drop = ["--protocol", "tcp", "--syn", "--source", ADDRESSES[source], "--destination-port", ports, "--jump", "DROP"]
        subprocess.run(["ip", "netns", "exec", self[node].namespace, "iptables", "--append", "INPUT", *drop], check=True)

    def knows(self, node: int, other: int, address: str, name: str) -> None:
        """Before anything was started there: a host has this instead of what stands in its /etc/hosts of another one."""
        known = self[node].names.read_text()
        line = f"{ADDRESSES[other]} {self[other].name}\n"
        assert line in known
        self[node].names.write_text(known.replace(line, f"{address} {name}\n"))

    def start(self, *launcher: str, backend: str = "static", env: Mapping[int, Mapping[str, str]] | None = None) -> None:
        """torchrun on all, one rank each."""
        for host in self.hosts:
            self.start_one(host.node, *launcher, backend=backend, env=(env or {}).get(host.node))

    def start_one(
        self,
        node: int,
        *launcher: str,
        backend: str = "static",
        script: tuple[str, ...] = ("-m", "pytest", "acceptance/"),
        env: Mapping[str, str] | None = None,
        mount: tuple[str, ...] = (),
    ) -> None:
        """`mount`: what mount(8) is told first, for this host alone: each has a mount namespace of its own (ip-netns(8))."""
        static = [f"--node-rank={node}", f"--master-addr={ADDRESSES[0]}", f"--master-port={PORT}"]
        c10d = ["--rdzv-backend=c10d", f"--rdzv-endpoint=node-0:{PORT}", "--rdzv-id=two-hosts"]
        rendezvous = [f"--nnodes={len(self.hosts)}", "--nproc-per-node=1", *(c10d if backend == "c10d" else static)]
        mounted = ["sh", "-c", f'mount {shlex.join(mount)} && exec "$0" "$@"'] if mount else []
        self[node].start([*mounted, PYTHON, "-m", "torch.distributed.run", *rendezvous, *launcher, *script], env)

    def close(self) -> None:
        """Whatever happened before: no process and no namespace is left."""
        for host in self.hosts:
            if Path("/run/netns", host.namespace).exists():
                host.close()
                _ip("netns", "del", host.namespace)
            shutil.rmtree(_etc(host), ignore_errors=True)
        if Path("/run/netns", self._switch).exists():
            _ip("netns", "del", self._switch)


@contextmanager
def two_hosts(folder: Path, *examples: str) -> Iterator[Hosts]:
    """Two connected hosts, each with these examples as its suite."""
    with connected([make_suite(folder / f"node-{node}", *examples) for node in (0, 1)]) as hosts:
        yield hosts


@contextmanager
def connected(suites: Sequence[Path], domain: str = "") -> Iterator[Hosts]:
    """A host for each suite, at most eight."""
    hosts = Hosts(suites, domain)
    try:
        hosts.connect()
        yield hosts
    finally:
        hosts.close()


@contextmanager
def held_port(host: Host) -> Iterator[None]:
    """Something that takes connections on the port where ranks meet, and never answers."""
    with subprocess.Popen(host.here([PYTHON, "-c", _HOLDS_A_PORT, str(PORT)]), stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"up\n"
        yield
        holder.kill()


def faketime(offset: str) -> dict[str, str]:
    """The environment of a host whose wall clock is wrong and whose monotonic clock is right."""
    return {"LD_PRELOAD": str(faketime_library()), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "PYTHONPATH": str(_SLEEP)}


def _names(host: Host, domain: str) -> str:
    return f"{host.name} {host.name}.{domain}" if domain else host.name


def _port(node: int, number: int) -> str:
    return f"port{node}-{number}"


def _etc(host: Host) -> Path:
    """The folder that `ip netns exec` puts over /etc on this host."""
    return Path("/etc/netns", host.namespace)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
