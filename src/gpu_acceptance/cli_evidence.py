"""Verbs about the files of a run as evidence: are they the ones that the run left?"""

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_acceptance.files import RESULTS, RecordError, read_results
from gpu_acceptance.manifest import MANIFEST, Difference, Kind, Manifest, differences, find_manifest
from gpu_acceptance.report.formatting import count
from gpu_acceptance.run_folder import find_run, refuse_another_run
from gpu_acceptance.summary import shortened
from gpu_acceptance.visible import one_line

CHANGED = 1
_KINDS: dict[Kind, str] = {"differs": "changed", "missing": "missing", "extra": "extra"}
_DIR = "a run folder, or a folder of runs: then its newest run (default: %(default)s)"

if TYPE_CHECKING:
    from gpu_acceptance.cli_machine import Verbs


def add_verbs(verbs: "Verbs") -> None:
    verify = verbs.add_parser(
        "verify",
        help="say which files of a run are not the ones that it left",
        description=f"Compare all files of a run with {MANIFEST}, the manifest that it wrote last: print a line for each that DIFFERS, "
        "is MISSING or EXTRA, then the result. VERIFIED (exit code 0) needs proof that the manifest is the run's own, as --sha256 gives: "
        "who changes a file can make a manifest anew. Without it the result is CONSISTENT, exit code 0. CHANGED is exit code 1; no "
        "manifest, or one that cannot be used, is 3.",
    )
    verify.add_argument("--sha256", metavar="DIGEST", type=_digest, help="of the manifest, as the run printed it in its last line")
    verify.add_argument("dir", metavar="DIR", nargs="?", type=Path, default=Path("reports"), help=_DIR)
    verify.set_defaults(verb=_verify)


def _digest(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError(f"{one_line(text)!r} is no SHA-256 digest, 64 hexadecimal digits")
    return text


def _verify(options: argparse.Namespace) -> int:
    run_dir = find_run(options.dir)
    manifest = manifest_of(run_dir)
    changes = [*_other_manifest(manifest, options.sha256), *differences(run_dir, manifest)]
    for line in shortened([str(one) for one in changes], elsewhere=""):
        print(line)
    result = (
        f"CHANGED: {_in_words(changes, manifest)}" if changes else _unchanged(run_dir, manifest, proof="--sha256" if options.sha256 else "")
    )
    print(f"{result} | {MANIFEST} sha256 {manifest.sha256} | {one_line(str(run_dir))}")
    return CHANGED if changes else 0


def manifest_of(run_dir: Path) -> Manifest:
    """Raises RecordError where there is none."""
    manifest = find_manifest(run_dir)
    if manifest is None:
        raise RecordError(
            f"{run_dir}: no {MANIFEST}: nothing says what this run left; its reporter was killed, or is of an earlier version"
        )
    return manifest


def _other_manifest(manifest: Manifest, sha256: str | None) -> Iterator[Difference]:
    if sha256 and sha256 != manifest.sha256:
        yield Difference("differs", MANIFEST, f"its sha256 is not {sha256}")


def _unchanged(run_dir: Path, manifest: Manifest, proof: str) -> str:
    refuse_another_run(read_results(run_dir).header.run_id, run_dir, run_dir / RESULTS)
    files = f"{count(len(manifest.digests), 'file')} as {MANIFEST} names them"
    return f"VERIFIED by {proof}: {files}" if proof else f"CONSISTENT: {files}; whether it is the run's own, its digest says"


def _in_words(changes: Sequence[Difference], manifest: Manifest) -> str:
    kinds = Counter(one.kind for one in changes)
    said = ", ".join(f"{kinds[kind]} {text}" for kind, text in _KINDS.items() if kinds[kind])
    unlike = {one.name for one in changes if one.kind != "extra"}
    return f"{said}: not one file as it names it, a manifest of another run" if unlike >= manifest.digests.keys() else said
