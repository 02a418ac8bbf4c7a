"""A fork server of this process: the real one, or one that imports nothing."""

import select
import sys
from pathlib import Path

from waiting import wait_until

from gpu_acceptance.base.scratch import SCRATCH
from gpu_acceptance.supervisor.worker_process import NO_IMPORTS, ForkServerProcess, WorkerProcess
from gpu_acceptance.worker.worker import worker_command

# The server itself is real; it imports nothing, and a worker runs CODE.
QUICK = """
import os, signal, socket, sys, time, types
def module(name, **content):
    made = sys.modules[name] = types.ModuleType(name)
    vars(made).update(content)
    return made
if "gpu_acceptance.worker.worker" in sys.orig_argv:
    print("started anew", flush=True)
    os._exit(7)
if "gpu_acceptance.worker.fork_server" in sys.orig_argv:
    channel = int(sys.orig_argv[-1])
    def run(*_, **__):
        print("forked", flush=True)
        exec(os.environ["GPU_ACCEPTANCE_CODE"])
        return 0
    cuda = types.SimpleNamespace(is_initialized=lambda: False, _is_in_bad_fork=lambda: False)
    module("torch", cuda=cuda, default_generator=types.SimpleNamespace(seed=lambda: 0))
    module("pytest", main=run)
    module("gpu_acceptance.worker.group", answer_when_asked=lambda *_: None)
    module("gpu_acceptance.worker.leftovers", Leftovers=object)
    module("gpu_acceptance.worker.plugin", WorkerPlugin=lambda *_: types.SimpleNamespace(said_bye=True))
    module("gpu_acceptance.run.starting")
"""


class Starter:
    """The supervisor's side, in this process. Its workers collect one test in the folder."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        for name, text in (("test_it.py", "def test_it(): pass\n"), ("pytest.ini", "[pytest]\n")):
            (folder / name).write_text(text)
        self.folder = folder
        self.environment = environment
        self.server = ForkServerProcess(environment, folder, folder / "log")
        self.workers: list[WorkerProcess] = []
        self.imports = NO_IMPORTS

    def ask(self, server: ForkServerProcess | None, **environment: str) -> WorkerProcess:
        command = worker_command(sys.executable, self.folder, self.folder / "pytest.ini", [str(self.folder / "test_it.py")])
        files = self.folder, self.folder / "log", self.folder / "stacks"
        environment = {**self.environment, **environment, SCRATCH: f"{self.folder}/scratch-{len(self.workers)}"}
        self.workers.append(WorkerProcess(command, environment, *files, fork_server=server, imports=self.imports))
        return self.workers[-1]

    def fork(self, code: str = "", **environment: str) -> WorkerProcess:
        worker = self.ask(self.server, GPU_ACCEPTANCE_CODE=code, **environment)
        assert wait_until(worker.is_up), self.log
        return worker

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def end(self) -> None:
        self.server.close()
        for worker in self.workers:
            if worker.is_up():
                worker.kill()
                exit_text(worker)
                worker.close()
        self.server._process.wait()


def exit_text(worker: WorkerProcess) -> str | None:
    assert select.select([worker.pidfd], [], [], 60)[0]
    status = worker.exit_status()
    return status and str(status)
