"""Settings of all tests: no test fails because the machine is slow. The fixture `seen` checks a row of the fault matrix."""

import signal
import sys
from pathlib import Path

import pytest

# A pytest at the root that was given no folder which is there looks into each `test*` folder for a conftest, without our pytest.ini.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])] * (str(Path(__file__).parent) not in sys.path)

from faults import Seen  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

pytest_plugins = ["needs"]
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# They wait for most of their time. Begun first, they share the machine with what computes, and none of them is left at the end.
LONG_WAITS = (
    "slurm",
    "hosts",
    "signals",
    "stranger",
    "exit_guard",
    "network_fs",
    "launchers",
    "connectivity",
    "generations",
    "lora_model",
    "formation",
)
for _number in (signal.SIGHUP, signal.SIGINT):  # ignored under nohup, or behind `&`: what a test starts would ignore it as well
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda *_: None)


def pytest_addoption(parser):
    parser.addoption("--faults", type=Path, help="a folder to write what each fault ended in, for tools/make_faults.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    order = [f"test_end_to_end_{name}.py" for name in LONG_WAITS]
    items.sort(key=lambda item: order.index(item.path.name) if item.path.name in order else len(order))


@pytest.fixture
def seen(request):
    return Seen(request.config.getoption("--faults"), request.node.nodeid)
