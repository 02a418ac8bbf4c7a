"""A real sshd on 127.0.0.1, with a key of its own."""

import socket
import subprocess
from pathlib import Path

from ports import free_port
from waiting import wait_until

from tools.system_packages import sshd

# How a client takes what is made for one test.
CLIENT = ("UserKnownHostsFile=/dev/null", "StrictHostKeyChecking=no", "BatchMode=yes", "LogLevel=ERROR")
_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {key}
AuthorizedKeysFile {key}.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
Subsystem sftp internal-sftp
"""


def make_key(folder: Path) -> Path:
    key = folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key


def start_sshd(key: Path, *entered: str) -> tuple[subprocess.Popen[bytes], int]:
    """The daemon and its port, once it answers. `entered`: a command that runs it somewhere else."""
    daemon_path = sshd()
    assert daemon_path
    Path("/run/sshd").mkdir(exist_ok=True)  # where it locks itself in before a login
    port = free_port()
    config = key.with_name(f"sshd-{port}.conf")
    config.write_text(_CONFIG.format(port=port, key=key))
    daemon = subprocess.Popen([*entered, daemon_path, "-D", "-f", str(config)], stdin=subprocess.DEVNULL)
    assert wait_until(lambda: _answers(port)), f"sshd on port {port} does not answer"
    return daemon, port


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
