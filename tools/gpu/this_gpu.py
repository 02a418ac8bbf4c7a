"""A suite of the tests on a real GPU."""

from pathlib import Path

import torch
import yaml


def for_this_gpu(suite: Path) -> Path:
    """The suite, whose profile is for the GPU of this machine where there is one."""
    if torch.cuda.is_available():
        profile = yaml.safe_load((suite / "thresholds" / "cpu.yaml").read_text())
        profile["match"] = {"device_name": torch.cuda.get_device_name()}
        (suite / "thresholds" / "cpu.yaml").unlink()
        (suite / "thresholds" / "this-gpu.yaml").write_text(yaml.safe_dump(profile))
    return suite
