"""Names the plugin and the fixtures of the acceptance run; nothing else.

In a checkout also where the package is; a copy of this suite elsewhere runs with the package that is installed.
"""

import sys
from pathlib import Path

_HERE = Path(__file__).absolute().parent
_CHECKOUT = [str(_HERE / "src")] * (_HERE / "src" / "gpu_acceptance").is_dir()
sys.path[:0] = [*_CHECKOUT, str(_HERE)]

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
