"""The table of docs/shared-fs.md: results of `--shared-dir` on mounts of NFS, from the committed readings."""

import json
from pathlib import Path
from typing import Any

from tools.markdown import cell

READINGS = Path(__file__).resolve().parents[1] / "reports" / "evidence" / "nfs.jsonl"


def nfs_block() -> str:
    """One row per case that used the present method; the superseded ones begin with `before` or end with it."""
    cases = [json.loads(line) for line in READINGS.read_text(encoding="utf-8").splitlines()]
    rows = "".join(_row(case) for case in cases if "before" not in case["case"].replace("before the ranks began", ""))
    return f"| case | mounts of the nodes | result | seen |\n|---|---|---|---|\n{rows}"


def _row(case: dict[str, Any]) -> str:
    mounts = list(dict.fromkeys(case["mounts"]))
    result = case["verdict"].partition(" (")[0] if "verdict" in case else "refused before anything ran"
    return f"| {cell(case['case'])} | {cell(' and '.join(f'`{mount}`' for mount in mounts))} | {cell(result)} | {cell(_seen(case))} |\n"


def _seen(case: dict[str, Any]) -> str:
    """Delays of new files in s, and the rows that did not pass."""
    if "said" in case:
        return str(case["said"][0])
    delays = [f"{rank['delay']:.1f}" for row in case["rows"] for rank in row["ranks"] if "delay" in rank]
    bad = [f"{row['row']} {row['outcome']}{_lost(row)}" for row in case["rows"] if row["outcome"] not in ("passed", "not applicable")]
    return "; ".join([*([f"delay {' and '.join(delays)} s"] if delays else []), *bad])


def _lost(row: dict[str, Any]) -> str:
    lost = [rank["locks.lost"] for rank in row["ranks"] if rank.get("locks.lost")]
    return f" ({max(lost)} of 10 additions lost)" if lost else ""
