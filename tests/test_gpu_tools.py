"""The scripts that take readings on GPUs can be started: each finds all that it imports."""

import subprocess

import pytest
from suite import PYTHON, ROOT

pytestmark = [pytest.mark.repository, pytest.mark.slow]

SCRIPTS = sorted((ROOT / "tools" / "gpu").glob("*.py"))
# As `python tools/gpu/X.py` does up to its `if __name__`: with the folder of the script as the first to look in.
STARTS = """
import runpy, sys
for path in sys.argv[1:]:
    before, sys.path[:0] = list(sys.path), [path.rpartition("/")[0]]
    try:
        runpy.run_path(path, run_name="started")
    except BaseException as error:
        if getattr(error, "name", None) != "nvidia":  # NCCL's own package, which torch for a CPU does not bring
            print(path, repr(error))
    for name, module in list(sys.modules.items()):
        if "/tools/gpu/" in (getattr(module, "__file__", None) or "") or name == "faults":  # scripts that share a name with others
            del sys.modules[name]
    sys.path[:] = before
"""


def test_each_script_finds_what_it_imports():
    ended = subprocess.run([PYTHON, "-c", STARTS, *map(str, SCRIPTS)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_copies_are_read_in_rounds_and_pair_by_pair_and_the_planted_bit_is_found():
    script = ROOT / "tools" / "gpu" / "p2p_readings.py"
    options = ["--device=cpu", "--num-gpus=3", "--num-bytes=4096", "--runs=1", "--alone"]
    ended = subprocess.run([PYTHON, str(script), *options], capture_output=True, text=True, check=False)
    assert (ended.returncode, '"what": "alone"' in ended.stdout) == (0, True), ended.stderr
