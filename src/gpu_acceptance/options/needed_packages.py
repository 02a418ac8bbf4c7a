"""Packages that only fine-tuning needs: there, and new enough? Told without importing them, which takes seconds."""

import re
from importlib import metadata

OLDEST = {
    "peft": (0, 17),  # the first of 2025-08, for transformers 5
    "transformers": (5, 0),
}


def lack_of(package: str) -> str:
    """Why this package cannot be used here, in one line; nothing where it can."""
    oldest = OLDEST[package]
    wanted = f"needs {package} {'.'.join(map(str, oldest))} or newer"
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        return f"{wanted}, and there is none: install it, or gpu-acceptance with all that it depends on"
    return f"{wanted}, and found {found}: update it" if tuple(map(int, re.findall(r"\d+", found)[:2])) < oldest else ""
