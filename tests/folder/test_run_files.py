"""How a run's folder is named."""

import os
import subprocess
import sys
from pathlib import Path

from gpu_acceptance.cli.run_folder import RUN_ID
from gpu_acceptance.folder.files import new_run_id, node_run_id

_ASKS = "import os; from gpu_acceptance.folder.files import node_run_id; print(node_run_id('node-01', os.getppid()))"


def ids_of_children(number):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    return {subprocess.check_output([sys.executable, "-c", _ASKS], env=environment, text=True).strip() for _ in range(number)}


def test_ranks_of_one_launcher_name_one_folder_without_a_word():
    assert ids_of_children(2) == {node_run_id("node-01", os.getpid())}
    assert RUN_ID.fullmatch(node_run_id("node-01", os.getpid()))


def test_two_nodes_name_two():
    assert node_run_id("node-01", os.getpid()) != node_run_id("node-02", os.getpid())


def test_without_a_launcher_each_names_its_own():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    made = {node_run_id("node-01", None), node_run_id("node-01", None), node_run_id("node-01", gone.pid), new_run_id()}
    assert len(made) == 4
    assert all(map(RUN_ID.fullmatch, made))
