"""A launcher that waits in a store that no longer answers does not see that its ranks have ended: it is told to end.

torchrun 2.13 with c10d rendezvous, on a node that was cut off, was there for 16 minutes more than its only rank: until the kernel gave up
on the connection. SIGTERM ends it where its main thread waits for a lock, not where that waits in the store. A static rendezvous ends by
itself. Standard library only: this is a process of its own, which outlives the rank.
"""

import contextlib
import select
import signal
import subprocess
import sys
from pathlib import Path

_PROGRAMS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "gpu_acceptance.control.torchrun")
PATIENCE_S = 15.0  # a launcher that hears ends within seconds of its first rank


def end_launcher_later(launcher_pid: int, patience_s: float = PATIENCE_S) -> None:
    """Has the launcher get a SIGTERM if it still runs after `patience_s`, and a SIGKILL if it does after as long again.

    Nobody but a torchrun: the parent of a rank can be a shell that has more to do, or who took in the orphans of a launcher that is gone.
    """
    subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(launcher_pid), str(patience_s)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # torchrun kills the sessions of its ranks
    )


def main(launcher_pid: int, patience_s: float) -> None:
    from gpu_acceptance.base.pidfd import pidfd_open, pidfd_send_signal  # here: the line at the end of this file finds it

    with contextlib.suppress(ProcessLookupError):
        pidfd = pidfd_open(launcher_pid)
        if not is_torchrun(launcher_pid):
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not select.select([pidfd], [], [], patience_s)[0]:
                pidfd_send_signal(pidfd, number)


def is_torchrun(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether the process runs torchrun itself, by its own command line: `torchrun ...`, `python torchrun ...`, `python -m ...`."""
    try:
        command, *arguments = (proc / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return False
    program = next((argument for argument in arguments if not argument.startswith("-")), "") if "python" in Path(command).name else command
    return Path(program).name in _PROGRAMS


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # last: our folder must not shadow a standard module
    main(int(sys.argv[1]), float(sys.argv[2]))
