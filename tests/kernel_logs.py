"""Real kernel logs, rebuilt small (tests/cases/kmsg): a GPU at 0000:1b:00.0 below port 0000:15:01.0, a network card at 0000:9a:00.0."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases" / "kmsg"
DOUBT = "?"
GPU = "00000000:1B:00.0"
PATH = "pci0000:14/0000:15:01.0/0000:1b:00.0"
CARD: dict[str, Any] = {
    **dict.fromkeys(("hca_type", "board_id", "firmware", "node_guid", "sys_image_guid"), "x"),
    "name": "mlx5_0",
    "pci_address": "0000:9a:00.0",
    "pci_path": "pci0000:97/0000:98:01.0/0000:9a:00.0",
    "numa_node": 0,
    "netdevs": [],
    "ports": [],
    "hw_counters": [],
}


def _blocks() -> Iterator[tuple[str, dict[str, str], list[str]]]:
    """Yield each block of a file: `## title`, `# source`, `= figure value` for each figure that is not 0, and its lines."""
    for path in sorted(CASES.glob("*.txt")):
        for block in path.read_text(encoding="utf-8").split("## ")[1:]:
            title, *rest = block.splitlines()
            wanted = dict(line[2:].split(" ") for line in rest if line.startswith("= "))
            yield f"{path.stem}: {title}", wanted, [line for line in rest if not re.match(r"[#=] ", line)]


BLOCKS = {name: (wanted, lines) for name, wanted, lines in _blocks()}


def write_log(root: Path, lines: list[str], apart_s: float = 1.0, encoding: str = "utf-8") -> None:
    """Write /dev/kmsg below `root` with these lines of the kernel behind the first one of a boot."""
    path = root / "dev" / "kmsg"
    path.parent.mkdir(exist_ok=True)
    records = [f"4,{at},{int(at * apart_s * 1e6)},-;{line}\n" for at, line in enumerate(("Linux version 6.8.0", *lines))]
    path.write_bytes("".join(records).encode(encoding, "replace"))
