"""Puts a folder where the run wants to write a file: `SPOILS` names it."""

import os
from pathlib import Path


def test_value(check):
    check("spoils_files.value", 5.0, "GB/s")
    Path(os.environ["SPOILS"]).mkdir(parents=True)
