"""Roots that readers are pointed at: files with real contents, and the eyes of a user who may not read them all."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65534


def fill(folder, files):
    """Writes files, by their paths below a folder; a value that is a folder's worth of files is one."""
    for name, content in files.items():
        path = folder / name
        if isinstance(content, dict):
            path.mkdir(parents=True, exist_ok=True)
            fill(path, content)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n", encoding="utf-8")
    return folder


@contextmanager
def reachable_root():
    """A root that another user can enter: pytest's own folders are closed to all but their owner."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        yield root


@contextmanager
def without_privilege():
    """Whoever runs the tests, from here on the files' modes count: root alone may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        if user == 0:
            os.seteuid(user)
