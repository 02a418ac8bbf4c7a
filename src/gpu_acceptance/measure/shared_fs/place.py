"""Where ranks meet in a directory of somebody else's: a folder of this attempt alone, and of what each rank made in it a list."""

import contextlib
import os
from pathlib import Path


class Place:
    """A folder which every rank makes or finds. A rank removes what it made itself, and the folder once that is empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mine: list[Path] = []
        self._folders: list[Path] = []
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def mine(self, name: str) -> Path:
        """A path that this rank is about to write, and that it will remove."""
        path = self.folder / name
        self._mine.append(path)
        return path

    def make_folder(self, name: str) -> None:
        """A folder in it of this rank alone. Raises OSError."""
        path = self.folder / name
        path.mkdir(mode=0o700)
        self._folders.append(path)

    def clear(self) -> None:
        """Communicates with nobody: the last rank to come finds the folder empty. What cannot be removed stays."""
        for path in self._mine:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        for folder in (*self._folders, self.folder):
            with contextlib.suppress(OSError):
                folder.rmdir()


def write_whole(path: Path, content: bytes) -> None:
    """On disk when it returns; readers who come by its name see all of it or nothing, as rename(2) promises."""
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
