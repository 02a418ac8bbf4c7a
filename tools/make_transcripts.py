"""Writes reports/samples/transcripts/: what a terminal of 100 columns shows of each ending, by each way to start two ranks without a GPU.

`python -m tools.make_transcripts`: takes some three minutes. Names of this machine are replaced; nothing else is.
"""

import os
import pty
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "reports" / "samples" / "transcripts"
COLUMNS = 100
_STEERS = re.compile(r"\x1b\[[0-9;]*m")
_RUN_OF_TORCHRUN = re.compile(r"torchelastic_\w{8}/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}_\w{8}/")
_OVERLAY = "raised.yaml"
_RAISED = """\
limits:
  hbm.triad.bandwidth:
    at_least: 5000
    unit: GB/s
    scope: rank
    source: "policy: more than a CPU can do, for this transcript"
"""
ENDINGS = {
    "accepted": ["--level=quick"],
    "rejected": ["--level=quick", f"--limits={_OVERLAY}"],
    "incomplete": ["acceptance/test_hbm.py"],
    "usage-error": ["--level=qiuck"],
}


def main() -> None:
    """Runs all of them, and replaces the folder's files."""
    OUT.mkdir(parents=True, exist_ok=True)
    overlay = ROOT / _OVERLAY
    overlay.write_text(_RAISED, encoding="utf-8")
    try:
        for ending, arguments in ENDINGS.items():
            for name, command in _commands(arguments):
                print(f"{ending}, {name}", flush=True)
                (OUT / f"{ending}-{name}.txt").write_text(transcript(command), encoding="utf-8")
    finally:
        overlay.unlink()


def _commands(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    yield "make", ["make", "--no-print-directory", "accept", f"ARGS={shlex.join(arguments)}"]
    yield "program", [".venv/bin/gpu-acceptance", "run", *arguments]
    validations = arguments if arguments[0].startswith("acceptance/") else ["acceptance/", *arguments]
    yield "torchrun", [".venv/bin/torchrun", "--nproc-per-node", "2", "-m", "pytest", *validations]


def transcript(command: Sequence[str]) -> str:
    """The command as it would be typed, what a terminal showed, and the exit code."""
    code, output = _on_a_terminal(command)
    typed = " ".join(word if re.fullmatch(r"[\w./=-]+", word) else shlex.quote(word) for word in command if word != "--no-print-directory")
    return f"$ {typed}\n{_without_names(output).rstrip()}\n$ echo $?\n{code}\n"


def _on_a_terminal(command: Sequence[str]) -> tuple[int, str]:
    lead, follow = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm", "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    for variable in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        environment.pop(variable, None)
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=follow, stdout=follow, stderr=follow, start_new_session=True)
    os.close(follow)
    output = b""
    while True:
        try:
            more = os.read(lead, 65_536)
        except OSError:  # EIO: nobody has the other end open any more
            break
        if not more:
            break
        output += more
    os.close(lead)
    return process.wait(), _STEERS.sub("", output.decode(errors="replace")).replace("\r\n", "\n")


def _without_names(text: str) -> str:
    for name, stand_in in ((str(ROOT), "/path/to/gpu-acceptance"), (sys.base_prefix, "/usr")):
        text = text.replace(name, stand_in)
    text = _RUN_OF_TORCHRUN.sub("torchelastic_12345678/00000000-0000-0000-0000-000000000000_12345678/", text)
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node-01", text)


if __name__ == "__main__":
    main()
