"""Names the plugin and the fixtures of the acceptance run; nothing else.

Also where this checkout is, because pytest reads that from pyproject.toml only where it takes this folder for its root.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).absolute().parent
sys.path[:0] = [str(_HERE / "src"), str(_HERE)]

pytest_plugins = [
    "gpu_acceptance.plugin",
    "fixtures.ranks",
    "fixtures.limits",
    "fixtures.telemetry",
    "fixtures.gemm",
    "fixtures.nccl",
    "fixtures.corruption",
    "fixtures.exchange",
    "fixtures.p2p",
    "fixtures.training",
    "fixtures.parallel",
    "fixtures.lora",
    "fixtures.lora_model",
    "fixtures.shared_fs",
    "fixtures.networks",
    "fixtures.connectivity",
    "fixtures.checkpoint",
    "fixtures.failure",
    "fixtures.slurm",
]
